"""A measurement, where it came from, and the table it ends up in."""

import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

RESULTS = Path(__file__).parent / "results"


def commit(checkout: Path = Path(__file__).parent) -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=checkout
    ).stdout.strip()


def processor() -> str:
    """Model name and the widest vector instructions: ratios differ between instruction sets."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = dict(line.split("\t: ", 1) for line in text.splitlines() if "\t: " in line)
    flags = lines.get("flags", "").split()
    widest = next((f for f in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sse4_2") if f in flags), "")
    return f"{lines.get('model name', '?')} {widest}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Raw samples of one question under one set of parameters."""

    name: str
    params: dict[str, Any]
    unit: str
    samples: list[float]
    commit: str = field(default_factory=commit)
    at: float = field(default_factory=time.time)
    processor: str = field(default_factory=processor)
    versions: dict[str, str] = field(
        default_factory=lambda: {name: version(name) for name in ("openvino", "openvino-genai", "nats-py", "shardline")}
    )

    def append_to(self, results: Path) -> None:
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("ab") as file:
            file.write(orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE))

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """(median, least, largest) of paired ratios: round i of one side against round i of the other."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ratios), ratios[0], ratios[-1]


class Results:
    """Everything that was measured; of each question the newest record counts."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.records: list[dict[str, Any]] = []
        for path in sorted(folder.glob("*.jsonl")):
            self.records += [orjson.loads(line) for line in path.read_bytes().splitlines()]
        self.records.sort(key=lambda record: record["at"])

    def all(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """Records of that name with these parameters, oldest first."""
        return [r for r in self.records if r["name"] == name and params.items() <= r["params"].items()]

    def latest(self, name: str, **params: Any) -> dict[str, Any]:
        """The newest of them. Raises NotMeasuredError."""
        if not (found := self.all(name, **params)):
            raise NotMeasuredError(f"no {name} with {params}: run python -m bench.{name.partition('.')[0]}")
        return found[-1]

    def samples(self, name: str, **params: Any) -> list[float]:
        """Of the newest of them. Raises NotMeasuredError."""
        return self.latest(name, **params)["samples"]


class NotMeasuredError(Exception):
    """A question without a record."""

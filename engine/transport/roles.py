"""Who may say and hear what: the least each role needs, as the broker's permissions (docs/security.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.contract.errors import UsageError
from engine.transport.address import inbox_of
from engine.transport.subjects import Subjects

KINDS: Final = (  # of the deployment's account
    *("stage", "decoder", "draft", "client", "gateway", "export", "monitor", "admin"),
)
SYSTEM: Final = "system"  # of the broker's own account
ALL_KINDS: Final = (*KINDS, SYSTEM)
ASKING: Final = ("client", "gateway", "monitor", "admin")  # whose questions the others answer
LOOKING: Final = ("monitor", "admin")  # of those, who may find out what runs (`nats micro ls`)
API: Final = "$JS.API"
SERVICES: Final = "$SRV.>"


@dataclass(frozen=True, slots=True)
class Grant:
    """Subjects that a role may use, wildcards included."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()

    def __add__(self, other: "Grant") -> "Grant":
        return Grant(_merged(self.publish, other.publish), _merged(self.subscribe, other.subscribe))


def _merged(one: Sequence[str], two: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *two)))


def expand(roles: Sequence[str], stages: int) -> tuple[str, ...]:
    """Names of roles: `stage` is one for each, `client-NAME` a client of its own. Raises UsageError."""
    found: list[str] = []
    for role in roles:
        kind = role.partition("-")[0]
        if kind not in (*KINDS, SYSTEM) or ("-" in role and kind not in ("client", "stage")):
            raise UsageError(f"{role!r} is no role: choose from {', '.join((*KINDS, SYSTEM))}, client-NAME")
        found += [f"stage-{index}" for index in range(stages)] if role == "stage" else [role]
    return tuple(dict.fromkeys(found))


def grant(role: str, models: Sequence[Subjects], stages: int, keys: Mapping[str, str]) -> Grant:
    """What a role needs to serve these models, cut into at most so many stages.

    `keys`: the public key of every role of the deployment, this one's too. Raises UsageError.
    """
    inbox = f"{inbox_of(keys[role])}.>"
    if role == SYSTEM:
        reads = ("SERVER.PING", "SERVER.PING.*", "SERVER.*.*", "ACCOUNT.*.*")
        return Grant((inbox, *(f"$SYS.REQ.{what}" for what in reads)), (inbox, "$SYS.>"))
    whole = Grant((inbox,), (inbox,))
    kind = role.partition("-")[0]
    whole += _answering(kind, keys)
    for subjects in models:
        whole += _of_model(role, subjects, stages)
    return whole


def _answering(kind: str, keys: Mapping[str, str]) -> Grant:
    """Whose inboxes a role writes to, because it answers them."""
    asked_by = {"stage": ("decoder", *LOOKING), "draft": ("decoder", *LOOKING), "decoder": ASKING}.get(kind, ())
    inboxes = tuple(f"{inbox_of(key)}.>" for name, key in keys.items() if name.partition("-")[0] in asked_by)
    return Grant(inboxes, (SERVICES,) if asked_by else ())


def _of_model(role: str, s: Subjects, stages: int) -> Grant:
    kind, _, name = role.partition("-")
    match kind:
        case "stage":
            return _stage(s, int(name), stages)
        case "decoder":
            return _decoder(s)
        case "draft":
            return Grant(_files(s), (s.draft,))
        case "client":
            return _client(s)
        case "gateway":
            return _client(s) + _watching(s)
        case "export":
            return _exporting(s)
        case "monitor":
            return _watching(s) + Grant((SERVICES, f"{API}.INFO"))
        case _:
            return _admin(s)


def _stage(s: Subjects, index: int, stages: int) -> Grant:
    further = (s.stage(index + 1, "*"),) if index + 1 < stages else ()
    heard = (s.stage(index, "*"), s.stage_gone(index, "*", "*"), s.stage_control(index, "*"), s.heartbeats)
    said = (*further, s.done("*", "*"), s.stage_heartbeat(index), *_files(s))
    return Grant((*said, s.probe("*")), (*heard, s.probe("*")))


def _decoder(s: Subjects) -> Grant:
    heard = (s.done("*", "*"), s.heartbeats, s.cancel, s.generate)
    said = (
        *(s.stage("*", "*"), s.stage_control("*", "*"), s.decoder_heartbeat("*"), s.draft),
        *(f"{s.events_root}.*", s.tokens("*"), s.dead),
        *(f"{API}.STREAM.{what}.{name}" for name in _streams(s) for what in ("INFO", "CREATE", "UPDATE")),
        *_lease(s),
        *_taking(s),
        *_reading(s),
        *_files(s),
    )
    return Grant(said, heard)


def _streams(s: Subjects) -> tuple[str, ...]:
    return (s.prompt_stream, s.dead_stream, s.event_stream, f"KV_{s.lease_bucket}")


def _lease(s: Subjects) -> tuple[str, ...]:
    stream, key = f"KV_{s.lease_bucket}", f"$KV.{s.lease_bucket}"
    return (f"{key}.>", f"{API}.DIRECT.GET.{stream}.{key}.>", f"{API}.STREAM.MSG.GET.{stream}")


def _taking(s: Subjects) -> tuple[str, ...]:
    calls = ("DURABLE.CREATE", "CREATE", "INFO", "MSG.NEXT")
    consumer = f"{s.prompt_stream}.decoder"
    return (*(f"{API}.CONSUMER.{call}.{consumer}" for call in calls), f"$JS.ACK.{consumer}.>")


def _reading(s: Subjects) -> tuple[str, ...]:
    return (f"{API}.DIRECT.GET.{s.event_stream}",)


def _files(s: Subjects) -> tuple[str, ...]:
    """Reading what `shard-export push` has stored."""
    stream = s.files_stream
    calls = (f"STREAM.INFO.{stream}", f"DIRECT.GET.{stream}", f"DIRECT.GET.{stream}.>", f"STREAM.MSG.GET.{stream}")
    return (f"{API}.STREAM.NAMES", *(f"{API}.{call}" for call in calls))


def _exporting(s: Subjects) -> Grant:
    """Storing and removing them: `shard-export push|remove`."""
    calls = tuple(f"{API}.STREAM.{call}.{s.files_stream}" for call in ("CREATE", "PURGE"))
    return Grant((f"{s.files}.>", *calls, *_files(s)))


def _client(s: Subjects) -> Grant:
    """Asks, stops, reads answers. It finds streams, it does not make them."""
    info = tuple(f"{API}.STREAM.INFO.{name}" for name in (s.prompt_stream, s.event_stream, s.dead_stream))
    return Grant(
        (s.prompt, s.generate, s.cancel, *info, *_reading(s), f"{API}.CONSUMER.INFO.{s.prompt_stream}.decoder"),
        (s.tokens("*"), s.decoder_heartbeat("*"), *_everywhere(s, "decoder.*")),
    )


def _everywhere(s: Subjects, who: str) -> tuple[str, ...]:
    """Heartbeats of all models of the deployment: that is how a model is found."""
    return (f"{s.root.rpartition('.')[0]}.*.heartbeat.{who}",)


def _watching(s: Subjects) -> Grant:
    info = tuple(f"{API}.STREAM.INFO.{name}" for name in _streams(s))
    consumer = f"{API}.CONSUMER.INFO.{s.prompt_stream}.decoder"
    return Grant((*info, consumer), (s.heartbeats, *_everywhere(s, ">")))


def _admin(s: Subjects) -> Grant:
    """Dead letters, files, streams: everything in the deployment, and all of JetStream's interface."""
    deployment = s.root.rpartition(".")[0]
    everything = (f"{deployment}.>", f"{API}.>", "$JS.ACK.>", "$KV.>", "$O.>", SERVICES)
    return Grant(everything, (f"{deployment}.>", "$KV.>", "$O.>", "$JS.EVENT.>", SERVICES))

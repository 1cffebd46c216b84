"""What `shardline broker-config` writes: a folder from which a broker can be started, and a key for each role.

OUT/nats.conf          one broker; OUT/node-1.conf … instead, for a cluster; OUT/leaf.conf for a site of its own
OUT/users.conf         who may do what; public keys only
OUT/keys/ROLE.nk       secret: goes to the machine of that role, nowhere else (leaf.conf there: to other sites)
OUT/tls/ca.pem         for every machine; ca.key signs certificates and is needed for nothing else
OUT/tls/server.*       stay with the broker
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from engine.contract.errors import UsageError
from engine.local.secret import write_secret
from engine.transport.address import Key, load_key
from engine.transport.roles import ALL_KINDS, SYSTEM, Grant, expand, grant
from engine.transport.subjects import Subjects

LEAF: Final = "leaf"  # the key of brokers of other sites

CLUSTER_PORT: Final = 6222
LEAF_PORT: Final = 7422
DOMAIN: Final = "main"  # JetStream's name for the main site
LIMITS: Final = """\
max_payload: 8MB              # a prefill chunk of 256 tokens of a model with hidden size 8192
max_pending: 256MB            # per client, before it is cut off as too slow
write_deadline: "5s"
no_fast_producer_stall: true  # one stalled stage must not slow down the others
ping_interval: "5s"           # a machine that hangs is noticed within 15 s
ping_max: 3
lame_duck_grace_period: "2s"
lame_duck_duration: "30s"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """What the broker is for."""

    out: Path
    models: tuple[Subjects, ...]
    stages: int  # of the model with the most
    roles: tuple[str, ...] = ALL_KINDS
    hosts: tuple[str, ...] = ()  # by which others reach it; none: only this machine can
    port: int = 4222
    tls: bool = False
    days: int = 397  # that a certificate is valid
    cluster: bool = False  # a broker on each host
    leaf: bool = False  # brokers of other sites may connect


def write_broker(plan: BrokerPlan) -> dict[str, str]:
    """Write the folder; keys and authority that are there stay as they are. Public keys by role. Raises UsageError."""
    _check(plan)
    roles = (*expand(plan.roles, plan.stages), *((LEAF,) if plan.leaf else ()))
    plan.out.mkdir(parents=True, exist_ok=True)
    keys = {role: write_key(plan.out / "keys", role).public for role in roles}
    (plan.out / "users.conf").write_text(users(plan.models, plan.stages, keys))
    if plan.tls:
        from engine.local.certificates import write_certificates  # noqa: PLC0415  needs the extra [tls]

        write_certificates(plan.out / "tls", plan.hosts, days=plan.days)
    for name, text in configurations(plan).items():
        (plan.out / name).write_text(text)
    if plan.leaf:
        local = {role: key for role, key in keys.items() if role != LEAF}
        there = users(plan.models, plan.stages, local, jetstream=False)
        (plan.out / "leaf-users.conf").write_text(for_leaf(there))
        # nats-server reads this one only in its own language
        seed = load_key(plan.out / "keys" / f"{LEAF}.nk").seed
        write_secret(plan.out / "keys" / f"{LEAF}.conf", f'nkey: "{seed}"\n'.encode())
    return keys


def for_leaf(text: str) -> str:
    """Permissions at a broker that passes on what is for JetStream: it gives it another name before it looks."""
    api = f"$JS.{DOMAIN}.API."
    return text.replace('"$JS.API.', f'"{api}').replace('"$KV.', f'"{api}$KV.')


def _check(plan: BrokerPlan) -> None:
    if not plan.models or not plan.stages:
        raise UsageError("whose subjects? give --shards FOLDER, or --model SLUG and --stages N")
    if plan.hosts and not plan.tls:
        raise UsageError("others can reach the broker at --host: give --tls too, or leave --host out")
    if plan.cluster and len(plan.hosts) < 3:
        raise UsageError("a cluster needs three brokers or more: name each with --host, and give --tls")
    if plan.leaf and not plan.hosts:
        raise UsageError("brokers of other sites connect by a name: give --host and --tls")
    if any(len(host) > 253 or set(host) - set("abcdefghijklmnopqrstuvwxyz0123456789.-:") for host in plan.hosts):
        raise UsageError(f"{', '.join(plan.hosts)}: --host takes names and addresses, lower case, without ports")


def write_key(folder: Path, role: str) -> Key:
    """The key of a role, made if its file is missing. Raises UsageError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{role}.nk"
    if path.exists():
        return load_key(path)
    key = Key.new()
    words = f"# Secret: who has this file is {role}. Its inbox, for nats --inbox-prefix: {key.inbox}\n{key.seed}\n"
    write_secret(path, words.encode())
    return key


def users(models: Sequence[Subjects], stages: int, keys: Mapping[str, str], *, jetstream: bool = True) -> str:
    """Accounts, users and their permissions, as nats-server reads them; `jetstream`: prompts are kept there."""
    ours = [role for role in keys if role not in (SYSTEM, LEAF)]
    listed = "\n".join(_user(role, keys[role], grant(role, models, stages, keys)) for role in ours)
    leaf = f"\n      # {LEAF}\n      {{ nkey: {keys[LEAF]} }}" if LEAF in keys else ""
    keeps = "    jetstream: enabled\n" if jetstream else ""
    system = _user(SYSTEM, keys[SYSTEM], grant(SYSTEM, models, stages, keys)) if SYSTEM in keys else ""
    return (
        "# Who may do what. Written by 'shardline broker-config': run it again instead of changing this file.\n"
        f"accounts {{\n  SHARDLINE {{\n{keeps}    users: [\n{listed}{leaf}\n    ]\n  }}\n"
        f"  SYS {{\n    users: [\n{system}\n    ]\n  }}\n}}\nsystem_account: SYS\n"
    )


def _user(role: str, public: str, allowed: Grant) -> str:
    def rows(subjects: Sequence[str]) -> str:
        return "".join(f"\n          {orjson.dumps(subject).decode()}" for subject in subjects)

    return (
        f"      # {role}\n      {{ nkey: {public}, permissions: {{\n"
        f"        publish: {{ allow: [{rows(allowed.publish)}\n        ] }}\n"
        f"        subscribe: {{ allow: [{rows(allowed.subscribe)}\n        ] }}\n      }} }}"
    )


def configurations(plan: BrokerPlan) -> dict[str, str]:
    """Configurations by file name."""
    if plan.cluster:
        found = {f"node-{n}.conf": _server(plan, f"node-{n}", host) for n, host in enumerate(plan.hosts, 1)}
    else:
        found = {"nats.conf": _server(plan, "nats", "")}
    if plan.leaf:
        found["leaf.conf"] = _leaf(plan)
    return found


def _server(plan: BrokerPlan, name: str, host: str) -> str:
    listen = "0.0.0.0" if plan.hosts else "127.0.0.1"
    domain = f"  domain: {DOMAIN}  # how brokers of other sites name it\n" if plan.leaf else ""
    parts = [
        f"# Check it with: nats-server -t -c {name}.conf     Start it in this folder with: nats-server -c {name}.conf\n"
        f"server_name: {name}\n"
        f'host: "{listen}"\nport: {plan.port}\n'
        'http: "127.0.0.1:8222"  # has no password: never anything but loopback\n',
        'include "users.conf"\n',
        "# Prompts wait here, relative to where the server is started.\n"
        f'jetstream {{\n  store_dir: "./{name}-data"\n  max_mem: 64MB\n  max_file: 4GB\n'
        f"{domain}"
        "  sync_interval: always  # a prompt that was acknowledged survives a power cut\n}\n",
        LIMITS,
    ]
    if plan.tls:
        parts.append(_tls(""))
    if plan.cluster:
        routes = "\n".join(f'    "tls://{_address(other, CLUSTER_PORT)}"' for other in plan.hosts)
        parts.append(
            f"# The other brokers; {host} is this one. All have the same files.\n"
            f'cluster {{\n  name: shardline\n  listen: "0.0.0.0:{CLUSTER_PORT}"\n'
            f'  advertise: "{_address(host, CLUSTER_PORT)}"\n'
            f"  routes: [\n{routes}\n  ]\n{_indented(_tls('verify: true'))}}}\n"
        )
        parts.append(f'client_advertise: "{_address(host, plan.port)}"\n')
    if plan.leaf:
        parts.append(
            f"# Brokers of other sites connect here, with keys/{LEAF}.nk.\n"
            f'leafnodes {{\n  listen: "0.0.0.0:{LEAF_PORT}"\n{_indented(_tls(""))}}}\n'
        )
    return "\n".join(parts)


def _leaf(plan: BrokerPlan) -> str:
    remotes = ", ".join(f'"tls://{_address(host, LEAF_PORT)}"' for host in plan.hosts)
    return "\n".join(
        [
            "# The broker of another site. It needs leaf-users.conf, tls/ and keys/leaf.conf beside it.\n"
            "# Prompts wait at the main site; what is said between machines here stays here.\n"
            f'server_name: leaf  # another name for each site\nhost: "0.0.0.0"\nport: {plan.port}\n'
            'http: "127.0.0.1:8222"\n',
            'include "leaf-users.conf"\n',
            "# This broker keeps nothing: who asks for JetStream asks the main site.\n"
            f"default_js_domain: {{ SHARDLINE: {DOMAIN} }}\n",
            LIMITS,
            _tls("") + f"leafnodes {{\n  remotes: [ {{\n    urls: [ {remotes} ]\n    account: SHARDLINE\n"
            f'    include "keys/{LEAF}.conf"\n    tls {{ ca_file: "tls/ca.pem" }}\n  }} ]\n}}\n',
        ]
    )


def _tls(more: str) -> str:
    rows = ['cert_file: "tls/server.pem"', 'key_file: "tls/server.key"', 'ca_file: "tls/ca.pem"', "timeout: 5"]
    return "tls {\n" + "".join(f"  {row}\n" for row in [*rows, *([more] if more else [])]) + "}\n"


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

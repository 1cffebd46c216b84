"""`shardline broker-config`: what it writes, who can read it, and that nats-server takes it."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.cli import app
from engine.contract.errors import UsageError
from engine.local.broker import find_server
from engine.local.broker_config import BrokerPlan, write_broker
from engine.transport.address import load_key, tls_context
from engine.transport.roles import expand
from engine.transport.subjects import Subjects

ROOT = Path(__file__).parents[2]
MODEL = Subjects("default", "tiny")


def plan(
    out: Path, *, hosts: tuple[str, ...] = (), tls: bool = False, cluster: bool = False, leaf: bool = False
) -> BrokerPlan:
    return BrokerPlan(out=out, models=(MODEL,), stages=2, hosts=hosts, tls=tls, cluster=cluster, leaf=leaf)


def accepted(config: Path) -> str:
    """nats-server's own opinion."""
    command = [str(find_server()), "-t", "-c", config.name]
    done = subprocess.run(command, cwd=config.parent, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.broker
def test_nats_server_takes_every_configuration_that_is_shipped() -> None:
    shipped = sorted((ROOT / "deploy" / "nats").glob("*.conf"))
    assert shipped
    assert {path.name: accepted(path) for path in shipped} == {path.name: "" for path in shipped}


@pytest.mark.broker
@pytest.mark.parametrize("hosts", [(), ("here.example",), ("a.example", "10.0.0.2", "fd00::3")], ids=len)
def test_nats_server_takes_every_configuration_that_is_written(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    secure, several = bool(hosts), len(hosts) > 1
    write_broker(plan(tmp_path, hosts=hosts, tls=secure, cluster=several, leaf=secure))
    written = sorted(tmp_path.glob("*.conf"))
    names = {"users.conf", *(["node-1.conf", "node-2.conf", "node-3.conf"] if several else ["nats.conf"])}
    assert {path.name for path in written} == names | ({"leaf.conf", "leaf-users.conf"} if secure else set())
    assert {path.name: accepted(path) for path in written} == {path.name: "" for path in written}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps access rights elsewhere")
def test_what_is_secret_is_read_by_its_owner_only(tmp_path: Path) -> None:
    write_broker(plan(tmp_path, hosts=("localhost",), tls=True, leaf=True))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    to_others = [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert {path.name for path in to_others} == {
        "nats.conf",
        "users.conf",
        "leaf.conf",
        "leaf-users.conf",
        "ca.pem",
        "server.pem",
    }
    seeds = [load_key(path).seed for path in (tmp_path / "keys").glob("*.nk")]
    public = "".join(path.read_text() for path in to_others)
    assert len(seeds) == len(set(seeds)) == 11
    assert not any(seed in public for seed in seeds)


def test_a_second_run_keeps_keys_and_authority_and_renews_the_certificate(tmp_path: Path) -> None:
    before = write_broker(plan(tmp_path, tls=True))
    authority, certificate = ((tmp_path / "tls" / name).read_bytes() for name in ("ca.pem", "server.pem"))
    assert write_broker(plan(tmp_path, tls=True)) == before
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority
    assert (tmp_path / "tls" / "server.pem").read_bytes() != certificate


def test_a_certificate_is_not_signed_without_the_authoritys_key(tmp_path: Path) -> None:
    write_broker(plan(tmp_path, tls=True))
    (tmp_path / "tls" / "ca.key").unlink()
    with pytest.raises(UsageError, match=r"ca\.key is not there"):
        write_broker(plan(tmp_path, tls=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "whose subjects"),
        (["--model", "tiny", "--stages", "2", "--host", "a"], "give --tls too"),
        (["--model", "tiny", "--stages", "2", "--host", "a", "--tls", "--cluster"], "three brokers"),
        (["--model", "tiny", "--stages", "2", "--roles", "king"], "'king' is no role"),
        (["--model", "tiny", "--stages", "2", "--host", "a/b", "--tls"], "without ports"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(tmp_path: Path, options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["broker-config", "--out", str(tmp_path / "out"), *options])
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "out").exists()


def test_only_the_roles_asked_for_get_in(tmp_path: Path) -> None:
    options = ["--model", "tiny", "--stages", "3", "--roles", "stage, decoder, client-alice,client-bob"]
    done = CliRunner().invoke(app, ["broker-config", "--out", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    names = ["stage-0", "stage-1", "stage-2", "decoder", "client-alice", "client-bob"]
    assert done.output.split() == [str(tmp_path / "keys" / f"{name}.nk") for name in names]
    assert re.findall(r"# (\S+)\n +{ nkey", (tmp_path / "users.conf").read_text()) == names
    assert expand(["stage", "stage-1"], 2) == ("stage-0", "stage-1")


def test_a_file_that_is_no_key_or_no_authority_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    (tmp_path / "x").chmod(0o600)
    with pytest.raises(UsageError, match="holds no key: 'shardline broker-config' writes one"):
        load_key(tmp_path / "x")
    (tmp_path / "x").write_text("SUBROKEN")
    with pytest.raises(UsageError, match="its seed is damaged"):
        load_key(tmp_path / "x")
    with pytest.raises(UsageError, match="cannot use the authority's certificate"):
        tls_context(tmp_path / "x")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps access rights elsewhere")
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    write_broker(plan(tmp_path))
    path = tmp_path / "keys" / "client.nk"
    path.chmod(0o644)
    with pytest.raises(UsageError, match=f"others on this machine can read the key {path}: chmod 600"):
        load_key(path)

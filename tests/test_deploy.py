"""What is shipped for machines is read by the programs that it is for, as far as they are here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMMANDS = set(
    re.findall(r"^([a-z-]+) = \"", (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2], re.M)
)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With programs that are there: systemd looks for them."""
    for name in ("stage-run", "decoder-run", "gateway-run", "monitor-run", "nats-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    units: list[str] = []
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        copy = tmp_path / unit.name.replace("@", "@0")
        copy.write_text(unit.read_text().replace("/opt/shardline/.venv/bin", str(tmp_path)))
        units.append(str(copy))
    assert len(units) == 5
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_run_commands_and_options_that_there_are() -> None:
    started = re.findall(r"^ExecStart=/opt/shardline/.venv/bin/(\S+)", _units(), re.M)
    assert len(started) == 5
    assert set(started) - {"nats-server"} <= COMMANDS


def test_no_secret_is_on_a_command_line_or_in_an_environment_of_a_unit() -> None:
    units = _units()
    assert units.count("LoadCredential=key:/etc/shardline/keys/") == 4
    assert not re.findall(r"^(?:ExecStart|Environment)=.*(?:\.nk|SU[A-Z0-9]{50})", units, re.M)


def _units() -> str:
    return "\n".join(path.read_text() for path in sorted((DEPLOY / "systemd").glob("*.service")))


def test_each_container_has_the_key_of_its_role_only() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        mounts = " ".join(service["volumes"])
        keys = re.findall(r"keys/(\S+?)\.nk:/run/key:ro", mounts)
        assert keys == ([] if name == "broker" else [name])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]

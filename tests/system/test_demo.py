"""`shardline demo`, as a newcomer runs it."""

import os
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.usefixtures("demo_model", "draft")]
DEMO = [str(Path(sysconfig.get_path("scripts")) / "shardline"), "demo"]


def test_the_demo_answers_all_prompts_and_leaves_no_process() -> None:
    words = ["--max-tokens", "8", "--prompt", "Say one.", "--prompt", "Say two."]
    done = subprocess.run([*DEMO, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "together" in done.stdout
    assert "busy" in done.stdout
    assert "drafts accepted" in done.stdout
    assert "everything stopped" in done.stderr
    assert not children_of("stages.cli")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C of another console cannot be sent there")
def test_ctrl_c_leaves_no_process() -> None:
    words = [*DEMO, "--keep", "--max-tokens", "4"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stderr and demo.stdout
        drain = threading.Thread(target=demo.stdout.read)
        drain.start()
        for line in demo.stderr:
            if b"publishing" in line:
                break
        os.kill(demo.pid, signal.SIGINT)
        assert demo.wait(60) != 0
        drain.join()
    assert not children_of("stages.cli")
    assert not children_of("engine.decoder.cli")


def children_of(module: str) -> list[int]:
    """Processes of that module that a demo of this test may have left."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if module in words and any("splits" in word for word in words):
            found.append(process.info["pid"])
    return found

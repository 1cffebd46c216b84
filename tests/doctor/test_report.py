"""What is said of facts, without any machine."""

from dataclasses import replace
from typing import Any

import pytest

from engine.contract.control import PROTOCOL_VERSION, StageHeartbeat
from engine.contract.facts import Broker, Device
from engine.doctor.cli import lines
from engine.doctor.report import (
    GIB,
    Finding,
    as_dict,
    broker_findings,
    clock_finding,
    device_findings,
    disk_finding,
    exit_code,
    memory_finding,
    port_findings,
    version_findings,
)

BROKER = Broker(
    url="nats://b:4222", version="2.15.1", jetstream=True, max_payload=8 << 20, rtt_ms=0.2, clock_offset=0.0, auth=True
)
CPU = Device(name="CPU", full_name="A CPU", plugin="2026.4", capabilities=("FP32",))
WORKER = StageHeartbeat(
    stage=0, stages=2, incarnation=1, state="ready", epoch=1, model="m", split="s", protocol=PROTOCOL_VERSION,
    profile="exact", runner="paged", device="CPU", host="h", pid=1, blocks=1, block_size=32, slots=0, min_row_tokens=2,
    max_step_tokens=64, context_length=64, waiting=0, oldest_ms=0.0, busy_share=0.0, step_ms_p50=0.0, step_ms_p95=0.0,
    steps=0, refused=0, memory_mb=0.0, equalities={"speculation": True, "replay": True},
)  # fmt: skip


def of_level(findings: list[Finding], level: str) -> list[str]:
    return [finding.what for finding in findings if finding.level == level]


def test_a_good_broker_has_nothing_to_mend() -> None:
    assert of_level(broker_findings(BROKER), "ok") == [finding.what for finding in broker_findings(BROKER)]


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"jetstream": False}, "problem", "no JetStream"),
        ({"max_payload": 65536}, "problem", "messages of 64.0 KiB at most: steps will not fit"),
        ({"max_payload": 1 << 20}, "note", "messages of 1.0 MiB at most"),
        ({"rtt_ms": 30.0}, "note", "30.00 ms there and back"),
        ({"version": "2.9.25"}, "note", "nats-server 2.9.25 is older"),
        ({"auth": False}, "note", "takes everybody"),
        ({"clock_offset": 3600.0}, "problem", "3600000 ms behind the broker's"),
    ],
)
def test_what_is_wrong_with_a_broker_is_named_with_its_cure(changes: dict[str, Any], level: str, what: str) -> None:
    [wrong] = [finding for finding in broker_findings(replace(BROKER, **changes)) if finding.level != "ok"]
    assert wrong.level == level
    assert what in wrong.what
    assert wrong.todo


@pytest.mark.parametrize(
    ("offset", "level", "what"),
    [
        (0.1, "ok", "100 ms behind"),
        (-0.1, "ok", "100 ms ahead of"),
        (2.0, "note", "2000 ms behind"),
        (-60.0, "problem", "60000 ms ahead of"),
        (None, "note", "does not tell"),
    ],
)
def test_clocks_are_compared_in_both_directions(offset: float | None, level: str, what: str) -> None:
    finding = clock_finding(offset)
    assert (finding.level, what in finding.what) == (level, True)


def test_a_missing_package_must_be_mended_a_missing_broker_binary_need_not() -> None:
    findings = version_findings({"openvino": "", "numpy": "2.0", "nats-server": ""}, (3, 11))
    assert [finding.level for finding in findings] == ["problem", "ok", "note"]
    assert of_level(version_findings({}, (3, 10)), "problem") == ["Python 3.10 is too old"]


def test_little_memory_and_disk_are_named() -> None:
    assert [memory_finding(8 * GIB, free).level for free in (GIB // 2, 4 * GIB)] == ["problem", "ok"]
    assert [disk_finding("x", free).level for free in (GIB // 2, 4 * GIB, 40 * GIB)] == ["problem", "note", "ok"]


def test_a_stranger_on_the_broker_s_port_is_a_problem_and_a_broker_is_none() -> None:
    ports = {"broker": (4222, True), "gateway": (8000, True)}
    assert of_level(port_findings(ports, broker_here=False), "problem") == [
        "4222 (broker): something listens that is no broker"
    ]
    assert of_level(port_findings(ports, broker_here=True), "problem") == []


def test_what_the_self_test_of_a_worker_has_shown_is_told_for_its_device() -> None:
    assert "CPU: stage 0 of m, paged exact: self-test: speculation equal, replay equal" in of_level(
        device_findings([CPU], [WORKER]), "ok"
    )


def test_an_equality_that_does_not_hold_in_profile_exact_is_a_problem() -> None:
    worker = replace(WORKER, equalities={"speculation": True, "replay": False})
    [problem] = of_level(device_findings([CPU], [worker]), "problem")
    assert "replay NOT equal" in problem
    assert of_level(device_findings([CPU], [replace(worker, profile="fast")]), "problem") == []


@pytest.mark.parametrize("name", ["GPU.0", "NPU", "FPGA"])
def test_what_was_never_run_on_a_device_is_said(name: str) -> None:
    notes = of_level(device_findings([replace(CPU, name=name)], []), "note")
    assert any("no worker was ever run" in note or "nothing is known" in note for note in notes)


def test_no_device_at_all_is_a_problem() -> None:
    assert of_level(device_findings([], [WORKER]), "problem") == ["OpenVINO finds no device at all"]


def test_only_problems_make_the_exit_code() -> None:
    note, problem = Finding("a", "note", "n", "t"), Finding("a", "problem", "p", "t")
    assert [exit_code([]), exit_code([note]), exit_code([note, problem])] == [0, 0, 1]
    assert as_dict([note])["good"] is True
    assert as_dict([problem]) == {
        "good": False,
        "findings": [{"area": "a", "level": "problem", "what": "p", "todo": "t"}],
    }


def test_what_to_do_stands_below_what_is_wrong() -> None:
    assert [line.split() for line in lines([Finding("disk", "problem", "full", "make room")])] == [
        ["problem", "disk", "full"],
        ["->", "make", "room"],
        ["1", "problem"],
    ]

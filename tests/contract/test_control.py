from dataclasses import asdict

import orjson

from engine.contract.control import DecoderHeartbeat, Scheduling, Speculation, from_json, to_json

HEARTBEAT = DecoderHeartbeat(
    decoder="d",
    state="serving",
    waits_for="",
    epoch=1,
    model="m",
    host="h",
    pid=1,
    waiting=0,
    running=2,
    blocks=8,
    free_blocks=4,
    steps=9,
    steps_in_flight=2,
    replays=0,
    tokens=5,
    tokens_per_second=1.5,
    speculation=Speculation(checked=3, accepted=2),
    scheduling=Scheduling(depth=3, step_ms=20.5, loop_ms=61.0, budget_ms=33.0),
)


def test_a_heartbeat_survives_the_wire_with_its_figures() -> None:
    assert from_json(DecoderHeartbeat, to_json(HEARTBEAT)) == HEARTBEAT


def test_a_decoder_that_does_not_report_its_schedule_is_understood() -> None:
    fields = asdict(HEARTBEAT)
    del fields["scheduling"]
    assert from_json(DecoderHeartbeat, orjson.dumps(fields)).scheduling == Scheduling()

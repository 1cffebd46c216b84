import asyncio

import pytest

from engine.client.client import numbered, prompt_error
from engine.client.discover import find_model
from engine.contract.errors import BrokerError, ErrorCode, UsageError
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, Timings, TokenEvent, Usage, encode_event
from engine.transport.inbox import QueueInbox
from engine.transport.memory import MemoryBroker, MemoryTransport

R = RequestId("r")


def token(seq: int) -> TokenEvent:
    return TokenEvent(request=R, seq=seq, text="x", ids=(1,))


def final(seq: int) -> FinalEvent:
    usage, timings = Usage(prompt_tokens=1, completion_tokens=1), Timings(queued=0, first_token=0, total=0)
    return FinalEvent(request=R, seq=seq, text="x", ids=(1,), finish_reason="stop", usage=usage, timings=timings)


def received(*events: Event, no_responder: bool = False) -> list[int]:
    async def main() -> list[int]:
        inbox = QueueInbox(100, None)
        for event in events:
            inbox.put("s", encode_event(event))
        if no_responder:
            inbox.put("s", b"", no_responder=True)
        return [event.seq async for event in numbered(inbox)]

    return asyncio.run(main())


def test_events_end_with_the_final_one() -> None:
    assert received(token(0), token(1), final(2), token(3)) == [0, 1, 2]


def test_a_repeated_event_is_shown_once() -> None:
    assert received(token(0), token(0), token(1), token(0), final(2)) == [0, 1, 2]


def test_a_missing_event_is_an_error() -> None:
    with pytest.raises(BrokerError, match="1 is missing"):
        received(token(0), final(2))


def test_nobody_to_ask_is_an_error_that_says_what_to_start() -> None:
    with pytest.raises(BrokerError, match="decoder-run"):
        received(no_responder=True)


def test_without_a_decoder_there_is_no_model_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.client.discover.LISTEN_SECONDS", 0.01)
    with pytest.raises(UsageError, match="decoder-run"):
        asyncio.run(find_model(MemoryTransport(MemoryBroker()), "default"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"request": "r", "seq": "0", "text": "", "ids": []}'])
def test_an_event_that_is_none_is_an_error_of_one_line(data: bytes) -> None:
    async def main() -> None:
        inbox = QueueInbox(100, None)
        inbox.put("s", data)
        async for _ in numbered(inbox):
            pass

    with pytest.raises(BrokerError, match="cannot be read"):
        asyncio.run(main())


def test_the_error_of_a_newer_decoder_is_understood() -> None:
    assert prompt_error({"code": "overloaded", "message": "later"}).code is ErrorCode.OVERLOADED
    assert prompt_error({"code": "moon_phase", "message": "wait"}).code is ErrorCode.INTERNAL


class Log:
    """What the event log answers, one time after the other."""

    def __init__(self, *answers: tuple[Event, ...] | BrokerError) -> None:
        self.answers = list(answers)

    async def __call__(self) -> tuple[Event, ...]:
        answer = self.answers.pop(0)
        if isinstance(answer, BrokerError):
            raise answer
        return answer


def caught_up(log: Log, *events: Event) -> list[int]:
    async def main() -> list[int]:
        inbox = QueueInbox(100, None)
        for event in events:
            inbox.put("s", encode_event(event))
        return [event.seq async for event in numbered(inbox, log, patience=0.01)]

    return asyncio.run(main())


def test_a_missing_event_is_read_from_the_log() -> None:
    assert caught_up(Log((token(0), token(1), token(2))), token(0), token(2), final(3)) == [0, 1, 2, 3]


def test_silence_is_ended_by_the_log() -> None:
    log = Log((token(0), token(1)), BrokerError("away"), (token(0), token(1)), (token(0), token(1), final(2)))
    assert caught_up(log, token(0)) == [0, 1, 2]


def test_a_gap_in_the_log_too_is_an_error() -> None:
    with pytest.raises(BrokerError, match="1 is missing"):
        caught_up(Log((token(0), token(2))), token(0), token(2))

import pytest

from engine.contract.history import LoggedEvent, history, prompt_key
from engine.contract.ids import RequestId
from engine.contract.prompt import FinalEvent, Timings, TokenEvent, Usage, encode_event

R = RequestId("r")


def token(seq: int) -> bytes:
    return encode_event(TokenEvent(request=R, seq=seq, text="x", ids=(1,)))


def final(seq: int) -> bytes:
    usage, timings = Usage(prompt_tokens=1, completion_tokens=1), Timings(queued=0, first_token=0, total=0)
    return encode_event(
        FinalEvent(request=R, seq=seq, text="x", ids=(1,), finish_reason="stop", usage=usage, timings=timings)
    )


def logged(*events: tuple[str, bytes], place: int = 1) -> list[LoggedEvent]:
    return [LoggedEvent(data, prompt, place + i) for i, (prompt, data) in enumerate(events)]


OLD = (("old", token(0)), ("old", final(1)))


@pytest.mark.parametrize(
    ("events", "state", "next_seq"),
    [
        ((), "fresh", 0),
        ((("p", token(0)),), "begun", 1),
        ((("p", token(0)), ("p", token(1))), "begun", 2),
        ((("p", token(0)), ("p", final(1))), "finished", 2),
        ((("p", token(3)),), "torn", 4),
        ((("p", token(0)), ("p", token(2))), "torn", 3),
        (OLD, "fresh", 0),
        ((*OLD, ("p", token(0))), "begun", 1),
        ((("old", token(0)),), "foreign", 0),
    ],
)
def test_the_log_says_how_far_a_prompts_answer_is(
    events: tuple[tuple[str, bytes], ...], state: str, next_seq: int
) -> None:
    found = history(logged(*events), "p")
    assert (found.state, found.next_seq) == (state, next_seq)


def test_an_event_goes_behind_the_last_one_whosever_it_is() -> None:
    assert history(logged(*OLD, place=7), "p").place == 8


def test_the_same_text_with_the_same_id_is_another_prompt_when_it_comes_later() -> None:
    assert len({prompt_key(1, b"why"), prompt_key(2, b"why"), prompt_key(1, b"who")}) == 3

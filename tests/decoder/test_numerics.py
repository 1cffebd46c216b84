"""An answer that went on where arithmetic differs is marked; what was told stays. On the memory transport."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.contract.prompt import Event, FinalEvent
from engine.decoder.numerics import Numerics, Stretches
from stages.place import Terms
from tests.decoder.local_pipeline import Pipeline, next_token, pipeline
from tests.decoder.test_resume import asked, events_until_final, replace_decoder

COUNT = 60
STANDBY = Terms(standby=True)


def other_token(history: Sequence[int]) -> int:
    """Another arithmetic."""
    return next_token([*history, 0])


def told(prompt: str, *parts: tuple[int, Callable[[Sequence[int]], int]]) -> str:
    """An answer: so many tokens by one model, then so many by another."""
    history = list(prompt.encode())
    for count, model in parts:
        for _ in range(count):
            history.append(model(history))
    return bytes(history[len(prompt.encode()) :]).decode()


def run(test: Callable[[Pipeline], Awaitable[None]]) -> None:
    async def main() -> None:
        async with pipeline(whole=False) as here:
            await here.start_decoder()
            await here.start_worker(0)
            await test(here)

    asyncio.run(main())


async def answered(here: Pipeline, *, lose: asyncio.Task[None] | None) -> list[Event]:
    """All events of an answer in whose middle a worker is lost."""
    async with asked(here, "why", "r", max_tokens=COUNT) as inbox:
        seen = asyncio.Event()
        events = asyncio.ensure_future(events_until_final(inbox, seen))
        await seen.wait()
        if lose:
            await here.kill(lose)
        return await events


def final_of(events: list[Event]) -> FinalEvent:
    """The last event; the others bring its text and say its fingerprints, once each."""
    *before, final = events
    assert isinstance(final, FinalEvent)
    assert [event.seq for event in events] == list(range(len(events)))
    assert "".join(event.text for event in before) == final.text
    assert tuple(word for event in before for word in event.numerics) == final.numerics
    return final


def test_an_answer_that_goes_on_with_other_arithmetic_is_marked_where_it_does() -> None:
    async def test(here: Pipeline) -> None:
        worker = await here.start_worker(1, numerics="one")
        await here.serving.wait()
        await here.start_worker(1, numerics="other", script=other_token, terms=STANDBY)
        events = await answered(here, lose=worker)
        final = final_of(events)
        assert final.mixed
        assert len(set(final.numerics)) == 2
        [first, second] = [event.seq for event in events[:-1] if event.numerics]
        assert first == 0
        before = sum(len(event.ids) for event in events[:second])
        assert final.text == told("why", (before, next_token), (COUNT - before, other_token))

    run(test)


def test_an_answer_that_goes_on_with_equal_arithmetic_is_not_marked() -> None:
    async def test(here: Pipeline) -> None:
        worker = await here.start_worker(1, numerics="one")
        await here.serving.wait()
        await here.start_worker(1, numerics="one", terms=STANDBY)
        final = final_of(await answered(here, lose=worker))
        assert here.decoders[0].replays == 1
        assert not final.mixed
        assert final.text == told("why", (COUNT, next_token))

    run(test)


def test_where_a_replay_does_not_give_the_same_bits_every_loss_is_marked() -> None:
    async def test(here: Pipeline) -> None:
        worker = await here.start_worker(1, numerics="one", replays=False)
        await here.serving.wait()
        await here.start_worker(1, numerics="one", replays=False, terms=STANDBY)
        final = final_of(await answered(here, lose=worker))
        assert final.mixed
        assert len(set(final.numerics)) == 1

    run(test)


def test_an_answer_that_had_not_begun_is_all_the_replacement_s() -> None:
    async def test(here: Pipeline) -> None:
        worker = await here.start_worker(1, numerics="one")
        await here.serving.wait()
        await here.start_worker(1, numerics="other", terms=STANDBY)
        computed = asyncio.Event()

        def lose_results(subject: str, data: bytes) -> list[bytes]:
            if ".done." not in subject:
                return [data]
            computed.set()
            return []

        here.broker.intercept = lose_results
        async with asked(here, "why", "r", max_tokens=COUNT) as inbox:
            await computed.wait()
            await here.kill(worker)
            here.broker.intercept = None
            assert not final_of(await events_until_final(inbox)).mixed

    run(test)


@pytest.mark.parametrize("numerics", ["one", "other"])
def test_an_answer_that_another_decoder_goes_on_with_is_marked_if_arithmetic_changed(
    numerics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.decoder.pipeline.SUSPECT_SECONDS", 0.05)

    async def test(here: Pipeline) -> None:
        worker = await here.start_worker(1, numerics="one")
        await here.serving.wait()
        async with asked(here, "why", "r", max_tokens=COUNT) as inbox:
            seen = asyncio.Event()
            events = asyncio.ensure_future(events_until_final(inbox, seen))
            await seen.wait()
            await here.kill(here.running[0])  # the decoder
            await here.kill(worker)
            await here.start_worker(1, numerics=numerics)
            await replace_decoder(here, here.running[0])
            assert final_of(await events).mixed is (numerics == "other")

    run(test)


@pytest.mark.parametrize("before", ["", "foreign"])
def test_an_answer_that_its_client_has_gone_on_with_is_marked_if_arithmetic_changed(before: str) -> None:
    async def test(here: Pipeline) -> None:
        await here.start_worker(1, numerics="one")
        await here.serving.wait()
        async with asked(here, "why", "r", max_tokens=COUNT) as inbox:
            whole = final_of(await events_until_final(inbox))
        known = {"index": 0, "ids": whole.ids[:9], "numerics": [before or whole.numerics[0]]}
        async with asked(here, "why", "r-1", max_tokens=COUNT, told=[known]) as inbox:
            final = (await events_until_final(inbox))[-1]
        assert isinstance(final, FinalEvent)
        assert (final.ids, final.mixed) == (whole.ids, bool(before))

    run(test)


def test_fingerprints_come_back_although_their_tokens_could_not_be_told_yet() -> None:
    stretches = Stretches()
    for word in ("one", "one", "other", "one"):
        stretches.computed(Numerics(word))
    assert stretches.tell() == ("one", "other", "one")
    assert stretches.tell() == ()
    assert stretches.all == ("one", "other", "one")


def test_whoever_goes_on_counts_what_was_told_and_tells_only_what_is_new() -> None:
    stretches = Stretches(["one"])
    stretches.computed(Numerics("one"))
    assert stretches.tell() == ()
    stretches.computed(Numerics("one", epoch=7))
    assert stretches.tell() == ("one",)
    assert stretches.all == ("one", "one")

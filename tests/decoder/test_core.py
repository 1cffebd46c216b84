import random

import pytest

from engine.contract.ids import StepNumber
from engine.decoder.core import DecoderCore
from tests.decoder.fakes import EOS, CountingPipeline, capacity, drive, sequence


def opened(**changes: int) -> DecoderCore:
    core = DecoderCore()
    core.open_epoch(capacity(**changes))
    return core


def test_an_answer_is_the_prompt_continued() -> None:
    core, one = opened(), sequence(prompt=5, max_tokens=6)
    core.submit(one)
    drive(core, CountingPipeline(8))
    assert one.answer.ids == [6, 7, 8, 9, 10, 11]
    assert one.answer.finish == "length"


def test_eos_ends_an_answer_and_frees_its_blocks_and_slot() -> None:
    core = opened(slots=1)
    one, two = sequence("one", prompt=3, max_tokens=50, first=EOS - 5), sequence("two")
    core.submit(one)
    core.submit(two)
    drive(core, CountingPipeline(8))
    assert one.answer.ids == [EOS - 2, EOS - 1, EOS]
    assert two.answer.finish == "length"
    assert core.blocks.available == 64


def test_sequences_in_two_groups_keep_two_steps_in_flight() -> None:
    core = opened()
    for i in range(4):
        core.submit(sequence(str(i)))
    first, second = core.next_step(0.0), core.next_step(0.0)
    assert first is not None
    assert second is not None
    assert [first.rows.count, second.rows.count] == [2, 2]
    assert core.next_step(0.0) is None


def test_several_chunks_of_one_prompt_are_in_flight() -> None:
    core, one = opened(prefill_tokens=16), sequence(prompt=40)
    core.submit(one)
    assert core.next_step(0.0) is not None
    assert core.next_step(0.0) is not None
    assert one.sent == 32


def test_a_lost_epoch_changes_nothing_in_the_answers() -> None:
    for lost_after in range(1, 14):
        core, pipeline = opened(prefill_tokens=16), CountingPipeline(8)
        ones = [sequence(str(i), prompt=4 + 9 * i, max_tokens=8, first=50 * i) for i in range(4)]
        for one in ones:
            core.submit(one)
        flying = []
        for _ in range(lost_after):
            while (step := core.next_step(0.0)) is not None:
                flying.append(step)
            done = flying.pop(0)
            core.result(StepNumber(done.number), pipeline.run(done), 0.0)
        core.lose_epoch()
        core.open_epoch(capacity(prefill_tokens=16))
        drive(core, CountingPipeline(8))
        for i, one in enumerate(ones):
            start = 50 * i + 4 + 9 * i
            assert one.answer.ids == list(range(start, start + 8)), lost_after


def test_replayed_requests_keep_their_order_and_go_before_new_ones() -> None:
    core = opened()
    for name in "ab":
        core.submit(sequence(name))
    core.next_step(0.0)
    core.submit(sequence("c"))
    core.lose_epoch()
    assert [s.id for s in core.waiting] == ["a", "b", "c"]


def test_a_result_for_a_removed_sequence_is_ignored() -> None:
    core, one = opened(), sequence()
    core.submit(one)
    step = core.next_step(0.0)
    assert step is not None
    core.remove(one)
    assert core.result(step.number, CountingPipeline(8).run(step), 0.0) == []


def test_a_result_that_came_already_is_an_error() -> None:
    core = opened()
    core.submit(sequence())
    step = core.next_step(0.0)
    assert step is not None
    tokens = CountingPipeline(8).run(step)
    core.result(step.number, tokens, 0.0)
    with pytest.raises(KeyError):
        core.result(step.number, tokens, 0.0)


def test_the_head_of_the_queue_waits_for_blocks_and_nobody_overtakes_it() -> None:
    core = opened(blocks=4)
    large, small = sequence("large", prompt=20, max_tokens=10), sequence("small", prompt=2, max_tokens=2)
    core.submit(sequence("first", prompt=2, max_tokens=2))
    core.submit(large)
    core.submit(small)
    core.next_step(0.0)
    assert [s.id for s in core.running] == ["first"]
    drive_rest = [p.sequence.id for p in drive_from(core)]
    assert drive_rest.index("large") < drive_rest.index("small")


def drive_from(core: DecoderCore) -> list:  # type: ignore[type-arg]
    core.lose_epoch()
    core.open_epoch(capacity(blocks=4))
    return drive(core, CountingPipeline(8))


def test_a_request_larger_than_the_pool_never_fits() -> None:
    assert not opened(blocks=4).fits(33)
    assert opened(blocks=4).fits(32)


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_all_end_right_and_leak_no_block(seed: int) -> None:
    rng = random.Random(seed)
    core = opened(blocks=40, slots=6, prefill_tokens=rng.choice([4, 16, 64]), steps_in_flight=rng.choice([1, 2, 3]))
    pipeline, flying, ones = CountingPipeline(8), [], []
    for turn in range(400):
        if turn < 200 and rng.random() < 0.3:
            ones.append(sequence(str(turn), rng.randint(1, 60), rng.randint(1, 30), first=100 * len(ones) + 1000))
            core.submit(ones[-1])
        while (step := core.next_step(0.0)) is not None:
            flying.append(step)
        if flying:
            done = flying.pop(0)
            core.result(StepNumber(done.number), pipeline.run(done), 0.0)
        used = [block for s in core.running for block in s.table.blocks]
        assert len(used) == len(set(used))
        assert len(used) + core.blocks.available == 40
    drive(core, pipeline, flying=flying)
    for one in ones:
        assert one.answer.ids == list(range(one.tokens[0] + one.prompt_length, one.tokens[0] + one.limit))
    assert core.blocks.available == 40

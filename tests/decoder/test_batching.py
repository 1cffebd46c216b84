import pytest

from engine.decoder.batching import plan_row, plan_step
from tests.decoder.fakes import limits, sequence


def test_a_prompt_that_fits_goes_in_one_row() -> None:
    row = plan_row(sequence(prompt=5), 64, limits())
    assert row is not None
    assert (row.start, row.fresh, row.dummies, row.picked) == (0, 5, 0, True)


def test_a_long_prompt_is_cut_and_only_its_last_chunk_is_picked() -> None:
    one = sequence(prompt=100)
    first = plan_row(one, 64, limits())
    assert first is not None
    assert (first.fresh, first.picked) == (64, False)
    one.sent = 64
    second = plan_row(one, 64, limits())
    assert second is not None
    assert (second.start, second.fresh, second.picked) == (64, 36, True)


def test_a_chunk_leaves_no_tail_of_one_token() -> None:
    row = plan_row(sequence(prompt=65), 64, limits())
    assert row is not None
    assert row.fresh == 63


def test_a_decode_row_carries_a_dummy_where_rows_of_one_token_are_not_exact() -> None:
    one = sequence(prompt=5)
    one.sent = 4
    row = plan_row(one, 1, limits())
    assert row is not None
    assert (row.start, row.fresh, row.dummies) == (4, 1, 1)
    fast = plan_row(one, 1, limits(min_row_tokens=1))
    assert fast is not None
    assert (fast.fresh, fast.dummies) == (1, 0)


def test_at_the_end_of_the_context_the_row_starts_earlier_instead_of_carrying_a_dummy() -> None:
    one = sequence(prompt=8)
    one.sent = 7
    row = plan_row(one, 1, limits(context_length=8))
    assert row is not None
    assert (row.start, row.fresh, row.dummies, row.picked) == (6, 2, 0, True)


def test_running_sequences_are_split_into_as_many_groups_as_steps_in_flight() -> None:
    running = [sequence(str(i), prompt=3) for i in range(5)]
    for one in running:
        one.sent = 2
    assert len(plan_step(running, limits(steps_in_flight=2))) == 3
    assert len(plan_step(running, limits(steps_in_flight=5))) == 1


def test_decode_rows_go_before_prompts_and_the_oldest_first() -> None:
    prompt, young, old = sequence("p", prompt=30), sequence("young", prompt=3), sequence("old", prompt=3)
    young.sent = old.sent = 2
    young.last_step, old.last_step = 9, 4
    rows = plan_step([prompt, young, old], limits(steps_in_flight=1))
    assert [row.sequence.id for row in rows] == ["old", "young", "p"]


def test_the_prefill_budget_holds_for_all_rows_together() -> None:
    rows = plan_step([sequence(str(i), prompt=40) for i in range(4)], limits(steps_in_flight=1, prefill_tokens=64))
    assert [row.length for row in rows] == [40, 24]


@pytest.mark.parametrize("max_bytes", [200, 1000, 4000])
def test_a_step_never_exceeds_its_bytes(max_bytes: int) -> None:
    running = [sequence(str(i), prompt=50) for i in range(8)]
    rows = plan_step(running, limits(steps_in_flight=1, prefill_tokens=10_000, max_bytes=max_bytes))
    assert rows
    assert sum(4 * (6 + -(-(r.start + r.length) // 8) + 16 * r.length) for r in rows) <= max_bytes

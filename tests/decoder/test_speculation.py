from collections.abc import Callable

import pytest

from engine.decoder.cost import Average, StepCost
from engine.decoder.speculation import PROBE_EVERY, Acceptance, Choice, DraftState, choose, expected_tokens


def costs(
    *, step: float = 0.04, token: float = 0.005, draft: float = 0.001, rows: int = 1, least: int = 1
) -> Callable[[int], float]:
    """Seconds of a window in a step that `rows` sequences share."""
    return lambda drafts: step / rows + token * max(1 + drafts, least) + draft * drafts


def test_expected_tokens_of_a_window() -> None:
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)


def test_better_acceptance_drafts_more() -> None:
    found = [choose(rate, costs()).tokens for rate in (0.3, 0.6, 0.8, 0.95)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_a_slow_link_drafts_more() -> None:
    near, far = choose(0.7, costs()).tokens, choose(0.7, costs(step=0.34)).tokens
    assert far > near


def test_a_full_pipe_drafts_less() -> None:
    alone, crowded = choose(0.7, costs()).tokens, choose(0.7, costs(rows=16)).tokens
    assert crowded < alone


def test_nothing_is_drafted_where_it_costs_more_than_it_brings() -> None:
    assert choose(0.1, costs()) == Choice(0, 1.0)
    assert choose(0.7, costs(rows=32, token=0.02)) == Choice(0, 1.0)
    assert choose(0.7, costs(draft=0.1)) == Choice(0, 1.0)


def test_a_row_that_needs_a_dummy_anyway_takes_a_draft_instead() -> None:
    assert choose(0.3, costs(token=0.03, rows=8, draft=0.0)).tokens == 0
    assert choose(0.3, costs(token=0.03, rows=8, draft=0.0, least=2)).tokens == 1


def test_the_limit_holds() -> None:
    assert choose(1.0, costs()).tokens == 16
    assert choose(1.0, costs(), limit=3).tokens == 3
    assert choose(1.0, costs(), limit=0) == Choice(0, 1.0)


def test_acceptance_follows_what_was_seen_and_forgets_slowly() -> None:
    acceptance = Acceptance(0.5)
    assert acceptance.rate == 0.5
    for _ in range(50):
        acceptance.observe(0, 1)
    assert acceptance.rate < 0.2
    for _ in range(50):
        acceptance.observe(4, 4)
    assert acceptance.rate > 0.9


def test_a_fixed_number_is_only_clipped() -> None:
    state = DraftState(("model",), 5)
    assert state.choose("model", costs(draft=9.0), 16).tokens == 5
    assert state.choose("model", costs(), 2).tokens == 2


def test_a_sequence_without_drafts_looks_again_after_a_while() -> None:
    state = DraftState(("model",))
    state.source = "model"
    for _ in range(30):
        state.observe(0, 1, 1)
    assert state.choose("model", costs(), 16).tokens == 0
    state.observe(0, 0, PROBE_EVERY)
    assert state.choose("model", costs(), 16).tokens == 2
    state.observe(0, 1, 1)
    assert state.choose("model", costs(), 16).tokens == 0


def test_sources_have_acceptances_of_their_own() -> None:
    state = DraftState(("lookup", "model"))
    state.source = "lookup"
    for _ in range(10):
        state.observe(0, 1, 1)
    assert state.acceptance("lookup").rate < 0.3
    assert state.acceptance("model").rate == 0.65


def test_the_cost_of_a_step_is_learnt_from_rows_of_several_lengths() -> None:
    cost = StepCost()
    for i in range(200):
        tokens = 1 + i % 6
        cost.observe(tokens, 0.040 + 0.005 * tokens)
    step, token = cost.line()
    assert step == pytest.approx(0.040, rel=0.05)
    assert token == pytest.approx(0.005, rel=0.3)


def test_with_rows_of_one_length_the_slope_is_a_guess_and_the_sum_is_right() -> None:
    cost = StepCost()
    for _ in range(20):
        cost.observe(1, 0.05)
    step, token = cost.line()
    assert step + token == pytest.approx(0.05)
    assert 0 < token < 0.25 * 0.05


def test_costs_follow_a_machine_that_slows_down() -> None:
    cost = StepCost()
    for seconds in (0.05, 0.1):
        for i in range(200):
            cost.observe(1 + i % 4, seconds)
    step, token = cost.line()
    assert step + 2.5 * token == pytest.approx(0.1, rel=0.05)


def test_long_prompts_do_not_distort_what_a_verify_row_costs() -> None:
    cost = StepCost()
    for i in range(100):
        cost.observe(1 + i % 4, 0.05)
        cost.observe(256, 0.9)
    step, token = cost.line()
    assert step + token == pytest.approx(0.05, rel=0.05)


def test_nothing_is_known_before_the_first_step() -> None:
    assert not StepCost().known
    assert StepCost().line() == (0.0, 0.0)
    assert Average().value == 0.0


def test_a_size_that_costs_more_than_its_neighbours_is_avoided() -> None:
    cost, real = StepCost(), {1: 0.0627, 2: 0.0763, 3: 0.084, 4: 0.1029, 5: 0.1061, 6: 0.1132}
    for i in range(300):
        cost.observe(1 + i % 6, real[1 + i % 6])
    assert all(cost.of(tokens) == pytest.approx(seconds, rel=0.05) for tokens, seconds in real.items())
    assert choose(0.65, lambda drafts: cost.of(1 + drafts), 5).tokens in (2, 4, 5)

import pytest

from engine.decoder.average import Average
from engine.decoder.speculation import (
    CHANCES,
    NONE,
    PROBE_EVERY,
    Acceptance,
    DraftState,
    WindowCost,
    Windows,
    choose,
    choose_chance,
    expected_tokens,
)


def costs(
    *, step: float = 0.04, token: float = 0.005, draft: float = 0.001, rows: int = 1, least: int = 1
) -> WindowCost:
    """Of a window in a step that `rows` sequences share."""
    return WindowCost(lambda drafts: step / rows + token * max(1 + drafts, least), draft)


USUAL = Windows()


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
    assert choose(0.1, costs()) == NONE
    assert choose(0.7, costs(rows=32, token=0.02)) == NONE
    assert choose(0.7, costs(draft=0.1)) == NONE


def test_a_row_that_needs_a_dummy_anyway_takes_a_draft_instead() -> None:
    assert choose(0.3, costs(token=0.03, rows=8, draft=0.0)).tokens == 0
    assert choose(0.3, costs(token=0.03, rows=8, draft=0.0, least=2)).tokens == 1


def test_the_limit_holds() -> None:
    assert choose(1.0, costs()).tokens == 16
    assert choose(1.0, costs(), limit=3).tokens == 3
    assert choose(1.0, costs(), limit=0) == NONE


def test_a_length_that_is_about_as_good_is_kept() -> None:
    best = choose(0.7, costs()).tokens
    assert choose(0.7, costs(), usual=best + 1).tokens == best + 1
    assert choose(0.7, costs(), usual=best + 9).tokens == best
    assert choose(0.1, costs(), usual=3) == NONE


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
    assert state.choose("model", costs(draft=9.0), 16, USUAL).tokens == 5
    assert state.choose("model", costs(), 2, USUAL).tokens == 2


def test_a_sequence_without_drafts_looks_again_after_a_while() -> None:
    state = DraftState(("lookup",))
    state.source = "lookup"
    for _ in range(30):
        state.observe(0, 1, 1)
    assert state.choose("lookup", costs(), 16, USUAL).tokens == 0
    state.observe(0, 0, PROBE_EVERY)
    assert state.choose("lookup", costs(), 16, USUAL).tokens == 2
    state.observe(0, 1, 1)
    assert state.choose("lookup", costs(), 16, USUAL).tokens == 0


def test_what_a_grammar_leaves_no_choice_about_says_nothing_of_a_source() -> None:
    state = DraftState(("lookup", "model"))
    state.observe(9, 9, 10)
    assert (state.lookup.rate, state.model.rate) == (pytest.approx(0.6), pytest.approx(0.65))
    assert state.accepted == 9


def test_sources_have_acceptances_of_their_own() -> None:
    state = DraftState(("lookup", "model"))
    state.source = "lookup"
    for _ in range(10):
        state.observe(0, 1, 1)
    assert state.acceptance("lookup").rate < 0.3
    assert state.acceptance("model").rate == 0.65


def test_an_average_starts_at_its_first_sample_and_holds_a_first_guess_as_firmly_as_told() -> None:
    average = Average()
    assert average.value == 0.0
    average.observe(5.0)
    assert average.value == pytest.approx(5.0)
    guessed = Average.starting(1.0, weight=9.0)
    guessed.observe(10.0)
    assert 1.0 < guessed.value < 3.0


def test_a_draft_pays_while_its_chance_is_above_what_its_time_is_worth_elsewhere() -> None:
    windows = Windows(drafted=2.0, brought=2.1)
    choice = choose_chance(windows, costs(step=0.04, token=0.005, draft=0.002))
    seconds = 0.04 + 0.005 * 3 + 0.002 * 3
    assert choice.least == pytest.approx(0.007 * 2.1 / seconds)
    assert choice.gain == pytest.approx(2.1 / seconds * 0.045)


def test_over_slow_links_unlikely_drafts_pay_too() -> None:
    near, far = (choose_chance(USUAL, costs(step=step)).least for step in (0.04, 0.4))
    assert far < near / 3


def test_windows_that_bring_nothing_end_drafting_until_it_is_looked_at_again() -> None:
    state = DraftState(("model",))
    assert state.choose("model", costs(), 16, USUAL).tokens == 16
    assert state.windows is not None
    for _ in range(40):
        state.windows.observe(2, 1)
    assert state.choose("model", costs(), 16, USUAL) == NONE
    state.observe(0, 0, PROBE_EVERY)
    assert state.choose("model", costs(), 16, USUAL).tokens == 2


def test_a_new_request_begins_with_what_others_have_seen() -> None:
    usual = Windows()
    for _ in range(60):
        usual.observe(3, 1)
    assert DraftState(("model",)).choose("model", costs(), 16, usual) == NONE


def test_the_least_chance_stays_within_reason() -> None:
    free = choose_chance(Windows(2.0, 3.0), costs(token=0.0, draft=0.0)).least
    dear = choose_chance(Windows(0.1, 9.0), costs(token=0.5, draft=0.5, step=5.0)).least
    assert (free, dear) == CHANCES

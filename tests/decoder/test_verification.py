from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from engine.contract.sampling import Sampling
from engine.decoder.verification import Verdict, verify
from stages.sampling import Sampler


def test_without_drafts_the_target_decides() -> None:
    assert verify([], [7]) == Verdict(tokens=(7,), accepted=0, checked=0, onward=True)


def test_all_drafts_hold_and_the_targets_next_token_comes_on_top() -> None:  # B06
    assert verify([1, 2, 3], [1, 2, 3, 4]) == Verdict(tokens=(1, 2, 3, 4), accepted=3, checked=3, onward=True)


def test_the_first_draft_fails_and_the_targets_token_takes_its_place() -> None:  # B17
    assert verify([9, 2, 3], [1, 2, 3, 4]) == Verdict(tokens=(1,), accepted=0, checked=1, onward=False)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_follows_the_first_draft_that_fails_is_void_even_where_it_agrees(at: int) -> None:
    drafts = [1, 2, 3]
    drafts[at] = 99
    verdict = verify(drafts, [1, 2, 3, 4])
    assert verdict == Verdict(tokens=(1, 2, 3)[: at + 1], accepted=at, checked=at + 1, onward=False)


def test_a_window_behind_the_row_stays_good_when_its_first_token_was_guessed_right() -> None:
    assert verify([1, 2, 3, 4], [1, 2, 3]) == Verdict(tokens=(1, 2, 3), accepted=3, checked=3, onward=True)


def test_a_window_behind_the_row_is_void_when_its_first_token_was_guessed_wrong() -> None:
    assert verify([1, 2, 9, 4], [1, 2, 3]) == Verdict(tokens=(1, 2, 3), accepted=2, checked=3, onward=False)


def test_a_row_without_drafts_of_its_own_confirms_a_window_behind_it() -> None:
    assert verify([1, 2], [1]) == Verdict(tokens=(1,), accepted=1, checked=1, onward=True)


@pytest.mark.parametrize(("drafts", "target"), [([], []), ([1], [1, 2, 3])])
def test_numbers_that_cannot_be_are_refused(drafts: list[int], target: list[int]) -> None:
    with pytest.raises(ValueError, match="target tokens"):
        verify(drafts, target)


P = np.array([0.5, 0.3, 0.15, 0.05])  # the target's distribution; with top_p = 0.9 and T = 0.7 it becomes:
NUCLEUS = np.where(P >= 0.15, P ** (1 / 0.7), 0.0) / (P[:3] ** (1 / 0.7)).sum()
Q = np.array([0.1, 0.2, 0.3, 0.4])


def sample(distribution: np.ndarray, seed: int, position: int) -> int:
    """Gumbel noise keyed by seed and position: the token depends on nothing else (D5)."""
    noise = np.random.default_rng((seed, position)).gumbel(size=4)
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(distribution) + noise))


DRAFTS: dict[str, Callable[[int, int], int]] = {
    "greedy": lambda seed, position: int(P.argmax()),
    "sampled from another distribution": lambda seed, position: sample(Q, seed + 10_000_000, position),
    "sampled with the same noise": lambda seed, position: sample(Q, seed, position),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_do_not_change_the_distribution_of_sampled_tokens(name: str) -> None:  # B08
    draws, first, second = 4000, Counter[int](), Counter[int]()
    for seed in range(draws):
        own = [sample(NUCLEUS, seed, position) for position in range(2)]
        verdict = verify([DRAFTS[name](seed, 0)], own)
        tokens = verdict.tokens if len(verdict.tokens) == 2 else (*verdict.tokens, own[1])  # the next step's
        first[tokens[0]] += 1
        second[tokens[1]] += 1
    for seen in (first, second):
        assert seen[3] == 0
        expected = NUCLEUS[:3] * draws
        chi_square = sum((seen[i] - expected[i]) ** 2 / expected[i] for i in range(3))
        assert chi_square < 13.8  # p = 0.001 with two degrees of freedom


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_the_coldest_target_says_its_likeliest_token_whatever_the_draft_likes(temperature: float) -> None:  # B09
    line = np.log(np.array([0.3, 0.5, 0.2], np.float32))
    for seed in range(200):
        how = Sampling(temperature=temperature, seed=seed)
        assert verify([0], [Sampler(np.arange(3)).draw(line, how, 7), 9]).tokens == (1,)


def test_a_greedy_target_replaces_the_drafts_favourite_by_its_own() -> None:  # B09
    target, favourite = int(np.array([0.3, 0.5]).argmax()), 0
    assert verify([favourite], [target, 9]).tokens == (1,)

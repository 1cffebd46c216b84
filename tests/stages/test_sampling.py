"""The sampler against the exact distribution, and against everything that must not change a sample."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.noise import gumbel, mix, noise_bits, spread
from engine.contract.sampling import Sampling
from engine.contract.side import RowSide
from stages.sampling import Sampler, adjusted

VOCABULARY = 48
DRAWS = 4000


def logits(size: int = VOCABULARY, seed: int = 1, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def probabilities(line: np.ndarray, how: Sampling) -> np.ndarray:
    """The distribution by its definition: sort everything, filter one after the other."""
    scaled = line.astype(np.float64) / how.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if how.top_k:
        order = order[: how.top_k]
    share = np.cumsum(weights[order]) / weights[order].sum()
    order = order[: int(np.searchsorted(share, how.top_p)) + 1] if how.top_p < 1 else order
    order = order[weights[order] >= how.min_p]
    found = np.zeros_like(weights)
    found[order] = weights[order] / weights[order].sum()
    return found


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic over cells of at least five expected draws, the rest pooled; degrees of freedom."""
    assert not counts[expected == 0].any()
    big = expected >= 5
    cells = [(counts[big], expected[big])]
    if expected[~big].sum() > 0:
        cells.append((counts[~big].sum(keepdims=True), expected[~big].sum(keepdims=True)))
    value = sum(float(((c - e) ** 2 / e).sum()) for c, e in cells)
    return value, sum(len(e) for _, e in cells) - 1


def critical(freedom: int, deviations: float = 4.0) -> float:
    """Wilson and Hilferty's approximation of the value exceeded with the probability of four standard deviations."""
    if freedom == 0:
        return 1e-9
    return freedom * (1 - 2 / (9 * freedom) + deviations * math.sqrt(2 / (9 * freedom))) ** 3


KINDS = {
    "temperature": Sampling(temperature=1.0),
    "hot": Sampling(temperature=1.9),
    "cold": Sampling(temperature=0.3),
    "top-k": Sampling(temperature=1.0, top_k=7),
    "top-p": Sampling(temperature=1.0, top_p=0.8),
    "min-p": Sampling(temperature=1.2, min_p=0.1),
    "all filters": Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
    "bias": Sampling(temperature=1.0, logit_bias={3: 2.0, 5: -100.0}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["seed", "position"])
def test_samples_have_the_exact_distribution(kind: str, by: str) -> None:
    how, sampler, line = KINDS[kind], Sampler(np.arange(VOCABULARY)), logits()
    side = RowSide(row=0, how=how, position=0, read=(1, 2, 30), said=(2, 7), times=(1, 3))
    line = adjusted(line, side, 0)
    counts = np.zeros(VOCABULARY)
    for i in range(DRAWS):
        seeded = Sampling(temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, min_p=how.min_p,
                          seed=i if by == "seed" else 5)  # fmt: skip
        counts[sampler.draw(line, seeded, 9 if by == "seed" else i)] += 1
    value, freedom = chi_square(counts, DRAWS * probabilities(line, how))
    assert value <= critical(freedom)


def test_the_chi_square_test_notices_a_small_error() -> None:
    sampler, line = Sampler(np.arange(VOCABULARY)), logits()
    counts = np.zeros(VOCABULARY)
    for i in range(DRAWS):
        counts[sampler.draw(line, Sampling(temperature=1.15, seed=i), 0)] += 1
    value, freedom = chi_square(counts, DRAWS * probabilities(line, Sampling(temperature=1.0)))
    assert value > critical(freedom)


@given(st.integers(0, 2**64 - 1), st.integers(0, 1 << 20), st.sampled_from([0.2, 1.0, 1.7]), st.integers(0, 50))
def test_looking_at_the_best_first_finds_what_looking_at_all_finds(
    seed: int, position: int, temperature: float, data: int
) -> None:
    line = logits(4000, data, 4.0)
    how = Sampling(temperature=temperature, seed=seed)
    best = (line - line.max()) * np.float32(1 / temperature)
    noise = gumbel(noise_bits(seed, position, spread(np.arange(4000))))
    assert Sampler(np.arange(4000)).draw(line, how, position) == int((best + noise).argmax())


@given(
    st.integers(0, 200),
    st.sampled_from([0, 1, 5, 300, 4000]),
    st.sampled_from([1.0, 0.999, 0.5, 0.01]),
    st.sampled_from([0.0, 1e-6, 0.05, 1.0]),
    st.sampled_from([0.1, 1.0, 2.0]),
)
def test_candidates_never_change_what_the_filters_leave(
    data: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    line = logits(2000, data, 5.0)
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    allowed = probabilities(line, how) > 0
    sampler = Sampler(np.arange(2000))
    drawn = {sampler.draw(line, Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=s), 0)
             for s in range(10)}  # fmt: skip
    assert all(allowed[token] for token in drawn)


def test_far_tokens_come_as_often_as_they_should() -> None:
    """A great many tokens below those looked at first have a good part of the mass together."""
    line = np.full(100_000, -11.0, np.float32)
    line[:2] = (0.0, -0.5)
    how = [Sampling(temperature=1.0, seed=seed) for seed in range(600)]
    sampler = Sampler(np.arange(len(line)))
    far = sum(sampler.draw(line, one, 3) > 1 for one in how)
    share = 1 - (1 + math.exp(-0.5)) / (1 + math.exp(-0.5) + (len(line) - 2) * math.exp(-11.0))
    assert abs(far - 600 * share) < 4 * math.sqrt(600 * share * (1 - share))


def test_noise_differs_between_seeds_positions_and_tokens_and_never_by_anything_else() -> None:
    tokens = spread(np.arange(1000))
    one = noise_bits(7, 3, tokens)
    assert np.array_equal(one, noise_bits(7, 3, tokens))
    assert np.array_equal(one[[5, 900]], noise_bits(7, 3, tokens[[5, 900]]))
    assert not np.array_equal(one, noise_bits(7, 4, tokens))
    assert not np.array_equal(one, noise_bits(8, 3, tokens))
    assert len({mix(i) for i in range(1000)}) == 1000


def test_noise_is_independent_from_position_to_position() -> None:
    tokens = spread(np.arange(20_000))
    noise = np.stack([gumbel(noise_bits(1, position, tokens)) for position in range(6)])
    correlation = np.corrcoef(noise) - np.eye(6)
    assert abs(correlation).max() < 5 / math.sqrt(20_000)
    assert abs(noise.mean() - np.euler_gamma) < 0.02


def test_temperature_zero_takes_the_likeliest_after_penalties() -> None:
    line = np.array([1.0, 3.0, 2.9], np.float32)
    side = RowSide(row=0, how=Sampling(frequency_penalty=0.2), position=4, said=(1,), times=(1,))
    assert Sampler(np.arange(3)).draw(adjusted(line, side, 0), side.how, 4) == 2


def by_hand(line: np.ndarray, how: Sampling, read: Sequence[int], said: Sequence[int]) -> np.ndarray:
    found = line.copy()
    for token in set(read) | set(said):
        found[token] = found[token] / how.repetition_penalty if found[token] > 0 else (
            found[token] * how.repetition_penalty
        )  # fmt: skip
    for token in set(said):
        found[token] -= how.presence_penalty + how.frequency_penalty * said.count(token)
    return found


def test_drafts_before_a_position_count_as_said() -> None:
    line, how = logits(), Sampling(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.7)
    side = RowSide(row=0, how=how, position=4, drafts=(9, 2, 9), read=(1, 2), said=(4,), times=(2,))
    for drafted in range(4):
        wanted = by_hand(line, how, (1, 2), [4, 4, *side.drafts[:drafted]])
        assert np.allclose(adjusted(line, side, drafted), wanted, atol=1e-6)


def test_a_grammar_s_mask_forbids_tokens_per_position() -> None:
    line, masks = logits(), np.zeros((2, 2), np.int32)
    masks[0, 1], masks[1, 0] = 1 << 3, -(1 << 31)  # token 35, token 31
    side = RowSide(row=0, how=Sampling(temperature=1.0), position=0, masks=masks)
    assert [int(adjusted(line, side, i).argmax()) for i in range(2)] == [35, 31]
    assert np.isfinite(adjusted(line, side, 0)).sum() == 1


def test_only_rows_with_wishes_differ_from_the_likeliest_and_rows_keep_their_places() -> None:
    lines = np.stack([logits(seed=i) for i in range(5)])
    how = Sampling(temperature=1.5, seed=3, logprobs=2)
    found = Sampler(np.arange(VOCABULARY)).choose(
        lines, np.array([1, 3, 0, 1], np.int32), [RowSide(row=1, how=how, position=20)]
    )
    sampler = Sampler(np.arange(VOCABULARY))
    assert found.tokens.tolist() == [
        int(lines[0].argmax()), *(sampler.draw(lines[1 + i], how, 20 + i) for i in range(3)), int(lines[4].argmax())
    ]  # fmt: skip
    assert [one is None for one in found.logprobs] == [True, False, False, False, True]


def test_logprobs_are_the_model_s_own() -> None:
    lines = logits()[None]
    how = Sampling(temperature=0.5, logit_bias={4: 100.0}, logprobs=3)
    found = Sampler(np.arange(VOCABULARY)).choose(lines, np.array([1]), [RowSide(row=0, how=how, position=0)])
    exact = lines[0].astype(np.float64) - np.log(np.exp(lines[0].astype(np.float64)).sum())
    known = found.logprobs[0]
    assert known is not None and found.tokens.tolist() == [4]
    assert known.token == pytest.approx(exact[4], abs=1e-5)
    assert known.top_ids == tuple(np.argsort(-exact)[:3].tolist())
    assert known.top == pytest.approx(np.sort(exact)[::-1][:3], abs=1e-5)


def test_a_draft_with_fewer_tokens_draws_the_same_token_where_it_has_it() -> None:
    """The noise is the token's, not the row's in the head: a narrow head agrees with a whole one (coupled drafting)."""
    line, kept = logits(2000, 3, 3.0), np.arange(0, 2000, 2)
    narrow, whole = Sampler(kept), Sampler(np.arange(2000))
    forbidden = line.copy()
    forbidden[1::2] = -np.inf
    for seed in range(50):
        how = Sampling(temperature=1.0, seed=seed)
        assert kept[narrow.draw(line[kept], how, 8)] == whole.draw(forbidden, how, 8)

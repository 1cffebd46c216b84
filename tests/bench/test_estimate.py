"""Medians of what was measured, and how well they are known."""

import pytest

from bench.estimate import estimate, estimate_ratio


def test_the_interval_holds_the_median_and_narrows_with_samples() -> None:
    few, many = estimate([1.0, 2.0, 3.0, 4.0, 9.0]), estimate([1.0, 2.0, 3.0, 4.0, 9.0] * 20)
    assert few.middle == many.middle == 3.0
    assert few.low <= few.middle <= few.high
    assert many.high - many.low < few.high - few.low


def test_an_estimate_is_the_same_every_time() -> None:
    assert estimate([0.9, 1.1, 1.3]) == estimate([0.9, 1.1, 1.3])


def test_ratios_are_of_pairs_not_of_medians() -> None:
    assert estimate_ratio([10.0, 1.0, 5.0], [5.0, 1.0, 10.0]).middle == 1.0
    with pytest.raises(ValueError):
        estimate_ratio([1.0, 2.0], [1.0])


def test_of_nothing_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="no samples"):
        estimate([])

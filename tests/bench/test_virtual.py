"""A fleet in virtual time obeys what can be worked out by hand."""

from dataclasses import replace

import pytest

from bench.curves import Curve
from bench.simulate import hop_seconds
from bench.virtual import DraftModel, Fleet, tokens_per_second

STAGE = Curve({1: 0.010, 2: 0.012, 32: 0.072}, {1: 0.010, 2: 0.011, 64: 0.073, 256: 0.3}, 0.0)
TWO = Fleet(stages=(STAGE, STAGE), hop=0.0)


def test_one_user_gets_a_token_per_loop() -> None:
    hop = 0.02
    prompt = 0.01 + 39 * 0.001  # two stages, from 1 to 40 tokens
    expected = 64 / (2 * prompt + 3 * hop + 63 * (2 * 0.010 + 3 * hop))
    assert tokens_per_second(replace(TWO, hop=hop), 1, 64) == pytest.approx(expected, rel=0.05)


def test_two_users_fill_two_stages() -> None:
    one, two = (tokens_per_second(TWO, users, 64) for users in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.1)


def test_a_hop_is_found_again_from_the_speed_of_one_user() -> None:
    speed = tokens_per_second(replace(TWO, hop=0.0019), 1, 64)
    assert hop_seconds(TWO.stages, speed, 64) == pytest.approx(0.0019, abs=1e-4)


def test_drafts_bring_more_over_slow_links_and_good_ones_more_than_bad_ones() -> None:
    far = replace(TWO, hop=0.05)
    plain = tokens_per_second(far, 1, 64)
    bad, good = (
        tokens_per_second(replace(far, draft=DraftModel(right=right, seconds=0.002)), 1, 64) for right in (0.3, 0.9)
    )
    assert plain < bad < good
    near = tokens_per_second(replace(TWO, draft=DraftModel(right=0.9, seconds=0.002)), 1, 64)
    assert good / plain > near / tokens_per_second(TWO, 1, 64)


def test_a_stage_with_twice_the_work_takes_twice_as_long() -> None:
    slow = Fleet(stages=(STAGE.times(2.0), STAGE.times(2.0)), hop=0.0)
    assert tokens_per_second(slow, 2, 64) == pytest.approx(tokens_per_second(TWO, 2, 64) / 2, rel=1e-6)

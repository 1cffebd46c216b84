import random

import pytest

from engine.decoder.steptime import USUAL, Line, StepTime, Work

REAL = Line(0.02, 0.003, 0.002, 4e-6)


def mixed(rng: random.Random) -> Work:
    rows = rng.randint(1, 8)
    return Work(rows, rows * 2 + rng.choice([0, 0, 16, 64]), rows * rng.randint(50, 2000))


def test_rows_tokens_and_context_are_told_apart_when_steps_differ() -> None:
    rng, model = random.Random(1), StepTime()
    for _ in range(400):
        work = mixed(rng)
        model.observe(work, REAL.of(work) * rng.uniform(0.95, 1.05))
    for _ in range(50):
        work = mixed(rng)
        assert model.line().of(work) == pytest.approx(REAL.of(work), rel=0.08)


def test_before_they_differ_the_usual_shape_answers_and_what_was_seen_is_right() -> None:
    model = StepTime()
    assert not model.known
    assert model.line() == USUAL
    for _ in range(20):
        model.observe(Work(1, 1, 100), 0.05)
    assert model.line().of(Work(1, 1, 100)) == pytest.approx(0.05, rel=0.02)
    assert 0.05 < model.line().of(Work(2, 2, 200)) < 0.1


def test_no_coefficient_is_negative_even_when_larger_steps_were_quicker() -> None:
    model = StepTime()
    for i in range(200):
        model.observe(Work(1 + i % 4, 2 + i % 4, 100), 0.05 - 0.005 * (i % 4))
    line = model.line()
    assert min(line.fixed, line.row, line.token, line.position) >= 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_is_followed(factor: float) -> None:
    rng, model = random.Random(2), StepTime()
    for speed in (1.0, factor):
        for _ in range(250):
            work = mixed(rng)
            model.observe(work, speed * REAL.of(work))
    work = Work(4, 8, 1000)
    assert model.line().of(work) == pytest.approx(factor * REAL.of(work), rel=0.1)


def test_one_step_that_hung_is_forgiven() -> None:
    model = StepTime()
    for i in range(100):
        model.observe(Work(2, 4, 100), 10.0 if i == 60 else 0.05)
    assert model.line().of(Work(2, 4, 100)) == pytest.approx(0.05, rel=0.1)

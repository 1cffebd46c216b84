import itertools

import pytest

from engine.contract.errors import UsageError
from export_tools.plan import Weights, even_plan, explicit_plan
from export_tools.split import slug_of


def largest(weights: Weights, plan: tuple[tuple[int, int], ...]) -> int:
    sizes = [sum(weights.layers[first:last]) for first, last in plan]
    sizes[0] += weights.embedding
    sizes[-1] += weights.head
    return max(sizes)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("embedding", "head"), [(0, 0), (7, 7), (0, 25), (30, 1)])
def test_no_other_plan_has_a_smaller_largest_stage(stages: int, embedding: int, head: int) -> None:
    weights = Weights((5, 3, 8, 2, 2, 9), embedding, head)
    plan = even_plan(weights, stages)
    others = [tuple(itertools.pairwise((0, *cuts, 6))) for cuts in itertools.combinations(range(1, 6), stages - 1)]
    assert plan in others
    assert largest(weights, plan) == min(largest(weights, other) for other in others)


@pytest.mark.parametrize("stages", [0, -1, 7])
def test_an_impossible_number_of_stages_is_refused(stages: int) -> None:
    with pytest.raises(UsageError, match="1 to 6 stages"):
        even_plan(Weights((1,) * 6, 0, 0), stages)


def test_explicit_layers_become_half_open_ranges() -> None:
    assert explicit_plan((18, 12), 30) == ((0, 18), (18, 30))


@pytest.mark.parametrize("counts", [(18, 11), (30, 0), (31, -1), (15, 15, 1)])
def test_explicit_layers_that_do_not_fit_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="together they must be 30"):
        explicit_plan(counts, 30)


@pytest.mark.parametrize(("name", "slug"), [("SmolLM2 135M/Instruct", "smollm2-135m-instruct"), ("é..x", "x")])
def test_a_slug_may_stand_in_a_subject(name: str, slug: str) -> None:
    assert slug_of(name) == slug


def test_a_name_without_letters_is_refused() -> None:
    with pytest.raises(UsageError, match="--name"):
        slug_of("***")

"""The report says what was measured, what was not, and where it falls short."""

from pathlib import Path

import pytest

from bench.paper import CLAIMS, Claim, parity
from bench.record import NotMeasuredError, Record, Results
from bench.report import claims_table, report, shortfalls

FAST = Claim("speed", "ours / theirs", "1.50", parity("paged", 40), wanted=1.5, why="a slow core")


def measured(folder: Path, ours: list[float], theirs: list[float]) -> Results:
    for name, samples in (("parity.paged", ours), ("parity.genai", theirs)):
        record = Record(name=name, params={"context": 40}, unit="tokens/s", samples=samples)
        record.append_to(folder / "parity.jsonl")
    return Results(folder)


@pytest.mark.parametrize(("ours", "said"), [([3.0, 3.0, 3.0], "reached"), ([2.0, 2.0, 2.0], "**short**")])
def test_a_claim_is_reached_or_falls_short(tmp_path: Path, ours: list[float], said: str) -> None:
    results = measured(tmp_path, ours, [2.0, 2.0, 2.0])
    assert said in "\n".join(claims_table([FAST], results))


def test_what_was_not_measured_is_said_first(tmp_path: Path) -> None:
    text = report(Results(tmp_path), [])
    before = text[: text.index("## The paper")]
    assert all(f"| {claim.what} | not measured |" in before for claim in CLAIMS)


def test_what_was_measured_again_counts_as_the_newest_says(tmp_path: Path) -> None:
    measured(tmp_path, [1.0], [2.0])
    results = measured(tmp_path, [4.0], [2.0])
    assert parity("paged", 40)(results).middle == 2.0


def test_a_shortfall_is_told_before_everything_else_and_what_reaches_is_not(tmp_path: Path) -> None:
    short = "| shard_parity | one shard / whole model, context 40 | 0.50 | 0.97 |"
    assert not any(line.startswith(short) for line in shortfalls(measured(tmp_path, [1.0], [1.0])))
    assert any(line.startswith(short) for line in shortfalls(measured(tmp_path, [0.5], [1.0])))


def test_a_question_without_a_record_names_its_bench(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match=r"python -m bench\.parity"):
        Results(tmp_path).samples("parity.paged", context=40)

from tests.faults.tally import outcomes, tally

GOOD = '<testcase classname="tests.faults.test_a" name="one" time="1.5"/>'
BAD = '<testcase classname="tests.faults.test_a" name="one" time="2.5"><failure/></testcase>'
LATE = '<testcase classname="tests.faults.test_a" name="one" time="0.5"><error/></testcase>'
SKIPPED = '<testcase classname="tests.faults.test_b" name="two" time="0"><skipped/></testcase>'


def rounds(*cases: str) -> tuple[list[str], bool]:
    return tally(outcomes(f"<testsuites><testsuite>{case}</testsuite></testsuites>") for case in cases)


def test_every_round_counts_and_one_failure_is_not_all_passed() -> None:
    lines, good = rounds(GOOD, BAD, GOOD + SKIPPED)
    assert lines == [
        "  2 of   3 passed,   2.5 s at most  test_a::one",
        "  0 of   0 passed,   0.0 s at most  test_b::two",
    ]
    assert not good


def test_a_test_that_fails_on_leaving_has_failed() -> None:
    assert rounds(GOOD + LATE) == (["  0 of   1 passed,   2.0 s at most  test_a::one"], False)


def test_nothing_at_all_is_no_success() -> None:
    assert rounds() == ([], False)
    assert rounds(GOOD)[1]

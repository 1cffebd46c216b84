"""How often each test has passed: `python -m tests.faults.tally FOLDER` reads the JUnit reports of several rounds."""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

Outcome = tuple[str, float]  # "passed", "failed" or "skipped"; seconds


def outcomes(report: str) -> dict[str, Outcome]:
    """By test, of one round."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        bad = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
        before, seconds = found.get(name, ("", 0.0))  # an error on leaving is a second entry
        worst = "failed" if "failed" in (before, outcome) else outcome
        found[name] = worst, seconds + float(case.get("time", 0))
    return found


def tally(rounds: Iterable[dict[str, Outcome]]) -> tuple[list[str], bool]:
    """One line for each test, those that failed first; whether every test passed wherever it ran."""
    by_test: dict[str, list[Outcome]] = defaultdict(list)
    for one in rounds:
        for name, outcome in one.items():
            by_test[name].append(outcome)
    rows: list[tuple[bool, str, str]] = []
    for name, all_of_it in by_test.items():
        ran = [(outcome, seconds) for outcome, seconds in all_of_it if outcome != "skipped"]
        passed = sum(outcome == "passed" for outcome, _ in ran)
        longest = max((seconds for _, seconds in ran), default=0.0)
        rows.append((passed == len(ran), name, f"{passed:3} of {len(ran):3} passed, {longest:5.1f} s at most  {name}"))
    return [line for _, _, line in sorted(rows)], bool(rows) and all(good for good, _, _ in rows)


def main(folder: Path) -> int:
    """Print it; 1 when something failed, or a round left no report."""
    reports = [path.read_text() for path in sorted(folder.glob("*.xml"))]
    lines, good = tally(map(outcomes, reports))
    print(*lines, f"{len(reports)} rounds: {'all passed' if good else 'NOT all passed'}", sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""From everything that was measured to bench/results/REPORT.md and its plots; measures nothing itself.

python -m bench.report
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.estimate import Estimate
from bench.paper import BEYOND, CLAIMS, ELSEWHERE, Claim
from bench.plots import draw
from bench.record import RESULTS, NotMeasuredError, Results

Row = Sequence[object]


def found(claim: Claim, results: Results) -> Estimate | None:
    """None when it was not measured."""
    try:
        return claim.ours(results)
    except NotMeasuredError:
        return None


def reached(claim: Claim, ours: Estimate) -> bool | None:
    """None: nothing to reach."""
    if claim.wanted is None:
        return None
    return round(ours.middle, 2) <= claim.wanted if claim.lower else round(ours.middle, 2) >= claim.wanted


def table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    yield "| " + " | ".join(map(str, head)) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def verdict(claim: Claim, ours: Estimate | None) -> str:
    if ours is None:
        return "not measured"
    good = reached(claim, ours)
    return "" if good is None else "reached" if good else "**short**"


def claims_table(claims: Sequence[Claim], results: Results) -> Iterator[str]:
    rows: list[Row] = []
    for claim in claims:
        ours = found(claim, results)
        wanted = "" if claim.wanted is None else f"{'≤' if claim.lower else '≥'} {claim.wanted:g}"
        shown = "" if ours is None else f"{ours}{'' if claim.unit == 'times' else ' ' + claim.unit}"
        rows.append((claim.table, claim.what, claim.theirs, shown, wanted, verdict(claim, ours)))
    yield from table(("table", "what", "paper", "ours", "wanted", ""), rows)


def shortfalls(results: Results) -> Iterator[str]:
    """What was wanted and not reached, and what was not measured, first."""
    rows: list[Row] = []
    for claim in (*CLAIMS, *BEYOND):
        ours = found(claim, results)
        if ours is None:
            rows.append((claim.table, claim.what, "not measured", "", ""))
        elif reached(claim, ours) is False:
            rows.append((claim.table, claim.what, ours, claim.wanted, claim.why))
    yield from table(("table", "what", "ours", "wanted", "why"), rows)


def milliseconds(results: Results) -> Iterator[str]:
    """First tokens, recovery, hops."""
    rows: list[Row] = []
    for size in (10, 100, 500, 1000, 2000):
        for what in ("cold", "warm"):
            for record in results.all("users.ttft", size=size, what=what)[-1:]:
                rows.append((f"first token, {size:,} tokens, {what}", _median(record)))
    for record in results.all("standby.pause"):
        rows.append((f"stage with a standby, {record['params']['what']}, to the next token", _median(record, 1e3)))
    for carries in ("activations, float32", "activations, float16", "tokens", "10 likeliest", "all logits"):
        for record in results.all("wire.broker", carries=carries, rows=8, hidden=4096)[-1:]:
            bare = results.samples("wire.tcp", carries=carries, rows=8, hidden=4096)
            more = statistics.median(record["samples"]) - statistics.median(bare)
            rows.append((f"8 rows of 4,096: {carries}, through the broker", f"{_median(record)}, {more:.2f} over TCP"))
    yield from table(("what", "median"), rows)


def _median(record: dict[str, Any], factor: float = 1.0) -> str:
    return f"{statistics.median(record['samples']) * factor:,.2f} ms ({len(record['samples'])} samples)"


def simulated(results: Results) -> Iterator[str]:
    checks = {r["params"]["what"]: r for r in results.all("simulate.check")}
    rows = [
        (what, f"{r['params']['measured']:.1f}", f"{r['samples'][0]:.1f}", f"{_error(r):+.0%}")
        for what, r in checks.items()
    ]
    yield "Where it can be checked:"
    yield ""
    yield from table(("two stages", "measured, tok/s", "simulated", "error"), rows)
    yield "Fleets that are not here, a model of 64 times the demo model's work; tokens/s of all users; not measured:"
    yield ""
    fleets = {(r["params"]["stages"], r["params"]["hop_ms"]): r["samples"] for r in results.all("simulate.fleet")}
    head = ("stages", "ms a hop", "1 user", "as many as stages", "four each", "four each, drafts")
    yield from table(head, [(*key, *(f"{speed:.1f}" for speed in speeds)) for key, speeds in fleets.items()])


def _error(record: dict[str, Any]) -> float:
    return record["samples"][0] / record["params"]["measured"] - 1


def noise(results: Results) -> Iterator[str]:
    """Which measurements were disturbed."""
    rows: list[Row] = []
    newest: dict[str, dict[str, Any]] = {record["name"]: record for record in results.records}
    for name, record in sorted(newest.items()):
        quiet = record["params"].get("quiet")
        calm = f"{sum(quiet)} of {len(quiet)} rounds" if isinstance(quiet, list) and quiet else "not watched"
        day = time.strftime("%Y-%m-%d", time.gmtime(record["at"]))
        rows.append((name, day, record["commit"], record["processor"], record["versions"]["openvino"], calm))
    yield from table(("measurement", "day", "commit", "processor", "openvino", "quiet"), rows)


def report(results: Results, plots: Sequence[Path]) -> str:
    lines = [
        "# What was measured",
        "",
        "Written by `python -m bench.report` from the raw samples beside it; `make bench` measures all of it again.",
        "Medians, in brackets intervals of 95 % (bootstrap); ratios are of the same round. Speeds are of SmolLM2-135M",
        "on two cores of a shared virtual machine: hold ratios beside each other, never tokens per second.",
        "",
        "## Where we fall short",
        "",
        *shortfalls(results),
        "## The paper, table by table",
        "",
        *claims_table(CLAIMS, results),
        "Not measured here:",
        "",
        *(f"- {name}: {why}" for name, why in ELSEWHERE.items()),
        "",
        "## Beyond the paper",
        "",
        *claims_table(BEYOND, results),
        *milliseconds(results),
        "## Simulated",
        "",
        *simulated(results),
        "## Plots",
        "",
        *(f"![{plot.stem}]({plot.name})" for plot in plots),
        "",
        "## Where and how calmly",
        "",
        *noise(results),
    ]
    return "\n".join(lines)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = Results()
    path = RESULTS / "REPORT.md"
    path.write_text(report(results, draw(results, RESULTS)))
    print(path)


if __name__ == "__main__":
    main()

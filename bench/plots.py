"""The plots of the report. What was not measured is not drawn."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.figure import Figure

from bench.estimate import Estimate, estimate
from bench.load import KINDS
from bench.paper import HOPS_MS, speculation, two_nodes, users, wan
from bench.record import NotMeasuredError, Results

COUNTS = (1, 2, 4, 8, 16, 32)
WAYS = ("groups", "speculation", "one user, speculation", "speculation, ahead")
SETTINGS = ("K=1", "K=2", "K=3", "K=5", "adaptive", "adaptive + lookup")


def _bars(axes: Any, at: list[float], found: list[Estimate], label: str, width: float) -> None:
    middles = [one.middle for one in found]
    spread = [[one.middle - one.low for one in found], [one.high - one.middle for one in found]]
    axes.bar(at, middles, width, yerr=spread, capsize=2, label=label)


def progression(results: Results, axes: Any) -> None:
    steps = {
        "whole model,\none user": None,
        "two stages,\none user": two_nodes(1, "off"),
        "two users": two_nodes(2, "off"),
        "two users,\ndrafts": two_nodes(2, "on"),
        "eight users": two_nodes(8, "off"),
    }
    found = [Estimate(1, 1, 1, 1) if way is None else way(results) for way in steps.values()]
    _bars(axes, list(range(len(found))), found, "ours", 0.6)
    axes.set_xticks(range(len(found)), list(steps))
    axes.set_ylabel("times the whole model's single user")


def sweep(results: Results, axes: Any) -> None:
    width = 0.8 / len(SETTINGS)
    for number, setting in enumerate(SETTINGS):
        found = [speculation(setting, (kind,))(results) for kind in KINDS]
        _bars(axes, [i + number * width for i in range(len(KINDS))], found, setting, width)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks([i + 0.4 for i in range(len(KINDS))], KINDS, rotation=20)
    axes.set_ylabel("times without drafts, one node")


def links(results: Results, axes: Any) -> None:
    for way in WAYS:
        found = [wan(ms, way)(results).middle for ms in HOPS_MS]
        axes.plot(HOPS_MS, found, marker="o", label=way)
    axes.set_xlabel("ms a hop")
    axes.set_ylabel("times naive")


def many_users(results: Results, axes: Any) -> None:
    found = [users(count)(results) for count in COUNTS]
    _bars(axes, list(range(len(COUNTS))), found, "two one-core workers", 0.6)
    bound = results.latest("users.throughput", what="pipeline", size=16, profile="fast")["params"].get("bound", {})
    if bound:
        axes.plot(range(len(COUNTS)), [bound[str(count)] for count in COUNTS], "k_", markersize=24, label="bound")
    axes.set_xticks(range(len(COUNTS)), [str(count) for count in COUNTS])
    axes.set_xlabel("users")
    axes.set_ylabel("times ContinuousBatchingPipeline on one core")


def first_token(results: Results, axes: Any) -> None:
    sizes = (10, 100, 500, 1000, 2000)
    for what in ("cold", "warm"):
        found = [estimate(results.samples("users.ttft", size=size, what=what)).middle for size in sizes]
        axes.plot(sizes, found, marker="o", label={"cold": "unknown", "warm": "asked before"}[what])
    axes.set_yscale("log")
    axes.set_xlabel("tokens of the prompt")
    axes.set_ylabel("first token, ms")


PLOTS: dict[str, Callable[[Results, Any], None]] = {
    "progression": progression,
    "speculation": sweep,
    "links": links,
    "users": many_users,
    "first-token": first_token,
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes a PNG per plot whose measurements are there."""
    drawn: list[Path] = []
    for name, plot in PLOTS.items():
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes: Any = figure.subplots()
        with suppress(NotMeasuredError):
            plot(results, axes)
            axes.set_title(name)
            axes.legend(fontsize="small")
            figure.savefig(path := folder / f"{name}.png", dpi=100)
            drawn.append(path)
    return drawn

"""Alert rules and dashboard ask only for figures that exist; promtool and, for rules, real numbers agree."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.test_metrics import METRICS

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
PROMETHEUS, DASHBOARD = DEPLOY / "prometheus", DEPLOY / "grafana" / "shardline.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus); .ci/run gets it")


def series() -> set[str]:
    """Every name that can be asked for."""
    names: set[str] = set()
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


def board() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def expressions() -> Iterator[str]:
    for panel in board()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"] for variable in board()["templating"]["list"] if variable["type"] == "query")


def asked_for(text: str) -> set[str]:
    return set(re.findall(r"shardline_[a-z0-9_]+", text))


def promtool(*words: str | Path, cwd: Path) -> str:
    assert PROMTOOL
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dashboard_asks_only_for_figures_that_exist() -> None:
    asked = asked_for(" ".join(expressions()))
    assert len(asked) > 30
    assert not asked - series()


def test_the_alerts_ask_only_for_figures_that_exist() -> None:
    text = "\n".join(re.sub(r"#.*", "", line) for line in (PROMETHEUS / "alerts.yml").read_text().splitlines())
    asked = asked_for(text)
    assert len(asked) >= 10
    assert not asked - series()


def test_panels_have_places_of_their_own_and_a_title_each() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


@needs_promtool
def test_promtool_takes_rules_and_configuration() -> None:
    assert "10 rules found" in promtool("check", "rules", "alerts.yml", cwd=PROMETHEUS)
    promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)


@needs_promtool
def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    found = [text.replace("$__rate_interval", "1m") for text in expressions() if not text.startswith("label_values")]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(found)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(found)} rules found" in promtool("check", "rules", "rules.yml", cwd=tmp_path)


def firing(when: str, *alerts: str) -> dict[str, Any]:
    """What promtool should find at that time: just these."""
    found = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    return {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": when, "exp_samples": found}


@needs_promtool
def test_alerts_fire_when_they_should_and_bubbles_are_what_they_should_be(tmp_path: Path) -> None:
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    [bubble] = [text for text in expressions() if "active_seconds" in text]
    labels = 'pipeline="default/m"'
    worker = f'{labels},stage="0",process="a:1"'
    tests = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [
                    {"series": "shardline_monitor_connected", "values": "1x60"},
                    {"series": f"shardline_pipeline_up{{{labels}}}", "values": "1x6 0x54"},
                    {"series": f"shardline_dead_letters{{{labels}}}", "values": "2x60"},
                    {"series": f"shardline_stage_busy_seconds_total{{{worker}}}", "values": "0+3x60"},
                    {"series": f'shardline_active_seconds_total{{{labels},process="b:2"}}', "values": "0+5x60"},
                ],
                "promql_expr_test": [
                    firing("30s"),
                    firing("3m", "ShardlinePipelineDown"),
                    {
                        "expr": bubble.replace("$__rate_interval", "1m").replace("$pipeline", ".*"),
                        "eval_time": "5m",
                        "exp_samples": [{"labels": '{pipeline="default/m",stage="0"}', "value": 0.4}],
                    },
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    promtool("test", "rules", "tests.yml", cwd=tmp_path)

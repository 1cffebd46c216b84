"""The table of reported cases names tests that exist, and each case once."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
LINES = re.findall(r"^\| ([A-D]\d\d) \| [^|]+ \| ([^|]+) \|$", (TESTS / "CASES.md").read_text(), re.MULTILINE)


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_case_has_one_line_with_tests_or_what_it_waits_for() -> None:
    cases = [case for case, _ in LINES]
    assert cases == sorted(set(cases)) and len(cases) > 50
    assert not [case for case, tests in LINES if "::" not in tests and not tests.startswith("waits for ")]


def test_every_test_of_the_table_exists() -> None:
    named = [name for _, tests in LINES for name in re.findall(r"([\w/]+\.py)::(\w+)", tests)]
    assert len(named) > 60
    assert not [f"{file}::{name}" for file, name in named if name not in functions_of(TESTS / file)]

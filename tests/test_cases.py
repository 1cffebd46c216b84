"""The tables of reported cases and of faults name tests that exist, and each case once."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLES = {"CASES.md": (50, 60), "FAULTS.md": (20, 40)}  # cases and tests at least
tables = pytest.mark.parametrize("table", TABLES)


@cache
def lines_of(table: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| ([A-F]\d\d) \| [^|]+ \| ([^|]+) \|$", (TESTS / table).read_text(), re.MULTILINE)


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@tables
def test_every_case_has_one_line_with_tests_or_what_it_waits_for(table: str) -> None:
    cases = [case for case, _ in lines_of(table)]
    assert cases == sorted(set(cases)) and len(cases) > TABLES[table][0]
    assert not [case for case, tests in lines_of(table) if "::" not in tests and not tests.startswith("waits for ")]


@tables
def test_every_test_of_the_table_exists(table: str) -> None:
    named = [name for _, tests in lines_of(table) for name in re.findall(r"([\w/]+\.py)::(\w+)", tests)]
    assert len(named) > TABLES[table][1]
    assert not [f"{file}::{name}" for file, name in named if name not in functions_of(TESTS / file)]

"""docs/RULES.md and the tests keep each other honest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import parse

ROOT = Path(__file__).resolve().parents[2]
STATUSES = {"finished", "partly", "planned"}
# First and last number of every area.
AREAS = {
    "M": (1, 15),
    "F": (1, 6),
    "P": (0, 27),
    "Y": (1, 9),
    "L": (1, 2),
    "C": (1, 3),
    "S": (1, 2),
}

_ROW = re.compile(r"^\| (?P<rule>[A-Z][0-9]+) \| (?P<status>[a-z]+) \| (?P<text>.+) \|$", re.M)
# "M7: …", "M2, M8: …" or "M2 and M8: …" at the beginning of a docstring.
_CITED = re.compile(r"^(?P<rules>[A-Z][0-9]+(?:(?:, | and )[A-Z][0-9]+)*):")


def rules_in(page: str) -> list[tuple[str, str]]:
    return [(match["rule"], match["status"]) for match in _ROW.finditer(page)]


def cited_in(docstring: str | None) -> list[str]:
    match = _CITED.match(docstring or "")
    return re.findall(r"[A-Z][0-9]+", match["rules"]) if match else []


@cache
def citations() -> list[tuple[str, str]]:
    """(rule, test) for every rule that a test's docstring begins with."""
    return list(_citations())


def _citations() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_test and node.name.lower().startswith("test"):
                for rule in cited_in(ast.get_docstring(node)):
                    yield rule, f"{path.relative_to(ROOT)}::{node.name}"


PAGE = rules_in((ROOT / "docs" / "RULES.md").read_text(encoding="utf-8"))


def test_the_page_has_every_rule_once() -> None:
    expected = [
        f"{area}{n}" for area, (first, last) in AREAS.items() for n in range(first, last + 1)
    ]
    assert sorted(rule for rule, _ in PAGE) == sorted(expected)


def test_every_rule_has_a_status() -> None:
    assert {status for _, status in PAGE} <= STATUSES


def test_every_rule_that_is_done_is_proven() -> None:
    """A test's docstring begins with it."""
    done = {rule for rule, status in PAGE if status != "planned"}
    assert done - {cited for cited, _ in citations()} == set()


def test_only_rules_that_exist_are_cited() -> None:
    known = {rule for rule, _ in PAGE}
    assert [citation for citation in citations() if citation[0] not in known] == []


@pytest.mark.parametrize(
    ("docstring", "rules"),
    [
        ("M7: a ping is never handed out.", ["M7"]),
        ("M2, M8: both.", ["M2", "M8"]),
        ("M2 and M8: both.", ["M2", "M8"]),
        ("As M7 says: nothing.", []),
        ("M7 without a colon", []),
        (None, []),
    ],
)
def test_a_citation_stands_at_the_beginning(docstring: str | None, rules: list[str]) -> None:
    assert cited_in(docstring) == rules

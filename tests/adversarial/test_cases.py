"""docs/HOSTILE_INPUTS.md numbers the cases; each number is in the name or id of a test."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.encoding.envelope import Reason
from twinbus.mover.planning.chunk_plan import POISON_REASONS

DOCS = Path(__file__).parents[2] / "docs"
PAIRING = DOCS / "PAIRING.md"
HOSTILE_INPUTS = DOCS / "HOSTILE_INPUTS.md"

_ROW = re.compile(r"^\| ([0-9]+) \| ", re.MULTILINE)


def test_every_case_has_a_test() -> None:
    listed = [int(number) for number in _ROW.findall(HOSTILE_INPUTS.read_text(encoding="utf-8"))]
    assert listed == sorted(set(listed)), "the numbers of the page rise, and each stands once"
    named: set[int] = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named |= {int(number) for number in re.findall(r"\bcase-([0-9]+)\b", text)}
        named |= {int(number) for number in re.findall(r"\bdef test_case_([0-9]+)_", text)}
    assert sorted(set(listed) - named) == [], "cases on the page without a test"
    assert sorted(named - set(listed)) == [], "cases with a test that are not on the page"


def test_every_reason_of_a_dead_letter_is_documented() -> None:
    """Y4: stable names, for people and programs."""
    text = PAIRING.read_text(encoding="utf-8")
    reasons = {*map(str, Reason), *POISON_REASONS.values()}
    assert sorted(each for each in reasons if f"`{each}`" not in text) == []

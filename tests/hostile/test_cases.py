"""The hostile cases are numbered, and every number has a test that carries it in its name or id."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.core.chunk import POISON_REASONS
from twinbus.core.envelope import Reason

PAIRING = Path(__file__).parents[2] / "docs" / "PAIRING.md"

# The list has no case 21, and none that is called 117.
NUMBERS = {*range(1, 21), *range(22, 117), 118}


def test_every_case_has_a_test() -> None:
    named: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named |= {int(number) for number in re.findall(r"\bcase-([0-9]+)\b", text)}
        named |= {int(number) for number in re.findall(r"\bdef test_case_([0-9]+)_", text)}
    assert sorted(NUMBERS - named) == []


def test_every_reason_of_a_dead_letter_is_documented() -> None:
    """Y4: stable names, for people and programs."""
    text = PAIRING.read_text(encoding="utf-8")
    reasons = {*map(str, Reason), *POISON_REASONS.values()}
    assert sorted(each for each in reasons if f"`{each}`" not in text) == []

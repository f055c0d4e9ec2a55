"""The hostile cases are numbered, and every number has a test that carries it in its name or id."""

from __future__ import annotations

import re
from pathlib import Path

# The syphon comes with its feature.
NUMBERS = {*range(1, 21), *range(22, 111)}


def test_every_case_has_a_test() -> None:
    named: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named |= {int(number) for number in re.findall(r"\bcase-([0-9]+)\b", text)}
        named |= {int(number) for number in re.findall(r"\bdef test_case_([0-9]+)_", text)}
    assert sorted(NUMBERS - named) == []

"""Bugs of fairness are caught by the harness of loud neighbours, which is content without one."""

from __future__ import annotations

from inspect import getmembers, isfunction
from pathlib import Path

import pytest

from verification.mutation.bite import watch
from verification.mutation.bug import Bug
from verification.mutation.bugs import fairness
from verification.mutation.harnesses.neighbours import Neighbours
from verification.mutation.registry import BUGS, FAIRNESS


@pytest.mark.parametrize("bug", FAIRNESS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_caught_by_the_check_that_names_it(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug.plant(monkeypatch)
    watched = watch(bug.harness, tmp_path, check=bug.check, rounds_max=5)
    assert watched.caught, f"{bug.name}: {watched.round_count} rounds, {watched.others}"


def test_without_a_bug_nobody_complains(tmp_path: Path) -> None:
    """M13: a quiet client beside crowds of loud ones."""
    assert watch(Neighbours(), tmp_path, check=None, rounds_max=8).others == []


def test_every_bug_that_can_be_planted_is() -> None:
    planted = {bug.plant for bug in BUGS}
    functions = [each for _, each in getmembers(fairness, isfunction)]
    own = [each for each in functions if each.__module__ == fairness.__name__]
    assert [each.__name__ for each in own if each not in planted] == []

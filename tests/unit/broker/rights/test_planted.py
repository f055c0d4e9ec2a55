"""The matrix sees rights that spread: bugs that are planted for it
(``verification/mutation/bugs/rights.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.mutation.bite import watch
from verification.mutation.bug import Bug
from verification.mutation.registry import RIGHTS_THAT_SPREAD

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", RIGHTS_THAT_SPREAD, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_right_that_spreads_is_seen(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """M14: by the check that is named for it."""
    bug.plant(monkeypatch)
    watched = watch(bug.harness, tmp_path, check=bug.check, rounds_max=bug.harness.rounds_max)
    assert watched.caught, f"{bug.name}: {watched.round_count} rounds, {watched.others}"

"""Planted bugs are caught by the checks that are named for them.

Here are those of the core, which take seconds. ``make teeth`` has all of them, over processes,
disks and Spark.
"""

from __future__ import annotations

from collections import Counter
from inspect import getmembers, isfunction
from pathlib import Path
from types import ModuleType

import pytest

from verification.mutation.__main__ import listed
from verification.mutation.bite import watch
from verification.mutation.bug import Bug, Harness, Layer
from verification.mutation.bugs import broker, catalogue, connector, costs, store, syphon
from verification.mutation.harnesses.administrative import Administrative
from verification.mutation.harnesses.costly import Costly
from verification.mutation.harnesses.crashes import CrashStates
from verification.mutation.harnesses.damages import Damages
from verification.mutation.harnesses.rotten import FlippedBits
from verification.mutation.harnesses.simulated import Simulated
from verification.mutation.planting import ROOT
from verification.mutation.registry import BUGS

# Those of the broker are planted by its own tests (entities, model).
QUICK = [
    bug
    for bug in BUGS
    if isinstance(
        bug.harness, Simulated | Damages | CrashStates | FlippedBits | Administrative | Costly
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_caught_by_the_check_that_names_it(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug.plant(monkeypatch)
    rounds_max = bug.harness.rounds_max
    watched = watch(bug.harness, tmp_path, check=bug.check, rounds_max=rounds_max)
    assert watched.caught, f"{bug.name}: {watched.round_count} rounds, {watched.others}"


@pytest.mark.parametrize(
    "harness", [Damages(), CrashStates(), Costly()], ids=lambda harness: harness.name
)
def test_without_a_bug_nobody_complains(harness: Harness, tmp_path: Path) -> None:
    """The simulation without bugs has a test of its own, with many more schedules."""
    assert watch(harness, tmp_path, check=None, rounds_max=15).others == []


def test_every_layer_and_every_kind_of_harness_has_planted_bugs() -> None:
    """At least five each of the broker, of the store and over processes; no name twice."""
    layers = Counter(bug.layer for bug in BUGS)
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 25
    assert layers[Layer.BROKER] >= 5
    assert layers[Layer.STORE] >= 5
    assert min(layers[layer] for layer in Layer) >= 3
    assert sum(bug.harness.has_processes for bug in BUGS) >= 5


@pytest.mark.parametrize(
    "module", [broker, catalogue, connector, costs, store, syphon], ids=lambda each: each.__name__
)
def test_every_bug_that_can_be_planted_is(module: ModuleType) -> None:
    planted = {bug.plant for bug in BUGS}
    functions = [each for _, each in getmembers(module, isfunction)]
    own = [each for each in functions if each.__module__ == module.__name__]
    assert [each.__name__ for each in own if each not in planted] == []


def test_the_guarantees_list_every_planted_bug() -> None:
    """``python -m verification.mutation --list`` prints what must stand there."""
    guarantees = (ROOT / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")
    assert "\n".join(listed(BUGS)) in guarantees

"""M8 at every operation of scripted work; `make crash` does all of what is sampled here."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from crash import disk_errors, faulty, stories
from crash.__main__ import main
from crash.tally import Wrong
from twinbus.broker.storage.interface import (
    PutChunk,
    PutScheduled,
    PutSeen,
    PutSessionState,
    Tombstone,
)
from twinbus.broker.storage.sqlite_writer import Writer

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SEED = 1


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: those that are to be killed are forks of it, and have no threads."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_a_kill_at_any_operation_loses_nothing() -> None:
    """M8: the process is killed at some hundred of the points where `make crash` kills it."""
    ran = run_python("-m", "crash", "--only", "kills", "--every", "60", "--workers", "1")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "control: synchronous=NORMAL caught in" in ran.stdout
    assert f"SEED={SEED} REPLAY: python -m crash --seed {SEED}" in ran.stdout


# Every step is committed one step later than it is acknowledged.
ONE_STEP_LATE = """
from crash import kills, stories
waiting = []
def late(store, step):
    waiting.append(step)
    if len(waiting) > 1:
        stories.take(store, waiting.pop(0))
kills.take = late
points = kills.points_of("single sends")[150:400:9]
found = kills.kill("single sends", points, 1).complaints
print(sorted({complaint.kind.value for complaint in found}))
"""


def test_a_store_that_acknowledges_before_it_has_written_is_seen() -> None:
    ran = run_python("-c", ONE_STEP_LATE)

    assert ran.stdout == "['lost']\n", ran.stderr


def sample(name: str, count: int) -> list[disk_errors.Fault]:
    faults = disk_errors.faults_of(name)
    return Random(f"{SEED} {name}").sample(faults, count)


@pytest.mark.parametrize("name", stories.NAMES)
def test_wherever_the_disk_fails_nothing_acknowledged_is_lost(name: str) -> None:
    """M8: whichever write or sync fails, nothing is acknowledged that is not there afterwards."""
    print(f"SEED={SEED} REPLAY: python -m crash --only errors --story '{name}'")

    assert disk_errors.fail(name, sample(name, 12), SEED).complaints == []


def test_a_store_that_goes_on_after_an_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: no retry-and-pretend."""
    monkeypatch.setattr(Writer, "require_working", lambda writer: None)

    found = disk_errors.fail("single sends", sample("single sends", 30), SEED)
    assert found.count(Wrong.CONTENT)


def test_the_stories_are_about_what_their_names_say() -> None:
    about = {
        "single sends": PutChunk,
        "batches": PutChunk,
        "topics": PutChunk,
        "sessions": PutSessionState,
        "scheduled": PutScheduled,
        "dead letters": PutChunk,
        "duplicates": PutSeen,
        "completing": Tombstone,
    }
    for name, kind in about.items():
        ops = [op for step in stories.story(name).steps for op in step]
        assert sum(isinstance(op, kind) for op in ops) >= 5, name
    topics = [op for step in stories.story("topics").steps for op in step]
    assert any(isinstance(op, PutChunk) and op.share is not None for op in topics)
    assert any(any(content["sessions"]) for content in stories.story("sessions").contents)
    kinds = {kind for name in stories.NAMES for kind in stories.operations_of(name)}
    assert kinds == {"create", "delete", "rename", "sync", "truncate", "write"}


def test_the_command_says_what_it_found_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "states", "--states", "50", "--workers", "1"]) == 0

    shown = capsys.readouterr().out
    command = "python -m crash --seed 1 --states 50 --every 1 --only states"
    assert shown.splitlines()[-1] == f"SEED=1 REPLAY: {command}"
    assert "crash states" in shown
    assert "control: synchronous=NORMAL caught in" in shown


def test_a_sync_that_fails_unheard_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: the files hold everything, because only a power cut would tell."""

    def unheard(file: Any, flags: int) -> None:
        with suppress(apsw.Error):
            file._plan.happens("sync")

    monkeypatch.setattr(faulty._FaultyFile, "xSync", unheard)
    kinds = enumerate(stories.operations_of("single sends"), start=1)
    syncs = [disk_errors.Fault(number, "EIO", False) for number, kind in kinds if kind == "sync"]
    found = disk_errors.fail("single sends", syncs, SEED).complaints
    assert "a sync failed, and nobody was told" in {each.text.rpartition(": ")[2] for each in found}

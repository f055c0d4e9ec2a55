"""M8 at every operation of scripted work; `make crash` does all of what is sampled here."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import apsw
import pytest

from twinbus.broker.storage.interface import (
    PutChunk,
    PutScheduled,
    PutSeen,
    PutSessionState,
    Tombstone,
)
from twinbus.broker.storage.sqlite_writer import Writer
from verification.crash_consistency import disk_errors, faulty, stories
from verification.crash_consistency.__main__ import main
from verification.crash_consistency.tally import Wrong

SEED = 1


def sample(name: str, count: int) -> list[disk_errors.Fault]:
    faults = disk_errors.faults_of(name)
    return Random(f"{SEED} {name}").sample(faults, count)


@pytest.mark.parametrize("name", stories.NAMES)
def test_wherever_the_disk_fails_nothing_acknowledged_is_lost(name: str) -> None:
    """M8: whichever write or sync fails, nothing is acknowledged that is not there afterwards."""
    print(
        f"SEED={SEED} REPLAY: python -m verification.crash_consistency "
        f"--only errors --story '{name}'"
    )

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
    command = (
        "python -m verification.crash_consistency --seed 1 --states 50 --every 1 --only states"
    )
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

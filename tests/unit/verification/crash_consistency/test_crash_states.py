"""M8, proven by crashing: thousands of imagined power cuts, each followed by a real recovery.

TWINBUS_CRASH_STATES   how many states in all (20,000 unless told)
TWINBUS_CRASH_SEED     the first seed; a failure prints the one to replay
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

import apsw
import pytest

from twinbus.broker.storage import sqlite_operations, sqlite_writer
from twinbus.broker.storage.interface import Op, PutChunk, PutSeen, PutSessionState
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.store_files import CommitMarker
from verification.crash_consistency.control import lose_commits
from verification.crash_consistency.power import PART, STATES_PER_RUN, cut_power, each_complaint
from verification.crash_consistency.recorded import commit_then_acknowledge, record
from verification.crash_consistency.tally import Tally, Wrong

STATES = int(os.environ.get("TWINBUS_CRASH_STATES", "20000"))
SEED = int(os.environ.get("TWINBUS_CRASH_SEED", "1"))

RUNS = max(1, STATES // STATES_PER_RUN)


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_no_crash_loses_an_acknowledged_commit(seed: int) -> None:
    """M8: a crash at any instant loses nothing acknowledged and repeats no sequence number."""
    command = f"TWINBUS_CRASH_SEED={seed} TWINBUS_CRASH_STATES={STATES_PER_RUN}"
    print(
        f"SEED={seed} REPLAY: {command} python -m pytest tests/unit/verification/crash_consistency"
    )

    assert cut_power(seed, min(STATES, STATES_PER_RUN)).complaints == []


def test_the_checker_sees_a_store_that_does_not_sync() -> None:
    """M8: with synchronous=NORMAL acknowledged commits are lost, and this suite would say so."""
    # When a store that leaves syncing to the checkpoint crashes
    found = lose_commits(SEED)

    # Then the checker finds lost commits, and plenty of them
    assert found.count(Wrong.LOST) > 20


def acknowledge_then_commit(
    store: SqliteStore, ops: list[Op], acknowledge: Callable[[], None]
) -> None:
    acknowledge()
    store.commit(ops)


def test_the_checker_sees_a_broker_that_acknowledges_too_early() -> None:
    """M8: acknowledging before the commit returns is a lie that some crash reveals."""
    assert cut_power(SEED, 200, acknowledge_then_commit).count(Wrong.LOST)


LATE: dict[str, Callable[[Op], bool]] = {
    "ids that were seen": lambda op: isinstance(op, PutSeen),
    "states of sessions": lambda op: isinstance(op, PutSessionState),
    "chunks of sessions": lambda op: isinstance(op, PutChunk) and op.row.session is not None,
    "chunks on sheets": lambda op: isinstance(op, PutChunk) and op.share is not None,
}


@pytest.mark.parametrize("what", LATE)
def test_the_checker_sees_a_commit_in_two_transactions(what: str) -> None:
    """M8: whatever comes a transaction later than the rest is missing after some crash."""
    is_late = LATE[what]

    def commit_in_two(store: SqliteStore, ops: list[Op], acknowledge: Callable[[], None]) -> None:
        late = [op for op in ops if is_late(op)]
        if len(late) == len(ops):
            # Nothing is left for the first one, which would not even get a number.
            late = []
        store.commit([op for op in ops if op not in late])
        if late:
            assert store._writer is not None
            cursor = store._writer._cursor
            cursor.execute("BEGIN IMMEDIATE")
            sqlite_operations.apply_ops(cursor, late, store.statistics().commit_number)
            cursor.execute("COMMIT")
        acknowledge()

    # The first one is enough; in the run of this seed it comes soon.
    seed = 11
    with closing(each_complaint(record(seed, commit_in_two), seed, 400, Tally(PART))) as found:
        complaint = next(found, None)
    assert complaint is not None
    assert complaint.kind in (Wrong.CONTENT, Wrong.REFUSED)


def test_the_checker_sees_a_mark_that_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: a mark written before its commit is durable would refuse a store that is whole."""
    # Given a store that writes the mark while the transaction is still open
    update_ledger = sqlite_operations.update_ledger

    def mark_early(cursor: apsw.Cursor, commit_number: int, *rest: Any) -> None:
        update_ledger(cursor, commit_number, *rest)
        marks[-1].record(commit_number)

    marks: list[CommitMarker] = []
    open_mark = CommitMarker.__init__

    def remember(mark: CommitMarker, *arguments: Any) -> None:
        open_mark(mark, *arguments)
        marks.append(mark)

    monkeypatch.setattr(CommitMarker, "__init__", remember)
    monkeypatch.setattr(sqlite_writer, "update_ledger", mark_early)
    run = record(SEED)
    monkeypatch.undo()

    # When it crashes, then some honest crash is taken for a loss
    found = each_complaint(run, SEED, 400, Tally(PART))
    assert any(complaint.kind is Wrong.REFUSED for complaint in found)


def test_a_recorded_run_does_what_the_crashes_are_about() -> None:
    """The stories contain creations, checkpoints, truncations, deletions and restarts."""
    run = record(SEED, commit_then_acknowledge)
    kinds = {type(entry).__name__ for entry in run.entries}
    history = run.history.values()
    assert any(any(content["seen"].values()) for content in history)
    assert any(any(content["sessions"].values()) for content in history)

    assert kinds == {
        "Write", "Truncate", "Sync", "Create", "Delete", "Rename", "SyncDirectory", "Begin",
        "Acknowledge", "MarkWrite",
    }  # fmt: skip

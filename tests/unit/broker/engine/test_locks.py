"""Lock tables: who holds what until when, and how little that takes."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.broker.engine.test_chunk import plain
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.locks import DEADLINES_SPARE, TOKEN, LockRun, LockTable


@pytest.fixture
def chunk() -> Chunk:
    return plain(8)


@pytest.fixture
def table() -> LockTable:
    return LockTable(Random(1))


def granted(
    table: LockTable, chunk: Chunk, start: int, count: int, until_s: float = 60.0
) -> LockRun:
    return table.grant(chunk, start, count, until_s, int(until_s * 1_000), None)


def test_a_token_finds_its_message_while_the_lock_lasts(table: LockTable, chunk: Chunk) -> None:
    """M2: the token is what counts."""
    run = granted(table, chunk, 2, 3, until_s=60.0)

    assert table.find(run.token(13), 59.9) == (run, 3)
    assert table.find(run.token(13), 60.0) is None


@pytest.mark.parametrize("seq", [0, 9, 11, 15, 18, 2**63])
def test_a_token_of_a_message_outside_its_run_is_worth_nothing(
    table: LockTable, chunk: Chunk, seq: int
) -> None:
    run = granted(table, chunk, 2, 3)

    assert table.find(TOKEN.pack(run.run_id, seq), 0.0) is None


@pytest.mark.parametrize("token", [b"", b"short", bytes(16), bytes(17)])
def test_a_made_up_token_is_worth_nothing(table: LockTable, chunk: Chunk, token: bytes) -> None:
    granted(table, chunk, 0, 8)

    assert table.find(token, 0.0) is None


def test_a_token_settles_once(table: LockTable, chunk: Chunk) -> None:
    """M2: a lock token settles at most once, also after the message is locked again."""
    # Given a message that was handed out, given back and handed out again
    first = granted(table, chunk, 0, 1)
    table.release(first, 0b1)
    second = granted(table, chunk, 0, 1)

    # Then the old token is void and the new one is not
    assert first.token(10) != second.token(10)
    assert table.find(first.token(10), 0.0) is None
    assert table.find(second.token(10), 0.0) == (second, 0)


def test_locks_that_ran_out_are_named_once(table: LockTable, chunk: Chunk) -> None:
    run = granted(table, chunk, 0, 4, until_s=60.0)
    table.release(run, 0b0010)

    assert list(table.expired(59.9)) == []
    assert list(table.expired(60.0)) == [(run, 0b1101)]
    assert list(table.expired(61.0)) == []
    assert chunk.locked == 0
    assert len(table) == 0
    assert table.next_deadline_s() is None


def test_a_renewed_lock_outlives_its_run(table: LockTable, chunk: Chunk) -> None:
    """M2: a renewal is for one message."""
    run = granted(table, chunk, 0, 3, until_s=60.0)

    table.renew(run, 1, deadline_s=90.0)

    assert list(table.expired(60.0)) == [(run, 0b101)]
    assert table.find(run.token(11), 89.9) == (run, 1)
    assert table.next_deadline_s() == 90.0
    assert list(table.expired(90.0)) == [(run, 0b010)]


def test_a_renewal_may_be_shorter_than_the_lock(table: LockTable, chunk: Chunk) -> None:
    """The queue's lock duration was lowered meanwhile: the new one holds."""
    run = granted(table, chunk, 0, 2, until_s=60.0)

    table.renew(run, 0, deadline_s=20.0)

    assert table.next_deadline_s() == 20.0
    assert list(table.expired(20.0)) == [(run, 0b01)]
    assert list(table.expired(60.0)) == [(run, 0b10)]


def test_a_thousand_renewals_are_one_deadline(table: LockTable, chunk: Chunk) -> None:
    run = granted(table, chunk, 0, 1, until_s=60.0)

    for second in range(1_000):
        table.renew(run, 0, deadline_s=60.0 + second)

    assert len(table._deadlines) == 1
    assert list(table.expired(60.0)) == []
    assert table.next_deadline_s() == 1_059.0


def test_settled_locks_take_no_room(table: LockTable, chunk: Chunk) -> None:
    """A fast receiver settles a million messages before the first of their locks would end."""
    held = granted(table, chunk, 7, 1)
    for _ in range(20 * DEADLINES_SPARE):
        table.release(granted(table, chunk, 0, 1), 0b1)

    assert len(table._deadlines) <= DEADLINES_SPARE + 3
    assert list(table.expired(60.0)) == [(held, 0b1000_0000)]

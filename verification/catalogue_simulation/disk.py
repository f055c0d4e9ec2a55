"""A store whose disk is full or fails when it is told to, and whose rows can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinbus.broker.storage.interface import EntityRow, Op, QueueCounters, Recovered
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreFailed, StoreFull


class Disk:
    """The store of one sequence, in memory or in a file."""

    def __init__(self, store: MemoryStore | SqliteStore) -> None:
        self.store = store
        self.is_full = False
        self.fails: str | None = None
        """``before`` or ``after`` writing: the namespace hears of a failed disk either way."""
        self.full_count = self.failed_count = self.refused_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def open(self) -> Recovered:
        return self.store.open()

    def commit(self, ops: Sequence[Op]) -> None:
        if self.is_full:
            self.full_count += 1
            raise StoreFull(path="simulated")
        if self.fails == "before":
            self._fail()
        try:
            self.store.commit(ops)
        except ValueError:
            self.refused_count += 1
            raise
        if self.fails == "after":
            self._fail()

    def _fail(self) -> None:
        self.failed_count += 1
        raise StoreFailed(path="simulated", detail="an input/output error")

    # -- behind the namespace's back --------------------------------------------------------

    def entity_rows(self) -> dict[int, EntityRow]:
        if isinstance(self.store, MemoryStore):
            return dict(self.store._entities.rows)
        connection = self.store._read_connection
        assert connection is not None
        rows = connection.execute("SELECT queue_id, path, kind, description_json FROM entity")
        return {row[0]: EntityRow(*row) for row in rows}

    def counters(self) -> dict[int, QueueCounters]:
        if isinstance(self.store, MemoryStore):
            return dict(self.store._counters.rows)
        connection = self.store._read_connection
        assert connection is not None
        sql = (
            "SELECT queue_id, next_seq, message_count, byte_count, deferred_count, scheduled_count"
            " FROM counters"
        )
        return {row[0]: QueueCounters(*row) for row in connection.execute(sql)}

"""One queue of the memory store: its rows and the orders in which they are asked for.

Rule 1: every change is a ``set_*`` that takes a key and a value (None: no row) and returns what
        was there before, so that undoing is setting it back.
Rule 2: indexes change only in here, together with their rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from twinbus.broker.store.port import (
    SEQ_MAX,
    ChunkRow,
    LoadedChunk,
    ScheduledRow,
    SeenRow,
    SessionBook,
    SharedBodySelection,
    session_state_bytes,
)
from twinbus.broker.store.sheets import packed_selection, select
from twinbus.broker.store.sorted_keys import SortedKeys

Run: TypeAlias = tuple[int, int]
State: TypeAlias = tuple[int, bool]
_Value = TypeVar("_Value")


class Undo:
    """The changes of one commit, in case that it has to be taken back."""

    def __init__(self) -> None:
        self._done: list[tuple[Callable[[Any, Any], Any], Any, Any]] = []

    def change(self, setter: Callable[[Any, Any], Any], key: Any, value: Any) -> None:
        self._done.append((setter, key, setter(key, value)))

    def roll_back(self) -> None:
        for setter, key, previous in reversed(self._done):
            setter(key, previous)


class Table(Generic[_Value]):
    """A dictionary that can be undone."""

    def __init__(self) -> None:
        self.rows: dict[Any, _Value] = {}

    def set(self, key: Any, value: _Value | None) -> _Value | None:
        previous = self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = value
        return previous


class MemoryQueueRows:
    """Everything that one queue has in store."""

    def __init__(self) -> None:
        self._chunks: dict[int, ChunkRow] = {}
        self._gone: dict[int, list[Run]] = {}
        self._shares: dict[int, SharedBodySelection] = {}
        self._states: dict[int, State] = {}
        self._scheduled: dict[int, ScheduledRow] = {}
        self._seen: dict[int, SeenRow] = {}
        self.session_states: dict[str, tuple[bytes, int]] = {}
        self._session_keys: dict[str, SortedKeys[int]] = {}
        self.chunk_keys: SortedKeys[int] = SortedKeys()
        self.expiry_keys: SortedKeys[tuple[int, int]] = SortedKeys()
        self.state_keys: SortedKeys[int] = SortedKeys()
        self.deferred_keys: SortedKeys[int] = SortedKeys()
        self.scheduled_keys: SortedKeys[int] = SortedKeys()
        self.due_keys: SortedKeys[tuple[int, int]] = SortedKeys()

    def set_chunk(self, first_seq: int, row: ChunkRow | None) -> ChunkRow | None:
        previous = self._chunks.pop(first_seq, None)
        if previous is not None:
            self.chunk_keys.remove(first_seq)
            if previous.session is not None:
                self._leave_session(previous.session, first_seq)
            if previous.expires_ms is not None:
                self.expiry_keys.remove((previous.expires_ms, first_seq))
        if row is not None:
            self._chunks[first_seq] = row
            self.chunk_keys.add(first_seq)
            if row.session is not None:
                self._session_keys.setdefault(row.session, SortedKeys()).add(first_seq)
            if row.expires_ms is not None:
                self.expiry_keys.add((row.expires_ms, first_seq))
        return previous

    def set_share(
        self, first_seq: int, share: SharedBodySelection | None
    ) -> SharedBodySelection | None:
        previous = self._shares.pop(first_seq, None)
        if share is not None:
            self._shares[first_seq] = share
        return previous

    def set_gone(self, first_seq: int, runs: list[Run] | None) -> list[Run] | None:
        previous = self._gone.pop(first_seq, None)
        if runs is not None:
            self._gone[first_seq] = runs
        return previous

    def set_state(self, seq: int, state: State | None) -> State | None:
        previous = self._states.pop(seq, None)
        if previous is not None:
            self.state_keys.remove(seq)
            if previous[1]:
                self.deferred_keys.remove(seq)
        if state is not None:
            self._states[seq] = state
            self.state_keys.add(seq)
            if state[1]:
                self.deferred_keys.add(seq)
        return previous

    def set_scheduled(self, seq: int, row: ScheduledRow | None) -> ScheduledRow | None:
        previous = self._scheduled.pop(seq, None)
        if previous is not None:
            self.scheduled_keys.remove(seq)
            self.due_keys.remove((previous.due_ms, seq))
        if row is not None:
            self._scheduled[seq] = row
            self.scheduled_keys.add(seq)
            self.due_keys.add((row.due_ms, seq))
        return previous

    def set_seen(self, page: int, row: SeenRow | None) -> SeenRow | None:
        previous = self._seen.pop(page, None)
        if row is not None:
            self._seen[page] = row
        return previous

    def set_session_state(
        self, session: str, noted: tuple[bytes, int] | None
    ) -> tuple[bytes, int] | None:
        previous = self.session_states.pop(session, None)
        if noted is not None:
            self.session_states[session] = noted
        return previous

    def _leave_session(self, session: str, first_seq: int) -> None:
        keys = self._session_keys[session]
        keys.remove(first_seq)
        if not len(keys):
            del self._session_keys[session]

    def session_keys(self, session: str) -> SortedKeys[int]:
        return self._session_keys.get(session) or SortedKeys()

    def state_bytes(self) -> int:
        """What the states of sessions take of the queue's quota."""
        return sum(
            session_state_bytes(session, state)
            for session, (state, _at_ms) in self.session_states.items()
        )

    def session_books(self) -> list[SessionBook]:
        """The sessions with messages, in the order of their oldest chunk."""
        found: dict[str, SessionBook] = {}
        for first_seq in self.chunk_keys.between(1, SEQ_MAX):
            row = self._chunks[first_seq]
            if row.session is None:
                continue
            gone = sum(last - first + 1 for first, last in self._gone.get(first_seq, ()))
            deferred = len(self.deferred_keys.between(first_seq, row.last_seq))
            known = found.get(row.session)
            active = row.count - gone - deferred + (0 if known is None else known.active_count)
            found[row.session] = SessionBook(row.session, active, row.last_seq)
        return [book for book in found.values() if book.active_count]

    def chunk_holding(self, seq: int) -> ChunkRow | None:
        first_seq = self.chunk_keys.at_or_before(seq)
        if first_seq is None or self._chunks[first_seq].last_seq < seq:
            return None
        return self._chunks[first_seq]

    def put_chunk(self, row: ChunkRow, share: SharedBodySelection | None, undo: Undo) -> None:
        nearest = self.chunk_keys.at_or_before(row.last_seq)
        if nearest is not None and self._chunks[nearest].last_seq >= row.first_seq:
            raise ValueError("a chunk overlaps one that is stored")
        if share is not None:
            # The sheet is kept instead, by all that share it; Python counts them.
            row = replace(row, blob=b"")
            undo.change(self.set_share, row.first_seq, share)
        undo.change(self.set_chunk, row.first_seq, row)

    def delete_chunks(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        for key in self.chunk_keys.between(first_seq, last_seq):
            self.clear_states(key, self._chunks[key].last_seq, undo)
            undo.change(self.set_gone, key, None)
            undo.change(self.set_share, key, None)
            undo.change(self.set_chunk, key, None)

    def bury(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        chunk = self.chunk_holding(first_seq)
        runs = [] if chunk is None else self._gone.get(chunk.first_seq, [])
        if chunk is None or chunk.last_seq < last_seq or _overlaps(runs, first_seq, last_seq):
            raise ValueError("a tombstone overlaps another or lies outside of its chunk")
        undo.change(self.set_gone, chunk.first_seq, _merged([*runs, (first_seq, last_seq)]))
        self.clear_states(first_seq, last_seq, undo)

    def clear_states(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        for seq in self.state_keys.between(first_seq, last_seq):
            undo.change(self.set_state, seq, None)

    def set_expiry(self, first_seq: int, expires_ms: int | None, undo: Undo) -> None:
        row = self._chunks.get(first_seq)
        if row is not None:
            undo.change(self.set_chunk, first_seq, replace(row, expires_ms=expires_ms))

    def put_scheduled(self, row: ScheduledRow, undo: Undo) -> None:
        if row.seq in self._scheduled:
            raise ValueError("a row is there already")
        undo.change(self.set_scheduled, row.seq, row)

    def put_seen(self, row: SeenRow, undo: Undo) -> None:
        if row.page in self._seen:
            raise ValueError("a row is there already")
        undo.change(self.set_seen, row.page, row)

    def forget_seen(self, through_page: int, undo: Undo) -> None:
        for page in [page for page in self._seen if page <= through_page]:
            undo.change(self.set_seen, page, None)

    def seen(self) -> list[SeenRow]:
        return [self._seen[page] for page in sorted(self._seen)]

    def loaded(self, first_seq: int) -> LoadedChunk:
        row = self._chunks[first_seq]
        share = self._shares.get(first_seq)
        if share is not None:
            sheet = share.sheet
            row = replace(row, blob=select(sheet.blob, sheet.count, packed_selection(share)))
        seqs = self.state_keys.between(first_seq, row.last_seq)
        states = {seq: self._states[seq] for seq in seqs}
        return LoadedChunk(row, list(self._gone.get(first_seq, ())), states)

    def scheduled(self, seq: int) -> ScheduledRow:
        return self._scheduled[seq]


def _overlaps(runs: list[Run], first_seq: int, last_seq: int) -> bool:
    at = bisect_left(runs, (last_seq + 1, 0))
    return at > 0 and runs[at - 1][1] >= first_seq


def _merged(runs: list[Run]) -> list[Run]:
    merged: list[Run] = []
    for first_seq, last_seq in sorted(runs):
        if merged and merged[-1][1] + 1 == first_seq:
            merged[-1] = (merged[-1][0], last_seq)
        else:
            merged.append((first_seq, last_seq))
    return merged

"""Which chunks of a queue are in memory: the window at its head, and those still in use.

    on disk:  [.. settled ..][ locked ][ window: loaded, to be handed out ][ not loaded yet ]
                                                             loaded_through ^

Rule 1: memory does not grow with the queue. The window holds a bounded number of bytes; what
        comes after it stays on disk and is asked for when the window runs low.
Rule 2: a chunk that anything depends on (a lock, a change not yet on disk) is here, and what
        is here is the truth: a row read meanwhile only lends its bytes. That holds for a new
        chunk too, from the moment it is on its way: a read may see it before its commit is told.
Rule 3: a chunk leaves only when every read has ended that began before, because such a read may
        be older than the chunk's last change and would bring settled messages back (grace.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.grace import Grace
from twinbus.broker.store.port import LoadedChunk

# One disk read fetches about this much; two of them bound what a queue with receivers holds.
READ_AHEAD_BYTES = 1 << 20
READ_AHEAD_CHUNKS = 256


class Shelf:
    """The chunks of one queue that are in memory."""

    def __init__(self, last_seq: int) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._window: deque[Chunk] = deque()
        self._window_bytes = 0
        self.grace = Grace()
        self.loaded_through = 0
        """Everything up to this sequence number has been in the window."""
        self.committed_through = last_seq
        """The newest sequence number on disk."""

    # -- the window -----------------------------------------------------------------------

    def head(self) -> Chunk | None:
        """The first chunk with something to hand out, or None."""
        while self._window:
            chunk = self._window[0]
            if chunk.next_free()[1]:
                return chunk
            self._leave_window(self._window.popleft())
        return None

    def _leave_window(self, chunk: Chunk) -> None:
        self._window_bytes -= len(chunk.blob or b"")
        chunk.in_window = False
        chunk.blob = None
        self.release(chunk)

    def needs_more(self) -> bool:
        """The window runs low and the disk has more."""
        return (
            self._window_bytes < READ_AHEAD_BYTES and self.loaded_through < self.committed_through
        )

    def expect(self, chunk: Chunk) -> None:
        """A new chunk is on its way to disk."""
        chunk.unsaved = True
        self._chunks[chunk.first_seq] = chunk

    def forget(self, chunk: Chunk) -> None:
        """The store refused a new chunk: its sequence numbers will be given out again."""
        del self._chunks[chunk.first_seq]

    def append_committed(self, chunk: Chunk, keep: bool) -> None:
        """A new chunk is on disk. It enters the window only behind everything before it."""
        is_next = self.loaded_through >= self.committed_through
        self.committed_through = chunk.last_seq
        if self.loaded_through >= chunk.last_seq:
            # A read that ended before the commit was told has brought it into the window.
            return
        has_room = self._window_bytes < READ_AHEAD_BYTES
        if keep and is_next and has_room and chunk.blob is not None:
            self._enter_window(chunk)
        else:
            self.put_back(chunk)

    def _enter_window(self, chunk: Chunk) -> None:
        self.loaded_through = chunk.last_seq
        self._chunks[chunk.first_seq] = chunk
        chunk.in_window = True
        self._window.append(chunk)
        self._window_bytes += len(chunk.blob or b"")

    def append_loaded(self, loaded: Iterable[LoadedChunk], asked_through: int) -> None:
        """The answer to a read that began behind ``loaded_through``."""
        found = False
        for row in loaded:
            found = True
            chunk = self.adopt(row)
            if not chunk.in_window:
                self._enter_window(chunk)
        if not found:
            # What was there has been settled meanwhile.
            self.loaded_through = max(self.loaded_through, asked_through)

    def clear_window(self) -> None:
        """Nobody receives any more: give the bytes back and read again when somebody does."""
        if self._window:
            self.loaded_through = self._window[0].first_seq - 1
        while self._window:
            self._leave_window(self._window.popleft())

    # -- the chunks in use ----------------------------------------------------------------

    def adopt(self, loaded: LoadedChunk) -> Chunk:
        """The chunk behind a row that was read: the one in memory if there is one."""
        chunk = self._chunks.get(loaded.row.first_seq)
        if chunk is None:
            chunk = Chunk.from_store(loaded)
            self._chunks[chunk.first_seq] = chunk
        elif chunk.blob is None:
            chunk.blob = loaded.row.blob
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Forget ``chunk`` if nothing depends on it, once no read can speak of it any more."""
        if chunk.is_idle:
            # Only the last time counts: it may have been idle before, and changed since.
            chunk.times_idle = times_idle = chunk.times_idle + 1
            self.grace.after_reads(lambda: self._forget_idle(chunk, times_idle))

    def _forget_idle(self, chunk: Chunk, times_idle: int) -> None:
        if chunk.is_idle and chunk.times_idle == times_idle:
            self._chunks.pop(chunk.first_seq, None)

    def is_current(self, loaded: LoadedChunk) -> Chunk | None:
        """The chunk in memory behind a row, without taking the row in (peek)."""
        return self._chunks.get(loaded.row.first_seq)

    def put_back(self, chunk: Chunk) -> None:
        """A chunk that was adopted is not needed after all."""
        chunk.drop_blob()
        self.release(chunk)

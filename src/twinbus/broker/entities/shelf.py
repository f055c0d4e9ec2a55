"""The chunks of a queue that are in memory because something depends on them.

Rule 1: a chunk that anything depends on (a lock, a change not yet on disk) is here, and what
        is here is the truth: a row read meanwhile only lends its bytes. That holds for a new
        chunk too, from the moment it is on its way: a read may see it before its commit is told.
Rule 2: a chunk leaves only when every read has ended that began before, because such a read may
        be older than the chunk's last change and would bring settled messages back (grace.py).
"""

from __future__ import annotations

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.grace import PendingReads
from twinbus.broker.store.port import LoadedChunk


class ChunkCache:
    """The chunks of one queue that are in use."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self.grace = PendingReads()

    def expect(self, chunk: Chunk) -> None:
        """A new chunk is on its way to disk."""
        chunk.unsaved = True
        self._chunks[chunk.first_seq] = chunk

    def forget(self, chunk: Chunk) -> None:
        """The store refused a new chunk: its sequence numbers will be given out again."""
        del self._chunks[chunk.first_seq]

    def keep(self, chunk: Chunk) -> None:
        """The chunk is in use."""
        self._chunks[chunk.first_seq] = chunk

    def adopt(self, loaded: LoadedChunk) -> Chunk:
        """The chunk behind a row that was read: the one in memory if there is one."""
        chunk = self._chunks.get(loaded.row.first_seq)
        if chunk is None:
            chunk = Chunk.from_store(loaded)
            self._chunks[chunk.first_seq] = chunk
        elif chunk.blob is None:
            chunk.blob = loaded.row.blob
        return chunk

    def adopt_built(self, built: Chunk) -> Chunk:
        """The same for a chunk that was built where it was read."""
        chunk = self._chunks.setdefault(built.first_seq, built)
        if chunk.blob is None:
            chunk.blob = built.blob
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

    def current(self, built: Chunk) -> Chunk:
        """The chunk in memory, if there is one, instead of one that was read for a peek."""
        return self._chunks.get(built.first_seq, built)

    def put_back(self, chunk: Chunk) -> None:
        """A chunk that was adopted is not needed after all."""
        chunk.drop_blob()
        self.release(chunk)

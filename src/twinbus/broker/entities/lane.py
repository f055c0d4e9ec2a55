"""One stream of messages that are handed out in order: a whole queue, or one session of it.

    on disk:  [.. settled ..][ locked ][ window: loaded, to be handed out ][ not loaded yet ]
                                                             loaded_through ^

A lane knows what is to be handed out next (the window, and what came back) and to whom (its
receivers, in turns). A plain queue has one lane for ever; a queue with sessions has one for each
session that somebody holds.

Rule 1: memory does not grow with the queue. The window holds a bounded number of bytes; what
        comes after it stays on disk and is asked for when the window runs low.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.consumer import RoundRobin
from twinbus.broker.entities.returned import ReturnedMessages
from twinbus.broker.entities.shelf import ChunkCache
from twinbus.broker.store.port import LoadedChunk

# One disk read fetches about this much; two of them bound what a lane with receivers holds.
READ_AHEAD_BYTES = 1 << 20
READ_AHEAD_CHUNKS = 256


class DeliveryStream:
    """What is handed out next, and to whom."""

    def __init__(self, chunk_cache: ChunkCache, last_seq: int, session: str | None = None) -> None:
        self.session = session
        self._chunk_cache = chunk_cache
        self._window: deque[Chunk] = deque()
        self._window_bytes = 0
        self.returned = ReturnedMessages()
        self.turns = RoundRobin()
        self.is_loading = False
        self.loaded_through = 0
        """Everything up to this sequence number has been in the window."""
        self.committed_through = last_seq
        """The newest sequence number on disk."""

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
        self._chunk_cache.release(chunk)

    def needs_more(self) -> bool:
        """The window runs low and the disk has more."""
        return (
            self._window_bytes < READ_AHEAD_BYTES and self.loaded_through < self.committed_through
        )

    def append_committed(self, chunk: Chunk) -> None:
        """A new chunk is on disk. It enters the window only behind everything before it."""
        is_next = self.loaded_through >= self.committed_through
        self.committed_through = chunk.last_seq
        if self.loaded_through >= chunk.last_seq:
            # A read that ended before the commit was told has brought it into the window.
            return
        has_room = self._window_bytes < READ_AHEAD_BYTES
        if self.turns.has_anyone and is_next and has_room and chunk.blob is not None:
            self._enter_window(chunk)
        else:
            self._chunk_cache.put_back(chunk)

    def _enter_window(self, chunk: Chunk) -> None:
        self.loaded_through = chunk.last_seq
        self._chunk_cache.keep(chunk)
        chunk.in_window = True
        self._window.append(chunk)
        self._window_bytes += len(chunk.blob or b"")

    def append_loaded(self, loaded: Iterable[LoadedChunk], asked_through: int) -> None:
        """The answer to a read that began behind ``loaded_through``."""
        found = False
        for row in loaded:
            found = True
            chunk = self._chunk_cache.adopt(row)
            if not chunk.in_window:
                self._enter_window(chunk)
        if not found:
            # What was there has been settled meanwhile.
            self.loaded_through = max(self.loaded_through, asked_through)

    def rest(self) -> None:
        """Nobody receives any more: give the bytes back and read again when somebody does."""
        if self._window:
            self.loaded_through = self._window[0].first_seq - 1
        while self._window:
            self._leave_window(self._window.popleft())
        self.returned.drop_blobs()

    def close(self) -> None:
        """Its session is let go. What came back waits on disk like what was never handed out."""
        self.turns.clear()
        self.rest()
        for chunk in self.returned.take():
            chunk.set_free(chunk.returned)
            self._chunk_cache.release(chunk)

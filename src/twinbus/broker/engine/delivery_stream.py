"""What a queue delivers next, including returned messages, and to which receiver.

A stream is a sequence of messages that are delivered in order: a whole queue, or one session.

    on disk:  [.. settled ..][ locked ][ window: loaded, to be delivered ][ not loaded yet ]
                                                            loaded_through ^

It has the window, the returned messages (by chunk, because one mask of a chunk marks all its
returned messages) and its receivers. A queue without sessions has one stream; a queue with sessions
has one for each locked session.

Rule 1: memory does not grow with the queue. The window has a bounded number of bytes; what
        comes after it stays on disk and is read when the window runs low.
Rule 2: the oldest message is delivered first, whether it was returned or never delivered; if its
        bytes must be read, later ones wait for it.
Rule 3: the receivers of a stream take turns.
Rule 4: one call of deliver() delivers a few hundred messages; the rest follows with later calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.chunk import Chunk, ChunkCache
from twinbus.broker.engine.consumers import DeliveryBatch, RoundRobin
from twinbus.broker.storage.interface import LoadedChunk
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue


class ReturnedMessages:
    """The chunks with messages to deliver again."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._order: list[int] = []

    def add(self, chunk: Chunk, mask: int) -> None:
        chunk.returned |= mask
        if chunk.first_seq not in self._chunks:
            heappush(self._order, chunk.first_seq)
        # An entry without returned messages may still refer to a chunk that was read again since.
        self._chunks[chunk.first_seq] = chunk

    def first(self) -> Chunk | None:
        """The chunk with the oldest of them."""
        while self._order:
            chunk = self._chunks[self._order[0]]
            if chunk.returned:
                return chunk
            del self._chunks[heappop(self._order)]
        return None

    def take(self) -> list[Chunk]:
        """All of them; none is left."""
        chunks = list(self._chunks.values())
        self._chunks, self._order = {}, []
        return chunks

    def drop_blobs(self) -> None:
        """Free the bytes while there is no receiver; they are read again for the next one."""
        for chunk in self._chunks.values():
            chunk.drop_blob()


# One disk read fetches about this much; two of them bound the memory of a stream with receivers.
READ_AHEAD_BYTES = 1 << 20
READ_AHEAD_CHUNKS = 256


class DeliveryStream:
    """What is delivered next, and to which receiver."""

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
        """The first chunk with messages to deliver, or None."""
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
        """A new chunk is on disk. It enters the window only after everything before it."""
        is_next = self.loaded_through >= self.committed_through
        self.committed_through = chunk.last_seq
        if self.loaded_through >= chunk.last_seq:
            # A read that ended before the commit was reported has put it into the window.
            return
        has_room = self._window_bytes < READ_AHEAD_BYTES
        if self.turns.has_consumers and is_next and has_room and chunk.blob is not None:
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
        """The answer to a read that began after ``loaded_through``."""
        found = False
        for row in loaded:
            found = True
            chunk = self._chunk_cache.adopt(row)
            if not chunk.in_window:
                self._enter_window(chunk)
        if not found:
            # The messages have been settled meanwhile.
            self.loaded_through = max(self.loaded_through, asked_through)

    def rest(self) -> None:
        """There is no receiver any more: free the bytes; they are read again for the next one."""
        if self._window:
            self.loaded_through = self._window[0].first_seq - 1
        while self._window:
            self._leave_window(self._window.popleft())
        self.returned.drop_blobs()

    def close(self) -> None:
        """Its session is released. Returned messages wait on disk like undelivered ones."""
        self.turns.clear()
        self.rest()
        for chunk in self.returned.take():
            chunk.set_free(chunk.returned)
            self._chunk_cache.release(chunk)


# A message costs half a microsecond to deliver and to write, six if all of it must be read. A run
# of messages that are delivered together costs as much as GRANT_COST messages.
GRANT_COST = 16
PUMP_COST_MAX = 512


def deliver(queue: Queue, now: Instant) -> list[DeliveryBatch]:
    """Deliver what can be delivered, or a part of it: then queue.has_more is true."""
    grants: list[DeliveryBatch] = []
    if queue.sessions is None:
        _deliver(queue, queue.stream, now, grants, PUMP_COST_MAX)
        return grants
    queue.sessions.serve_waiters(now)
    left = PUMP_COST_MAX
    for stream in queue.sessions.take_ready():
        if left > 0:
            left = _deliver(queue, stream, now, grants, left)
        if left <= 0:
            queue.has_more = True
            queue.sessions.mark_ready(stream)
    return grants


def _deliver(
    queue: Queue, stream: DeliveryStream, now: Instant, grants: list[DeliveryBatch], left: int
) -> int:
    """Deliver the messages of a stream; returns what is left of the allowed cost."""
    while (consumer := stream.turns.first()) is not None:
        if left <= 0:
            queue.has_more = True
            return left
        source = _next_source(queue, stream, now)
        if source is None:
            break
        grant = queue.grant(consumer, *source, now)
        left -= grant.count + GRANT_COST
        grants.append(grant)
        stream.turns.next()
    if consumer is not None:
        queue.ask_next(stream)
    return left


def _next_source(
    queue: Queue, stream: DeliveryStream, now: Instant
) -> tuple[Chunk, int, int] | None:
    """The oldest messages that can be delivered: (chunk, index, count)."""
    returned = _first_fresh(queue, stream.returned.first, now)
    head = _first_fresh(queue, stream.head, now)
    if returned is None:
        return None if head is None else (head, *head.next_free())
    index, count = returned.next_returned()
    seq = returned.first_seq + index
    if head is not None and head.first_seq + head.next_free()[0] < seq:
        return head, *head.next_free()
    if returned.blob is None:
        queue.ask_blob(returned)
        return None
    return returned, index, count


def _first_fresh(queue: Queue, first: Callable[[], Chunk | None], now: Instant) -> Chunk | None:
    """The first chunk, after its expired messages were removed."""
    while (chunk := first()) is not None:
        if not message_transitions.expire(queue, chunk, now):
            return chunk
    return None

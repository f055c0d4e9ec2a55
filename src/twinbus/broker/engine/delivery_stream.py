"""What a queue delivers next, messages that were returned included, and to whom.

Messages that came back and are to be handed out again, oldest first.

They are kept by chunk, because a chunk knows by one mask which of its messages came back.

One stream of messages that are handed out in order: a whole queue, or one session of it.

    on disk:  [.. settled ..][ locked ][ window: loaded, to be handed out ][ not loaded yet ]
                                                             loaded_through ^

A lane knows what is to be handed out next (the window, and what came back) and to whom (its
receivers, in turns). A plain queue has one lane for ever; a queue with sessions has one for each
session that somebody holds.

Which messages are handed out next, and to whom.

Rule 1: memory does not grow with the queue. The window holds a bounded number of bytes; what
        comes after it stays on disk and is asked for when the window runs low.
Rule 2: the oldest message goes first, whether it came back or was never handed out; if its bytes
        must be read, later ones wait for it.
Rule 3: receivers of a lane take turns.
Rule 4: a pump hands out a few hundred messages; the rest comes with the next one, for which there
        is time or not.
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
    """The chunks with messages to be handed out again."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._order: list[int] = []

    def add(self, chunk: Chunk, mask: int) -> None:
        chunk.returned |= mask
        if chunk.first_seq not in self._chunks:
            heappush(self._order, chunk.first_seq)
        # An entry without returned messages may still name a chunk that was read anew since.
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
        """Nobody receives: the bytes are read again when somebody does."""
        for chunk in self._chunks.values():
            chunk.drop_blob()


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


# A message costs half a microsecond to hand out and to write, six if it has to be looked at whole;
# and what is handed out together costs as much as so many messages.
GRANT_COST = 16
PUMP_COST_MAX = 512


def deliver(queue: Queue, now: Instant) -> list[DeliveryBatch]:
    """Hand out what can be handed out, or a good part of it: queue.has_more says which."""
    grants: list[DeliveryBatch] = []
    if queue.sessions is None:
        _deliver(queue, queue.stream, now, grants, PUMP_COST_MAX)
        return grants
    queue.sessions.serve_waiters(now)
    left = PUMP_COST_MAX
    for lane in queue.sessions.take_ready():
        if left > 0:
            left = _deliver(queue, lane, now, grants, left)
        if left <= 0:
            queue.has_more = True
            queue.sessions.mark_ready(lane)
    return grants


def _deliver(
    queue: Queue, lane: DeliveryStream, now: Instant, grants: list[DeliveryBatch], left: int
) -> int:
    """Hand out what the lane has; what is left of the cost that is allowed."""
    while (consumer := lane.turns.first()) is not None:
        if left <= 0:
            queue.has_more = True
            return left
        source = _next_source(queue, lane, now)
        if source is None:
            break
        grant = queue.grant(consumer, *source, now)
        left -= grant.count + GRANT_COST
        grants.append(grant)
        lane.turns.next()
    if consumer is not None:
        queue.ask_next(lane)
    return left


def _next_source(queue: Queue, lane: DeliveryStream, now: Instant) -> tuple[Chunk, int, int] | None:
    """The oldest messages that can be handed out: (chunk, index, count)."""
    returned = _first_fresh(queue, lane.returned.first, now)
    head = _first_fresh(queue, lane.head, now)
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
    """The first chunk, once nothing in it has expired."""
    while (chunk := first()) is not None:
        if not message_transitions.expire(queue, chunk, now):
            return chunk
    return None

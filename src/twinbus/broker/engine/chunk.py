"""Chunks of messages: their masks, the chunks in memory, and pending reads.

A chunk is a run of consecutive messages of one queue in memory. It has two main masks: ``gone``,
the messages that are removed, and ``busy``, the messages that cannot be delivered from the window
(gone, locked, deferred, or waiting to be delivered again). Bit i stands for message
``first_seq + i``, so that settling a thousand messages is one operation on one integer.

The blob is only kept while messages are being delivered. A chunk whose messages are all locked
takes little more than four bytes a message, however large they are.

A read sees the disk as it was when the read began. If a settled message were removed from memory
at once, such a read would bring it back. So a removal waits until every read that began before it
has been answered (``PendingReads``). A long read takes many turns, so reads may be answered in
another order than they began.

Rule 1: a chunk that anything depends on (a lock, a change that is not on disk yet) is in the
        ``ChunkCache``, and its state there is valid: a row that is read meanwhile only provides
        bytes. This includes a new chunk from the moment it is being written: a read may see it
        before its commit is reported.
Rule 2: a chunk is removed from the cache only when every read has ended that began before, because
        such a read may be older than the chunk's last change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from twinbus.broker.engine.stored_message import chunk_starts, expiry_of
from twinbus.broker.storage.interface import LoadedChunk


def span_mask(start: int, count: int) -> int:
    """``count`` bits set, the lowest at position ``start``."""
    return ((1 << count) - 1) << start


def spans_of(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of set bits in ``mask`` as (start, count), lowest first."""
    position = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        position += zeros
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        yield position, ones
        position += ones
        mask >>= ones


class Chunk:
    """The state of a run of messages; the masks are explained in the module's docstring."""

    __slots__ = (
        "blob",
        "busy",
        "count",
        "cursor",
        "deferred",
        "delivery_counts",
        "enqueued_ms",
        "expires_ms",
        "expiries",
        "first_seq",
        "gone",
        "in_window",
        "locked",
        "moving",
        "returned",
        "session",
        "starts",
        "times_idle",
        "unsaved",
        "waiters",
    )

    def __init__(
        self,
        first_seq: int,
        count: int,
        enqueued_ms: int,
        expires_ms: int | None,
        blob: bytes,
        session: str | None = None,
    ) -> None:
        self.first_seq = first_seq
        self.count = count
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms
        self.expiries: dict[int, int] = {}
        self.blob: bytes | None = blob
        self.session = session
        self.starts = chunk_starts(blob, count)
        self.cursor = 0
        self.gone = 0
        self.busy = 0
        self.locked = 0
        self.returned = 0
        # Being moved to the dead-letter queue; they wait for the chunk's bytes.
        self.moving = 0
        self.deferred = 0
        self.delivery_counts: dict[int, int] = {}
        self.in_window = False
        # Changes that are not in the store yet: the chunk must stay in memory until they are.
        self.unsaved = False
        self.times_idle = 0
        self.waiters: list[Callable[[], None]] = []
        if expires_ms is not None:
            self._read_expiries(blob)

    @classmethod
    def from_store(cls, loaded: LoadedChunk) -> Chunk:
        """A chunk as it is on disk: without locks, everything else is kept."""
        row = loaded.row
        chunk = cls(
            row.first_seq, row.count, row.enqueued_ms, row.expires_ms, row.blob, row.session
        )
        for first, last in loaded.gone:
            chunk.gone |= span_mask(first - row.first_seq, last - first + 1)
        for seq, (delivery_count, deferred) in loaded.states.items():
            index = seq - row.first_seq
            if delivery_count:
                chunk.delivery_counts[index] = delivery_count
            if deferred:
                chunk.deferred |= 1 << index
        chunk.deferred &= ~chunk.gone
        chunk.busy = chunk.gone | chunk.deferred
        chunk.refresh_expiry()
        return chunk

    def _read_expiries(self, blob: bytes) -> None:
        for index in range(self.count):
            expires_ms = expiry_of(blob, self.starts[index])
            if expires_ms is not None:
                self.expiries[index] = expires_ms
        self.refresh_expiry()

    def refresh_expiry(self) -> None:
        """Keep the expiries of the messages that are not gone, and find the earliest."""
        gone = self.gone
        self.expiries = {i: at for i, at in self.expiries.items() if not gone >> i & 1}
        self.expires_ms = min(self.expiries.values(), default=None)

    def sweep_ms(self, now_ms: int, later_ms: int) -> int | None:
        """When to look for expired messages: ``later_ms`` for those that are locked until then."""
        held = self.locked | self.moving
        gone = self.gone
        return min(
            (
                later_ms if at <= now_ms and held >> index & 1 else at
                for index, at in self.expiries.items()
                if not gone >> index & 1
            ),
            default=None,
        )

    def next_free(self) -> tuple[int, int]:
        """The next run of messages to deliver: (index, count); count 0 if there is none."""
        busy = self.busy >> self.cursor
        if not busy:
            return self.cursor, self.count - self.cursor
        skip = (~busy & (busy + 1)).bit_length() - 1
        start = self.cursor + skip
        rest = busy >> skip
        if not rest:
            return start, self.count - start
        return start, (rest & -rest).bit_length() - 1

    def next_returned(self) -> tuple[int, int]:
        """The first run of returned messages: (index, count)."""
        return next(spans_of(self.returned), (self.count, 0))

    def mark_delivered(self, start: int, count: int) -> None:
        """These messages are delivered, from the window or from the returned messages."""
        self.returned &= ~span_mask(start, count)
        # A deferred message is taken from the middle: those before it are still to be delivered.
        if self.in_window and start == self.next_free()[0]:
            self.cursor = start + count

    def set_free(self, mask: int) -> None:
        """Allow delivery from the window again, once the chunk is in a window."""
        self.busy &= ~mask
        self.returned &= ~mask
        self.cursor = 0

    def mark_deferred(self, mask: int) -> int:
        """The messages in ``mask`` that are deferred and can be received."""
        return mask & self.deferred & ~(self.locked | self.gone | self.moving)

    def mark_gone(self, mask: int) -> None:
        self.gone |= mask
        self.busy |= mask
        self.locked &= ~mask
        self.returned &= ~mask
        self.moving &= ~mask
        self.deferred &= ~mask

    def drop_blob(self) -> None:
        """Free the bytes if nothing needs them; they can be read again."""
        if not self.in_window and not self.waiters:
            self.blob = None

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def whole_mask(self) -> int:
        """All its messages."""
        return (1 << self.count) - 1

    @property
    def is_empty(self) -> bool:
        """All messages are gone, so that its row can be deleted."""
        return self.gone == self.whole_mask

    @property
    def is_idle(self) -> bool:
        """Nothing in memory depends on it: it can be read back from disk when needed."""
        return not (
            self.in_window
            or self.locked
            or self.returned
            or self.moving
            or self.unsaved
            or self.waiters
        )

    def size_of(self, mask: int) -> int:
        """The size of the messages in ``mask`` in bytes."""
        starts = self.starts
        return sum(starts[start + count] - starts[start] for start, count in spans_of(mask))


class PendingReads:
    """The reads of one queue that have not ended, and the actions that wait for their end."""

    def __init__(self) -> None:
        self._begun = 0
        self._open: dict[int, None] = {}
        """The reads that have not ended, oldest first."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def begin_read(self) -> int:
        """A read begins; returns its number for end_read()."""
        self._begun += 1
        self._open[self._begun] = None
        return self._begun

    def end_read(self, read: int) -> None:
        """The read was answered, and the answer was used."""
        del self._open[read]
        oldest = next(iter(self._open), self._begun + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            self._waiting.popleft()[1]()

    def after_reads(self, action: Callable[[], None]) -> None:
        """Run ``action`` when all reads that have begun by now have ended."""
        if not self._open:
            action()
        else:
            self._waiting.append((self._begun, action))


class ChunkCache:
    """The chunks of one queue that are in use."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self.grace = PendingReads()

    def expect(self, chunk: Chunk) -> None:
        """A new chunk is being written to disk."""
        chunk.unsaved = True
        self._chunks[chunk.first_seq] = chunk

    def forget(self, chunk: Chunk) -> None:
        """The store refused a new chunk: its sequence numbers will be used again."""
        del self._chunks[chunk.first_seq]

    def keep(self, chunk: Chunk) -> None:
        """The chunk is in use."""
        self._chunks[chunk.first_seq] = chunk

    def adopt(self, loaded: LoadedChunk) -> Chunk:
        """The chunk of a row that was read: the one in memory if there is one."""
        chunk = self._chunks.get(loaded.row.first_seq)
        if chunk is None:
            chunk = Chunk.from_store(loaded)
            self._chunks[chunk.first_seq] = chunk
        elif chunk.blob is None:
            chunk.blob = loaded.row.blob
        return chunk

    def adopt_built(self, built: Chunk) -> Chunk:
        """The same for a chunk that the reader built."""
        chunk = self._chunks.setdefault(built.first_seq, built)
        if chunk.blob is None:
            chunk.blob = built.blob
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Remove ``chunk`` if nothing depends on it, when no earlier read can return it."""
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
        """A chunk that was adopted is not needed."""
        chunk.drop_blob()
        self.release(chunk)

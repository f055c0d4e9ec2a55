"""A run of consecutive messages of one queue, as the queue machine sees it in memory.

A chunk answers two questions about its messages: which are gone for good, and which are
busy, that is not to be handed out from the window (gone, locked, deferred or waiting to be
handed out again). Both are bit masks, bit i standing for message ``first_seq + i``, so that
settling a thousand messages is one operation on one integer.

The blob is only kept while messages are being handed out. A chunk whose messages are all
locked weighs four bytes a message and little more, however large they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twinbus.broker.entities.record import chunk_starts, expiry_of
from twinbus.broker.store.port import LoadedChunk


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
    """The state of a run of messages; see the module's text for the masks."""

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
        # On their way to the dead-letter queue; they wait for the chunk's bytes.
        self.moving = 0
        self.deferred = 0
        self.delivery_counts: dict[int, int] = {}
        self.in_window = False
        # Changes that the store does not hold yet: the chunk must stay in memory until it does.
        self.unsaved = False
        self.times_idle = 0
        self.waiters: list[Callable[[], None]] = []
        if expires_ms is not None:
            self._read_expiries(blob)

    @classmethod
    def from_store(cls, loaded: LoadedChunk) -> Chunk:
        """A chunk as it was left on disk: locks are void, everything else is kept."""
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
        """Keep the expiries of the messages that are still here, and find the earliest."""
        gone = self.gone
        self.expiries = {i: at for i, at in self.expiries.items() if not gone >> i & 1}
        self.expires_ms = min(self.expiries.values(), default=None)

    def sweep_ms(self, now_ms: int, later_ms: int) -> int | None:
        """When to look for expired messages: ``later_ms`` for those that are held until then."""
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
        """The next run of messages to hand out: (index, count); count 0 when there is none."""
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
        """The first run of messages that came back: (index, count)."""
        return next(spans_of(self.returned), (self.count, 0))

    def hand_out(self, start: int, count: int) -> None:
        """These messages leave, from the window or from among the returned."""
        self.returned &= ~span_mask(start, count)
        # A deferred message is taken from the middle: those before it still wait their turn.
        if self.in_window and start == self.next_free()[0]:
            self.cursor = start + count

    def set_free(self, mask: int) -> None:
        """Let the messages be handed out from the window again, once the chunk is in one."""
        self.busy &= ~mask
        self.returned &= ~mask
        self.cursor = 0

    def mark_deferred(self, mask: int) -> int:
        """The messages in ``mask`` that are deferred and free to be taken."""
        return mask & self.deferred & ~(self.locked | self.gone | self.moving)

    def mark_gone(self, mask: int) -> None:
        self.gone |= mask
        self.busy |= mask
        self.locked &= ~mask
        self.returned &= ~mask
        self.moving &= ~mask
        self.deferred &= ~mask

    def drop_blob(self) -> None:
        """Give the bytes back if nothing needs them; they can be read again."""
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
        """Nothing is left in it, so that its row can be deleted."""
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
        """Bytes that the messages in ``mask`` take."""
        starts = self.starts
        return sum(starts[start + count] - starts[start] for start, count in spans_of(mask))

"""Which message ids a queue has seen: duplicate detection (rule M3).

    a new id --> open page --close--> being written --commit--> a page on disk --window--> removed
                                            |
                                            +--refused--> never seen

Rule 1: an id counts as seen from the moment that its message is accepted, and is on disk with the
        message, in the same transaction. A crash loses neither or both.
Rule 2: a duplicate is acknowledged and dropped, but never before its original is on disk. While
        the original is being written, a send with a duplicate of it waits, and so do all later
        sends, so that messages keep their order.
Rule 3: the window is measured on the wall clock. If the clock is set back, an id is kept for
        a whole window from then on: too long rather than too short.
Rule 4: a message without an id is never a duplicate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from twinbus.broker.engine.audit_hooks import MessageEvent, UnstoredMessageEvent
from twinbus.broker.engine.stored_message import (
    DIGEST_BYTES,
    IncomingMessage,
    MessageKeys,
    digest_of,
)
from twinbus.broker.storage.interface import SeenRow
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.engine.write_batch import CommitCallback

# Pages are removed together: a busy queue writes hundreds of them a second.
SWEEP_DELAY_MS: Final = 1_000
# Messages that waited for an original and are checked in one step, about a millisecond.
ADMITTED_IN_STEP: Final = 256
# Ids that are removed in one step, about a millisecond; the rest follows with the next timer.
FORGOTTEN_AT_ONCE: Final = 4_096

DUPLICATE: Final = MessageKeys(None, None, None)
"""Replaces the facts of a message that was dropped."""


class _Page:
    """The ids of one transaction."""

    __slots__ = ("at_ms", "digests", "forgotten_bytes", "kept", "number")

    def __init__(self, number: int = 0, at_ms: int | None = None, digests: bytes = b"") -> None:
        self.number = number
        self.at_ms = at_ms
        """When it was closed; None while it is open."""
        self.digests = bytearray(digests)
        self.forgotten_bytes = 0
        """How many of its bytes are removed already."""
        self.kept = bytearray()
        """The ids of messages that the broker itself moves: after a refusal it tries again."""

    def ids(self) -> Iterable[bytes]:
        return _split_digests(self.digests)


def _split_digests(digests: bytearray) -> Iterable[bytes]:
    whole = bytes(digests)
    return (whole[at : at + DIGEST_BYTES] for at in range(0, len(whole), DIGEST_BYTES))


class DuplicateHistory:
    """The ids of one queue."""

    def __init__(self, rows: Iterable[SeenRow] = (), *, is_partitioned: bool = False) -> None:
        self._is_partitioned = is_partitioned
        """Equal ids in different partitions are then different, as in Azure."""
        self._pages = deque(_Page(row.page, row.at_ms, row.digests) for row in rows)
        self._seen = {digest: page for page in self._pages for digest in page.ids()}
        self._next_number = self._pages[-1].number + 1 if self._pages else 1
        self._open = _Page()
        self._on_its_way: _Page | None = None
        self._last_sweep_ms: int | None = None
        self.waiting: deque[tuple[list[IncomingMessage], CommitCallback | None]] = deque()
        """Sends with a duplicate of a message that is being written, and all later sends."""

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def byte_count(self) -> int:
        """The part of the queue's quota that the ids use."""
        return len(self._seen) * DIGEST_BYTES

    # -- new ids --------------------------------------------------------------------------

    def must_wait(self, messages: list[IncomingMessage], *, is_ours: bool = False) -> bool:
        """Whether it is not known yet if one of these is a duplicate.

        ``is_ours``: the broker moves them from another entity with the next commit. If they were
        dropped as duplicates of a client's message in the same commit, and the store refused the
        commit, they would be lost: the client's message is refused, and the move is tried again.
        """
        return bool(self.waiting) or self._are_undecided(messages, is_ours)

    def _are_undecided(self, messages: list[IncomingMessage], is_ours: bool) -> bool:
        if self._on_its_way is None and not is_ours:
            return False
        return any(
            self._is_undecided(digest, is_ours)
            for digest in map(self._digest, messages)
            if digest is not None
        )

    def _is_undecided(self, digest: bytes, is_ours: bool) -> bool:
        page = self._seen.get(digest)
        if page is None:
            return False
        return page is self._on_its_way or (
            is_ours and page is self._open and digest not in _split_digests(page.kept)
        )

    def remove_duplicates(
        self, messages: list[IncomingMessage], window_ms: int, *, is_ours: bool = False
    ) -> list[IncomingMessage]:
        """The messages that were not seen within the window; they count as seen from now on.

        ``is_ours``: the broker itself moves them, and tries again if the store refuses them.
        """
        fresh = []
        for message in messages:
            digest = self._digest(message)
            if digest is None:
                fresh.append(message)
            elif self._is_known(digest, message, window_ms):
                message.facts = DUPLICATE
            else:
                self._note(digest, is_ours)
                fresh.append(message)
        return fresh

    def unseen(self, messages: list[IncomingMessage], window_ms: int) -> list[IncomingMessage]:
        """The messages that remove_duplicates() would return now; nothing is changed."""
        fresh, among = [], set[bytes]()
        for message in messages:
            digest = self._digest(message)
            if digest is not None:
                if digest in among or self._is_known(digest, message, window_ms):
                    continue
                among.add(digest)
            fresh.append(message)
        return fresh

    def _digest(self, message: IncomingMessage) -> bytes | None:
        """The digest of a message's id."""
        facts = message.facts
        if facts is None:
            return None
        return facts.digest or digest_of(facts, is_partitioned=self._is_partitioned)

    def _is_known(self, digest: bytes, message: IncomingMessage, window_ms: int) -> bool:
        page = self._seen.get(digest)
        if page is None:
            return False
        arrived_ms = 0 if message.facts is None else message.facts.arrived_ms
        return page.at_ms is None or arrived_ms < page.at_ms + window_ms

    def _note(self, digest: bytes, is_ours: bool) -> None:
        self._seen[digest] = self._open
        self._open.digests += digest
        if is_ours:
            self._open.kept += digest

    @property
    def can_admit_waiting(self) -> bool:
        """Whether the first waiting send can continue."""
        return bool(self.waiting) and not self._are_undecided(self.waiting[0][0], is_ours=False)

    def take_waiting(self) -> Iterable[tuple[list[IncomingMessage], CommitCallback | None]]:
        waiting, self.waiting = self.waiting, deque()
        return waiting

    # -- commits --------------------------------------------------------------------------

    def close(self, queue_id: int, now_ms: int) -> SeenRow | None:
        """The row with the ids since the last call, or None."""
        if not self._open.digests:
            return None
        page, self._open = self._open, _Page()
        page.number, page.at_ms = self._next_number, now_ms
        self._on_its_way = page
        return SeenRow(queue_id, page.number, now_ms, bytes(page.digests))

    def commit_finished(self) -> None:
        """The page that was being written is on disk."""
        if self._on_its_way is not None:
            self._on_its_way.kept.clear()
            self._pages.append(self._on_its_way)
            self._next_number += 1
            self._on_its_way = None

    def take_back(self) -> None:
        """The store refused the page: only ids that will be written again are still seen."""
        page, self._on_its_way = self._on_its_way, None
        if page is not None:
            self._forget(page, page.digests)
            for digest in _split_digests(page.kept):
                self._note(digest, is_ours=True)

    # -- old ids --------------------------------------------------------------------------

    def next_sweep_ms(self, window_ms: int) -> int | None:
        """When the oldest page can be removed."""
        at_ms = self._pages[0].at_ms if self._pages else None
        return None if at_ms is None else at_ms + window_ms + SWEEP_DELAY_MS

    def sweep(self, now_ms: int, window_ms: int) -> int:
        """Remove ids older than the window; returns the last page to delete on disk, or 0.

        Of many ids it removes a part: next_sweep_ms() is in the past then.
        """
        self._handle_clock_jump(now_ms)
        through, left = 0, FORGOTTEN_AT_ONCE
        while left > 0 and self._pages and (self._pages[0].at_ms or 0) + window_ms <= now_ms:
            page = self._pages[0]
            begin = page.forgotten_bytes
            page.forgotten_bytes += left * DIGEST_BYTES
            part = page.digests[begin : page.forgotten_bytes]
            left -= len(part) // DIGEST_BYTES + 1
            self._forget(page, part)
            if page.forgotten_bytes >= len(page.digests):
                self._pages.popleft()
                through = page.number
        return through

    def _handle_clock_jump(self, now_ms: int) -> None:
        if self._last_sweep_ms is None or now_ms < self._last_sweep_ms:
            for page in self._pages:
                page.at_ms = min(page.at_ms or 0, now_ms)
        self._last_sweep_ms = now_ms

    def _forget(self, page: _Page, digests: bytearray) -> None:
        for digest in _split_digests(digests):
            # The id may have come again since, after the window.
            if self._seen.get(digest) is page:
                del self._seen[digest]


def without_duplicates(
    queue: Queue,
    history: DuplicateHistory,
    messages: list[IncomingMessage],
    ticket: CommitCallback | None,
) -> list[IncomingMessage]:
    """The messages that the queue must store now; if none, the ticket was queued or kept here."""
    if history.must_wait(messages):
        history.waiting.append((messages, ticket))
        return []
    return drop_duplicates(queue, history, messages, ticket)


def drop_duplicates(
    queue: Queue,
    history: DuplicateHistory,
    messages: list[IncomingMessage],
    ticket: CommitCallback | None,
) -> list[IncomingMessage]:
    """The same for messages that do not have to wait."""
    window_ms = queue.description.duplicate_detection_window_ms
    fresh = history.remove_duplicates(messages, window_ms, is_ours=ticket is None)
    if queue.audit_sink is not None:
        dropped = [message for message in messages if message.facts is DUPLICATE]
        queue.batch.notes += [
            UnstoredMessageEvent(MessageEvent.DUPLICATE, each, is_ours=ticket is None)
            for each in dropped
        ]
    if not fresh and ticket is not None:
        # The originals are on disk or in this batch: its commit decides about the ticket.
        queue.batch.tickets.append(ticket)
    return fresh


def sweep_history(queue: Queue, history: DuplicateHistory, now: Instant) -> None:
    """Remove the ids older than the window, in memory now and on disk with the next batch."""
    through = history.sweep(now.wall_ms, queue.description.duplicate_detection_window_ms)
    queue.batch.seen_through = max(queue.batch.seen_through, through)

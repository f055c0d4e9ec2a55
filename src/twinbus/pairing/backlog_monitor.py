"""Reads the backlog, and raises alerts about it (P16).

    BacklogReader    reads every backlog queue once, with as few operations as possible:
                     counts over HTTP (Manage), one listing or each queue by its name;
                     the oldest message by a peek (Listen), only if the queue may have messages
    BacklogMonitor   reads again and again, and publishes events; failover.backlog_alerts decides
                     when to read, and which change is an event

Rule 1: a value that this application has no claim for is unknown, with the reason.
Rule 2: a queue that had messages is peeked once more when its count is 0: the counts of a
        namespace may be late, and only an empty queue is reported as empty. Queues of other pairs
        of the primary are included while they have messages, and once more when they are empty
        (Y9).
Rule 3: if a listing takes more requests than there are backlog queues, or is refused, each queue
        is read by its name from then on.
Rule 4: nothing is read while no entity is diverted and the backlog is known to be empty: a healthy
        pair costs no operations.
Rule 5: a failed read is not an event and stops nothing; the next one may succeed.
Rule 6: `twinbus cost estimate` counts these operations, with the same pauses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.drivers.administration import PAGE_SIZE, QueueProperties
from twinbus.drivers.interface import Driver
from twinbus.errors import AccessRefused, EntityNotFound, MessageRefused, TwinbusError
from twinbus.failover.backlog_alerts import (
    BacklogAlerts,
    BacklogThresholds,
    PollingPace,
    QueueSnapshot,
)
from twinbus.mover.backlog_search import BacklogSearch, holds_messages, index_of
from twinbus.pairing.routing import SendRouter

if TYPE_CHECKING:
    from twinbus.pairing.client.namespace_manager import NamespaceManager

__all__ = ["BacklogMonitor", "BacklogReader", "QueueBacklog"]

PEEK_TIMEOUT_S: Final = 10.0

# A key for the backlog queues only can read each of them, but cannot list queues.
_DOES_NOT_LIST: Final = (AccessRefused, EntityNotFound, MessageRefused)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBacklog:
    """The content of one backlog queue; None for values that this application has no claim for."""

    queue: str
    messages: int | None = None
    dead_letters: int | None = None
    percent_full: float | None = None
    oldest_age_s: float | None = None
    oldest_sequence_number: int | None = None
    unknown: tuple[str, ...] = ()
    """Why values are unknown, one sentence for each reason."""

    @property
    def reading(self) -> QueueSnapshot:
        return QueueSnapshot(
            queue=self.queue,
            messages=self.messages,
            percent_full=self.percent_full,
            oldest_age_s=self.oldest_age_s,
            oldest=self.oldest_sequence_number,
            is_known=len(self.unknown) < 2,
        )


class BacklogReader:
    """Reads the content of the backlog queues."""

    def __init__(
        self,
        driver: Driver,
        manager: NamespaceManager | None,
        queues: Sequence[str],
        *,
        search: BacklogSearch | None = None,
    ) -> None:
        """``search`` finds other backlog queues that a listing does not return (Y9)."""
        self._driver, self._manager, self._queues = driver, manager, tuple(queues)
        self._search = search
        self._others: tuple[str, ...] = ()
        """Queues of other pairs that had messages at the last read."""
        self._reads_by_name = len(self._queues) == 1
        self._held: set[str] = set()
        """Queues that had messages at the last read."""

    async def read(self) -> list[QueueBacklog]:
        counts = await self._counts()
        found = list(await asyncio.gather(*(self._read(each, counts[each]) for each in counts)))
        self._others = tuple(
            each.queue
            for each in found
            if each.queue not in self._queues
            and (each.queue in self._held or not each.reading.is_known)
        )
        return found

    async def _read(self, queue: str, counts: QueueProperties | str) -> QueueBacklog:
        facts: dict[str, int | float | None] = {}
        unknown = []
        may_hold = True
        if isinstance(counts, str):
            unknown.append(counts)
        else:
            facts["messages"] = counts.counts.active
            facts["dead_letters"] = counts.counts.dead_letter
            facts["percent_full"] = counts.percent_full
            may_hold = counts.counts.active + counts.counts.scheduled > 0
        if may_hold or queue in self._held:
            oldest = await self._oldest(queue)
            if isinstance(oldest, str):
                unknown.append(oldest)
            else:
                facts |= oldest
        found = QueueBacklog(queue=queue, unknown=tuple(unknown), **facts)  # type: ignore[arg-type]
        if found.messages or found.oldest_sequence_number is not None:
            self._held.add(queue)
        else:
            self._held.discard(queue)
        return found

    # -- counts -------------------------------------------------------------------------------

    async def _counts(self) -> dict[str, QueueProperties | str]:
        """The queues with their counts, or why they are unknown."""
        queues = [*self._queues, *self._others]
        if self._manager is None:
            reason = "The number of messages requires a namespace manager with the Manage claim"
            return dict.fromkeys((*queues, *await self._find_by_peeks(queues)), reason)
        try:
            listed = await self._list(self._manager, queues)
        except TwinbusError as error:
            return dict.fromkeys(queues, str(error))
        if self._reads_by_name:
            queues += await self._find_by_peeks(queues)
        missing = [queue for queue in queues if queue not in listed]
        named = await asyncio.gather(*(_read_by_name(self._manager, queue) for queue in missing))
        known: dict[str, QueueProperties | str] = dict(listed)
        known |= zip(missing, named, strict=True)
        return {queue: known[queue] for queue in dict.fromkeys([*queues, *known])}

    async def _find_by_peeks(self, known: Sequence[str]) -> tuple[str, ...]:
        """Queues of other pairs that have messages, besides those in ``known``."""
        if self._search is None:
            return ()
        return await self._search.find_holding(known, is_idle=True)

    async def _list(
        self, manager: NamespaceManager, queues: Sequence[str]
    ) -> dict[str, QueueProperties]:
        """The queues in a listing; none if a listing would take too many requests."""
        found: dict[str, QueueProperties] = {}
        others: dict[str, QueueProperties] = {}
        if self._reads_by_name:
            return found
        wanted = {queue.lower(): queue for queue in queues}
        seen = 0
        try:
            async with aclosing(manager.get_queues()) as listing:
                async for each in listing:
                    seen += 1
                    queue = wanted.get(each.path.lower())
                    if queue is not None:
                        found[queue] = each
                    elif self._is_other(each):
                        others[each.path] = each
                    # The rest of a page costs nothing.
                    if len(found) == len(wanted) and (
                        self._search is None or seen % PAGE_SIZE == 0
                    ):
                        break
                    if seen >= PAGE_SIZE * len(wanted):
                        self._reads_by_name = True
                        break
        except _DOES_NOT_LIST:
            self._reads_by_name = True
        return found | others

    def _is_other(self, queue: QueueProperties) -> bool:
        """Whether another pair of the same primary created it, and it has messages."""
        search = self._search
        if search is None or index_of(queue.path, search.primary_name) is None:
            return False
        return holds_messages(queue)

    # -- the oldest message -------------------------------------------------------------------

    async def _oldest(self, queue: str) -> dict[str, int | float | None] | str:
        receiver = self._driver.receiver(queue)
        try:
            found = await receiver.peek(1, timeout_s=PEEK_TIMEOUT_S)
        except TwinbusError as error:
            return str(error)
        finally:
            await receiver.close()
        if not found:
            return {}
        age_s = None
        if found[0].enqueued_at_ms is not None:
            age_s = max(0.0, time.time() - found[0].enqueued_at_ms / 1000)
        return {"oldest_age_s": age_s, "oldest_sequence_number": found[0].sequence_number}


async def _read_by_name(manager: NamespaceManager, queue: str) -> QueueProperties | str:
    try:
        return await manager.get_queue(queue)
    except TwinbusError as error:
        return str(error)


_log = logging.getLogger("twinbus.pairing")


class BacklogMonitor:
    """Runs as long as the pair exists."""

    def __init__(
        self,
        routing: SendRouter,
        reader: BacklogReader,
        thresholds: BacklogThresholds,
        pace: PollingPace | None = None,
    ) -> None:
        self._routing = routing
        self._reader = reader
        self._alerts = BacklogAlerts(thresholds)
        self._pace = pace or PollingPace()
        self._task: asyncio.Task[None] | None = None
        self._was_diverted = False
        """Whether an entity was diverted when the last read began."""

    @property
    def may_hold_messages(self) -> bool:
        """Whether the backlog may have messages, as far as is known without reading it."""
        is_diverted = self._was_diverted or self._routing.is_anything_diverted
        return is_diverted or self._alerts.holds_messages

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="twinbus-backlog-watch")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        """The first read finds messages that an earlier process has left."""
        while True:
            was_diverted = self._was_diverted = self._routing.is_anything_diverted
            await self._read()
            await self._wait(was_diverted)

    async def _wait(self, was_diverted: bool) -> None:
        """Return when the next read is due.

        There is one more after the end of a diversion: its last messages came after the last read.
        """
        now_s, due_s = self._routing.now_s, None
        if was_diverted or self._alerts.holds_messages:
            due_s = now_s() + self._pace.pause_s(self._alerts.expected_s - now_s())
        while True:
            if self._routing.is_anything_diverted is not was_diverted:
                was_diverted = not was_diverted
                self._pace.restart()
                # Without a read that is due, read now; otherwise there is time, also for counts
                # that are late. Several changes in a row delay no read.
                due_s = now_s() if due_s is None else min(due_s, now_s() + self._pace.interval_s)
            left_s = None if due_s is None else due_s - now_s()
            if left_s is not None and left_s <= 0:
                return
            await self._routing.notifier.wait(left_s)

    async def _read(self) -> None:
        try:
            found = await self._reader.read()
        except Exception as error:
            _log.warning("The backlog could not be read: %s", error)
            return
        self._routing.publish(
            self._alerts.observe(
                [each.reading for each in found],
                self._routing.now_s(),
                is_diverted=self._routing.is_anything_diverted,
            )
        )

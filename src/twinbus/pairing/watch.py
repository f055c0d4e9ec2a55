"""How full the backlog is, how old, and whether anybody empties it.

    BacklogReader   asks once: counts from the management (Manage), the oldest message by a peek
                    (Listen); what this application may not ask stays unknown, with the reason
    BacklogWatch    asks again and again, and tells what the thresholds call worth telling

Rule 1: nothing is asked while nothing is diverted and the backlog is known to be empty: a pair
        that is well costs no operations.
Rule 2: a question that fails is no event and stops nothing; the next one may succeed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.core.watermarks import QueueReading, Thresholds, Watermarks
from twinbus.drivers.port import Driver
from twinbus.errors import TwinbusError
from twinbus.pairing.routing import Routing

if TYPE_CHECKING:
    from twinbus.pairing.manager import NamespaceManager

__all__ = ["WATCH_INTERVAL_S", "BacklogReader", "BacklogWatch", "QueueBacklog"]

_log = logging.getLogger("twinbus.pairing")

# Each round asks every backlog queue twice: with ten queues 80 operations a minute from each
# process that sends, during an outage only. `twinbus cost estimate` counts with it.
WATCH_INTERVAL_S: Final = 15.0
PEEK_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBacklog:
    """What one backlog queue holds; None where this application may not ask."""

    queue: str
    messages: int | None = None
    dead_letters: int | None = None
    percent_full: float | None = None
    oldest_age_s: float | None = None
    oldest_sequence_number: int | None = None
    unknown: tuple[str, ...] = ()
    """Why something is not known, one sentence for each."""

    @property
    def reading(self) -> QueueReading:
        return QueueReading(
            queue=self.queue,
            messages=self.messages,
            percent_full=self.percent_full,
            oldest_age_s=self.oldest_age_s,
            oldest=self.oldest_sequence_number,
            is_known=len(self.unknown) < 2,
        )


class BacklogReader:
    """Asks what the backlog queues hold."""

    def __init__(
        self, driver: Driver, manager: NamespaceManager | None, queues: Sequence[str]
    ) -> None:
        self._driver, self._manager, self._queues = driver, manager, tuple(queues)

    async def read(self) -> list[QueueBacklog]:
        return list(await asyncio.gather(*map(self._read, self._queues)))

    async def _read(self, queue: str) -> QueueBacklog:
        counts, oldest = await asyncio.gather(self._counts(queue), self._oldest(queue))
        unknown = tuple(answer for answer in (counts, oldest) if isinstance(answer, str))
        facts: dict[str, int | float | None] = {}
        for answer in (counts, oldest):
            if not isinstance(answer, str):
                facts |= answer
        return QueueBacklog(queue=queue, unknown=unknown, **facts)  # type: ignore[arg-type]

    async def _counts(self, queue: str) -> dict[str, int | float | None] | str:
        if self._manager is None:
            return "the number of messages needs a namespace manager with Manage"
        try:
            found = await self._manager.get_queue(queue)
        except TwinbusError as error:
            return str(error)
        return {
            "messages": found.counts.active,
            "dead_letters": found.counts.dead_letter,
            "percent_full": found.percent_full,
        }

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


class BacklogWatch:
    """Looks at the backlog from time to time."""

    def __init__(
        self,
        routing: Routing,
        reader: BacklogReader,
        thresholds: Thresholds,
        interval_s: float = WATCH_INTERVAL_S,
    ) -> None:
        self._routing = routing
        self._reader = reader
        self._marks = Watermarks(thresholds)
        # What an earlier process left behind is worth a look, too.
        self._is_due = True
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="twinbus-backlog-watch")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            while not (self._is_due or self._routing.is_anything_diverted):
                await self._routing.pulse.wait(None)
            # Once more after the end of a diversion: its last messages came after the last look.
            is_diverted = self._routing.is_anything_diverted
            await self._look()
            self._is_due = is_diverted or self._marks.holds_messages
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> None:
        try:
            found = await self._reader.read()
        except Exception as error:
            _log.warning("the backlog could not be looked at: %s", error)
            return
        self._routing.tell(
            self._marks.observe(
                [each.reading for each in found],
                self._routing.now_s(),
                is_diverted=self._routing.is_anything_diverted,
            )
        )

"""Looks at the backlog from time to time, and tells what the thresholds call worth telling (P16).

    core.watch_pace   when to look          backlog_reader   what a look asks
    core.watermarks   what is worth an event

Rule 1: nothing is asked while nothing is diverted and the backlog is known to be empty: a pair
        that is well costs no operations.
Rule 2: a question that fails is no event and stops nothing; the next one may succeed.
Rule 3: `twinbus cost estimate` counts what is done here, with the same pauses.
"""

from __future__ import annotations

import asyncio
import logging

from twinbus.core.watch_pace import PollingPace
from twinbus.core.watermarks import BacklogAlerts, BacklogThresholds
from twinbus.pairing.backlog_reader import BacklogReader
from twinbus.pairing.routing import SendRouter

__all__ = ["BacklogMonitor"]

_log = logging.getLogger("twinbus.pairing")


class BacklogMonitor:
    """Runs as long as the pair."""

    def __init__(
        self,
        routing: SendRouter,
        reader: BacklogReader,
        thresholds: BacklogThresholds,
        pace: PollingPace | None = None,
    ) -> None:
        self._routing = routing
        self._reader = reader
        self._marks = BacklogAlerts(thresholds)
        self._pace = pace or PollingPace()
        self._task: asyncio.Task[None] | None = None
        self._was_diverted = False
        """Whether something was, when the last look began."""

    @property
    def may_hold_messages(self) -> bool:
        """Whether the backlog may hold some, as far as is known without asking."""
        is_diverted = self._was_diverted or self._routing.is_anything_diverted
        return is_diverted or self._marks.holds_messages

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="twinbus-backlog-watch")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        """The first look is for what an earlier process has left behind."""
        while True:
            was_diverted = self._was_diverted = self._routing.is_anything_diverted
            await self._look()
            await self._rest(was_diverted)

    async def _rest(self, was_diverted: bool) -> None:
        """Return when the next look is due.

        There is one more after the end of a diversion: its last messages came after the last look.
        """
        now_s, due_s = self._routing.now_s, None
        if was_diverted or self._marks.holds_messages:
            due_s = now_s() + self._pace.pause_s(self._marks.expected_s - now_s())
        while True:
            if self._routing.is_anything_diverted is not was_diverted:
                was_diverted = not was_diverted
                self._pace.restart()
                # A backlog at which nobody looks is looked at now; otherwise there is time, also
                # for counts that come late. Changes in a row delay no look.
                due_s = now_s() if due_s is None else min(due_s, now_s() + self._pace.interval_s)
            left_s = None if due_s is None else due_s - now_s()
            if left_s is not None and left_s <= 0:
                return
            await self._routing.notifier.wait(left_s)

    async def _look(self) -> None:
        try:
            found = await self._reader.read()
        except Exception as error:
            _log.warning("the backlog could not be looked at: %s", error)
            return
        self._routing.publish(
            self._marks.observe(
                [each.reading for each in found],
                self._routing.now_s(),
                is_diverted=self._routing.is_anything_diverted,
            )
        )

"""The runtime of a pair: its background tasks, and the end of its two factories.

    PairLifecycle decides   StopPings, StopSyphon, CloseFactory, FaultFactory
    this module executes them

Rule 1: sends in progress finish before the secondary is closed: they may need it.
Rule 2: no task that was started here runs after both factories have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, assert_never

from twinbus.errors import NoBacklogQueue
from twinbus.failover.events import (
    BacklogUnreachable,
    ClaimMissing,
    DeadLettered,
    FactoryClosedEvent,
    FactoryFaultedEvent,
    ForeignMessages,
    SyphonStalled,
    error_summary,
)
from twinbus.failover.missing_claims import LISTEN
from twinbus.failover.pair_lifecycle import (
    CLOSE_WINDOW_S,
    CloseFactory,
    Effect,
    FaultFactory,
    PairLifecycle,
    Side,
    StopPings,
    StopSyphon,
)
from twinbus.pairing.backlog_monitor import BacklogMonitor, BacklogReader
from twinbus.pairing.operator_commands import OperatorCommandWatcher
from twinbus.pairing.pair_completion import Completion
from twinbus.pairing.pinger import Pinger
from twinbus.pairing.routing import Backlog, SendRouter

if TYPE_CHECKING:
    from twinbus.pairing.client.factory import MessagingFactory
    from twinbus.pairing.syphon_hosting import HostedSyphon

__all__ = ["Pair"]

_log = logging.getLogger("twinbus.pairing")

# A syphon that has ended with an error would end with it again at once.
SYPHON_PAUSE_S: Final = 30.0
MOVED_LOG_INTERVAL_S: Final = 5.0
"""Interval between log lines about moved messages."""
LAST_READ_S: Final = 2.0
"""Time limit for reading the backlog when the pair ends."""


class Pair:
    """A primary, a secondary, and the background tasks of the pair."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        *,
        routing: SendRouter,
        pinger: Pinger,
        commands: OperatorCommandWatcher | None,
        hosts_syphon: bool,
    ) -> None:
        self._factories = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self._pinger = pinger
        self._commands = commands
        self.routing = routing
        self.reader: BacklogReader
        self.monitor: BacklogMonitor
        """Both use the existing queues, and are set before start() and before complete()."""
        self.make_syphon: Callable[[], HostedSyphon] | None = None
        """Likewise, if this process hosts a syphon."""
        self.completion: Completion[Any] | None = None
        """For a pair without a backlog, set before start() (P19)."""
        self.foreign: dict[str, int] = {}
        """Messages of other pairs that the syphon did not move, by the marks of the pairs."""
        self._syphon: HostedSyphon | None = None
        self._moved = 0
        """Messages that were moved since the last log line."""
        self._moved_timer: asyncio.TimerHandle | None = None
        self._has_logged_remaining = False
        self._is_over = False
        self._lifecycle = PairLifecycle(hosts_syphon=hosts_syphon)
        self._window: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self.completion is None:
            self._start_work()
        else:
            self._publish_unreachable()
            self.completion.start()

    def set_backlog_error(self, error: BaseException) -> None:
        """The secondary is still unreachable, or refuses: an event for each kind of error, and
        not for every attempt."""
        before, self.routing.backlog_error = self.routing.backlog_error, error_summary(error)
        if before.partition(":")[0] != type(error).__name__:
            self._publish_unreachable()

    def complete(self, backlog: Backlog, outage: str) -> None:
        """The secondary has responded: the pair is complete."""
        self.completion = None
        self.routing.complete(backlog, outage)
        self._start_work()

    def check_complete(self) -> None:
        """Raise NoBacklogQueue while the pair has no backlog."""
        if self.routing.backlog is None:
            error = NoBacklogQueue(
                f"Secondary {self._factories[Side.SECONDARY].address} has not responded yet: "
                f"{self.routing.backlog_error}",
                hint="Wait for the event backlog-ready; until then sends go to the primary only",
            )
            error.is_transient = True
            raise error

    def _publish_unreachable(self) -> None:
        self.routing.publish([BacklogUnreachable(time.monotonic(), self.routing.backlog_error)])

    def _start_work(self) -> None:
        if self._commands is not None:
            self._commands.start()
        self._pinger.start()
        self.monitor.start()
        self._start_syphon()

    def _start_syphon(self) -> None:
        if self.make_syphon is not None and not self._is_over:
            self._syphon = self.make_syphon()
            self._syphon.start()

    def syphon_ended(self, error: BaseException) -> None:
        """The syphon has ended with an error. Sends do not need it, so the pair continues: an
        event is published, and another syphon starts soon."""
        if self._is_over:
            return
        self.routing.publish(
            [FactoryFaultedEvent("syphon", time.monotonic(), error_summary(error))]
        )
        asyncio.get_running_loop().call_later(SYPHON_PAUSE_S, self._start_syphon)

    def syphon_stalled(self, reason: str) -> None:
        """Messages wait, and the syphon moves none."""
        self.routing.publish([SyphonStalled(time.monotonic(), reason)])

    def claim_missing(self, path: str, claim: str) -> None:
        """The syphon cannot receive from a backlog queue, or cannot send to a destination."""
        side = Side.SECONDARY if claim == LISTEN else Side.PRIMARY
        address = str(self._factories[side].address)
        self.routing.publish([ClaimMissing(time.monotonic(), address, path, claim)])

    def dead_lettered(self, messages: int) -> None:
        """The syphon has dead-lettered messages that cannot be delivered (Y4)."""
        self.routing.publish([DeadLettered(time.monotonic(), messages)])

    def count_moved(self, messages: int) -> None:
        """The syphon has moved messages: one log line for those of an interval."""
        self._moved += messages
        if self._moved_timer is None:
            loop = asyncio.get_running_loop()
            self._moved_timer = loop.call_later(MOVED_LOG_INTERVAL_S, self._log_moved)

    def _log_moved(self) -> None:
        if self._moved_timer is not None:
            self._moved_timer.cancel()
            self._moved_timer = None
        if self._moved:
            address = self._factories[Side.PRIMARY].address
            _log.info("Syphon: %s moved to %s", _format_count(self._moved), address)
        self._moved = 0

    def foreign_messages(self, owner: str, messages: int) -> None:
        """The syphon did not move messages of another pair (P21): one event for each pair."""
        is_new = owner not in self.foreign
        self.foreign[owner] = self.foreign.get(owner, 0) + messages
        if is_new:
            self.routing.publish([ForeignMessages(time.monotonic(), owner, messages)])

    # -- ends ---------------------------------------------------------------------------------

    async def end_side(self, side: Side, fault: str | None) -> None:
        """A factory was closed, and its sends have ended; or it has faulted."""
        if self.completion is not None:
            await self.completion.stop()
            self.routing.backlog_error = f"MessagingFactory for the {side.value} is closed"
        now_s = time.monotonic()
        if fault is None:
            effects = self._lifecycle.closed(side, now_s)
            self.routing.publish([FactoryClosedEvent(side.value, now_s)])
        else:
            self._is_over = True
            effects = self._lifecycle.faulted(side, now_s, fault)
            self.routing.publish([FactoryFaultedEvent(side.value, now_s, fault)])
        closings: list[Effect] = [each for each in effects if isinstance(each, CloseFactory)]
        await self._execute([each for each in effects if each not in closings])
        if fault is None and not self._has_logged_remaining:
            self._has_logged_remaining = True
            await self._log_remaining()
        await self._execute(closings)
        self._set_window()

    async def _log_remaining(self) -> None:
        """Log how many messages stay in the backlog: this process does not move them any more."""
        if self.routing.backlog is None or not self.monitor.may_hold_messages:
            return
        try:
            async with asyncio.timeout(LAST_READ_S):
                found = await self.reader.read()
        except Exception:  # The end of the pair does not depend on it.
            found = []
        counts = [each.messages for each in found if each.messages is not None]
        is_held = any(each.oldest_sequence_number is not None for each in found)
        if found and not is_held and not sum(counts):
            return
        waiting = "messages wait" if is_held else "messages may wait"
        if total := sum(counts):
            waiting = f"{_format_count(total)} {'waits' if total == 1 else 'wait'}"
        _log.warning(
            "The pair of %s is closed, and %s in its backlog at %s. To move them to the primary, "
            "run `twinbus syphon`, with --spool DIR if the secondary is an EmbeddedNamespace",
            self._factories[Side.PRIMARY].address,
            waiting,
            self._factories[Side.SECONDARY].address,
        )

    async def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StopPings():
                    await self._pinger.stop()
                    await self.monitor.stop()
                    if self._commands is not None:
                        await self._commands.stop()
                case StopSyphon():
                    await self._stop_syphon(effect.within_s)
                case CloseFactory():
                    await self._close_in_time(effect.side)
                case FaultFactory():
                    await self._factories[effect.side].fault(effect.reason)
                case _:
                    assert_never(effect)

    async def _close_in_time(self, side: Side) -> None:
        try:
            async with asyncio.timeout(CLOSE_WINDOW_S):
                await self._factories[side].close()
        except TimeoutError:  # It has sends in progress.
            await self._execute(self._lifecycle.handle_timer(time.monotonic()))

    async def _stop_syphon(self, within_s: float) -> None:
        self._is_over = True
        if self._syphon is None:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._syphon.stop()
        except TimeoutError:
            _log.warning("Syphon: did not stop within %g s", within_s)
        self._log_moved()

    # -- the close window -----------------------------------------------------------------------

    def _set_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
        due_s = self._lifecycle.next_timer()
        if due_s is not None:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(due_s - time.monotonic(), self._end_window)

    def _end_window(self) -> None:
        self._window = None
        effects = self._lifecycle.handle_timer(time.monotonic())
        if effects:
            self._start_task(self._execute(effects))
        else:
            self._set_window()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


def _format_count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages:,} messages"

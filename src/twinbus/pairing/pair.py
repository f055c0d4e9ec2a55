"""The two factories of a pair while they are together: what runs for them, and their ends.

    PairLifecycle says   StopPings, StopSyphon, CloseFactory, FaultFactory
    this file does it

Rule 1: sends that are under way finish before the secondary is closed: they may need it.
Rule 2: nothing that was started here is left running when both have ended.
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

# A syphon that ended because of a mistake would make it again at once.
SYPHON_PAUSE_S: Final = 30.0
MOVED_LOG_INTERVAL_S: Final = 5.0
"""One line of the log for what a hosted syphon moves in this time."""
LAST_LOOK_S: Final = 2.0
"""How long the end of a pair waits to learn what stays in its backlog."""


class Pair:
    """A primary, a secondary, and what keeps them useful to each other."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        *,
        routing: SendRouter,
        pinger: Pinger,
        orders: OperatorCommandWatcher | None,
        hosts_syphon: bool,
    ) -> None:
        self._factories = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self._pinger = pinger
        self._orders = orders
        self.routing = routing
        self.reader: BacklogReader
        self.watch: BacklogMonitor
        """Both for the queues that there are, set before start() and before completed()."""
        self.make_syphon: Callable[[], HostedSyphon] | None = None
        """Likewise, where this process hosts one."""
        self.completion: Completion[Any] | None = None
        """For a pair without a backlog, set before start() (P19)."""
        self.foreign: dict[str, int] = {}
        """Messages of other pairs that the syphon has left alone, by the marks of the pairs."""
        self._syphon: HostedSyphon | None = None
        self._moved = 0
        """Messages that came home since the log was told last."""
        self._moved_timer: asyncio.TimerHandle | None = None
        self._has_told_left = False
        self._is_over = False
        self._lifecycle = PairLifecycle(hosts_syphon=hosts_syphon)
        self._window: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self.completion is None:
            self._start_work()
        else:
            self._tell_unreachable()
            self.completion.start()

    def unreachable(self, error: BaseException) -> None:
        """The secondary still does not answer, or refuses: an event for each kind of reason, and
        not for every try."""
        before, self.routing.backlog_error = self.routing.backlog_error, error_summary(error)
        if before.partition(":")[0] != type(error).__name__:
            self._tell_unreachable()

    def completed(self, backlog: Backlog, outage: str) -> None:
        """The secondary answered: from here on this is a pair like any other."""
        self.completion = None
        self.routing.complete(backlog, outage)
        self._start_work()

    def check_complete(self) -> None:
        """Refuse what needs a backlog, where there is none yet."""
        if self.routing.backlog is None:
            error = NoBacklogQueue(
                f"the secondary {self._factories[Side.SECONDARY].address} has not answered yet: "
                f"{self.routing.backlog_error}",
                hint="Wait for the event backlog-ready; sends go to the primary until then",
            )
            error.is_transient = True
            raise error

    def _tell_unreachable(self) -> None:
        self.routing.publish([BacklogUnreachable(time.monotonic(), self.routing.backlog_error)])

    def _start_work(self) -> None:
        if self._orders is not None:
            self._orders.start()
        self._pinger.start()
        self.watch.start()
        self._start_syphon()

    def _start_syphon(self) -> None:
        if self.make_syphon is not None and not self._is_over:
            self._syphon = self.make_syphon()
            self._syphon.start()

    def syphon_ended(self, error: BaseException) -> None:
        """The syphon has stopped by itself. Sends do not need it, so nothing is given up: it is
        told, and another one begins soon."""
        if self._is_over:
            return
        self.routing.publish(
            [FactoryFaultedEvent("syphon", time.monotonic(), error_summary(error))]
        )
        asyncio.get_running_loop().call_later(SYPHON_PAUSE_S, self._start_syphon)

    def syphon_stalled(self, reason: str) -> None:
        """Messages wait and the syphon moves none."""
        self.routing.publish([SyphonStalled(time.monotonic(), reason)])

    def claim_missing(self, path: str, claim: str) -> None:
        """The syphon may not receive from a backlog queue, or not send to a destination."""
        side = Side.SECONDARY if claim == LISTEN else Side.PRIMARY
        address = str(self._factories[side].address)
        self.routing.publish([ClaimMissing(time.monotonic(), address, path, claim)])

    def dead_lettered(self, messages: int) -> None:
        """The syphon gave up on messages that nobody can deliver (Y4)."""
        self.routing.publish([DeadLettered(time.monotonic(), messages)])

    def moved(self, messages: int) -> None:
        """Messages have come home: a line in the log for those of a while."""
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
            _log.info("Syphon: %s moved home to %s", _counted(self._moved), address)
        self._moved = 0

    def foreign_found(self, owner: str, messages: int) -> None:
        """The syphon left messages of another pair alone (P21): told once for each pair."""
        is_new = owner not in self.foreign
        self.foreign[owner] = self.foreign.get(owner, 0) + messages
        if is_new:
            self.routing.publish([ForeignMessages(time.monotonic(), owner, messages)])

    # -- ends ---------------------------------------------------------------------------------

    async def ended(self, side: Side, fault: str | None) -> None:
        """A factory was closed by its owner, and its sends are over; or it was given up."""
        if self.completion is not None:
            await self.completion.stop()
            self.routing.backlog_error = f"the factory of the {side.value} was closed"
        now_s = time.monotonic()
        if fault is None:
            effects = self._lifecycle.closed(side, now_s)
            self.routing.publish([FactoryClosedEvent(side.value, now_s)])
        else:
            self._is_over = True
            effects = self._lifecycle.faulted(side, now_s, fault)
            self.routing.publish([FactoryFaultedEvent(side.value, now_s, fault)])
        closings: list[Effect] = [each for each in effects if isinstance(each, CloseFactory)]
        await self._carry_out([each for each in effects if each not in closings])
        if fault is None and not self._has_told_left:
            self._has_told_left = True
            await self._tell_left()
        await self._carry_out(closings)
        self._set_window()

    async def _tell_left(self) -> None:
        """Say what stays in the backlog: nobody of this process brings it home any more."""
        if self.routing.backlog is None or not self.watch.may_hold_messages:
            return
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                found = await self.reader.read()
        except Exception:  # Whatever it is, the end of the pair does not wait for it.
            found = []
        counts = [each.messages for each in found if each.messages is not None]
        is_held = any(each.oldest_sequence_number is not None for each in found)
        if found and not is_held and not sum(counts):
            return
        waiting = "messages wait" if is_held else "messages may wait"
        if total := sum(counts):
            waiting = f"{_counted(total)} {'waits' if total == 1 else 'wait'}"
        _log.warning(
            "The pair of %s is closed and %s in its backlog at %s. A syphon brings them home: "
            "`twinbus syphon`, with --spool DIR if the secondary is an EmbeddedNamespace",
            self._factories[Side.PRIMARY].address,
            waiting,
            self._factories[Side.SECONDARY].address,
        )

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StopPings():
                    await self._pinger.stop()
                    await self.watch.stop()
                    if self._orders is not None:
                        await self._orders.stop()
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
        except TimeoutError:  # It has sends of its own under way.
            await self._carry_out(self._lifecycle.handle_timer(time.monotonic()))

    async def _stop_syphon(self, within_s: float) -> None:
        self._is_over = True
        if self._syphon is None:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._syphon.stop()
        except TimeoutError:
            _log.warning("the syphon did not stop within %g s", within_s)
        self._log_moved()

    # -- the five seconds -----------------------------------------------------------------------

    def _set_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
        due_s = self._lifecycle.next_timer()
        if due_s is not None:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(due_s - time.monotonic(), self._window_is_over)

    def _window_is_over(self) -> None:
        self._window = None
        effects = self._lifecycle.handle_timer(time.monotonic())
        if effects:
            self._later(self._carry_out(effects))
        else:
            self._set_window()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


def _counted(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages:,} messages"

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

from twinbus.core.events import Closed, DeadLettered, Faulted, SyphonStalled, told
from twinbus.core.lifecycle import (
    CLOSE_WINDOW_S,
    CloseFactory,
    Effect,
    FaultFactory,
    PairLifecycle,
    Side,
    StopPings,
    StopSyphon,
)
from twinbus.pairing.backlog_reader import BacklogReader
from twinbus.pairing.orders import OrderWatch
from twinbus.pairing.pinger import Pinger
from twinbus.pairing.routing import Routing
from twinbus.pairing.watch import BacklogWatch

if TYPE_CHECKING:
    from twinbus.pairing.factory import MessagingFactory
    from twinbus.pairing.hosting import HostedSyphon

__all__ = ["Pair"]

_log = logging.getLogger("twinbus.pairing")

# A syphon that ended because of a mistake would make it again at once.
SYPHON_PAUSE_S: Final = 30.0


class Pair:
    """A primary, a secondary, and what keeps them useful to each other."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        *,
        routing: Routing,
        reader: BacklogReader,
        pinger: Pinger,
        watch: BacklogWatch,
        orders: OrderWatch | None,
        hosts_syphon: bool,
    ) -> None:
        self._factories = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self.reader = reader
        self._pinger = pinger
        self._watch = watch
        self._orders = orders
        self.routing = routing
        self.make_syphon: Callable[[], HostedSyphon] | None = None
        """Set before start(), where this process hosts one."""
        self._syphon: HostedSyphon | None = None
        self._is_over = False
        self._lifecycle = PairLifecycle(hosts_syphon=hosts_syphon)
        self._window: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._orders is not None:
            self._orders.start()
        self._pinger.start()
        self._watch.start()
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
        self.routing.tell([Faulted("syphon", time.monotonic(), told(error))])
        asyncio.get_running_loop().call_later(SYPHON_PAUSE_S, self._start_syphon)

    def syphon_stalled(self, reason: str) -> None:
        """Messages wait and the syphon moves none."""
        self.routing.tell([SyphonStalled(time.monotonic(), reason)])

    def dead_lettered(self, messages: int) -> None:
        """The syphon gave up on messages that nobody can deliver (Y4)."""
        self.routing.tell([DeadLettered(time.monotonic(), messages)])

    # -- ends ---------------------------------------------------------------------------------

    async def ended(self, side: Side, fault: str | None) -> None:
        """A factory was closed by its owner, and its sends are over; or it was given up."""
        now_s = time.monotonic()
        if fault is None:
            effects = self._lifecycle.closed(side, now_s)
            self.routing.tell([Closed(side.value, now_s)])
        else:
            self._is_over = True
            effects = self._lifecycle.faulted(side, now_s, fault)
            self.routing.tell([Faulted(side.value, now_s, fault)])
        await self._carry_out(effects)
        self._set_window()

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StopPings():
                    await self._pinger.stop()
                    await self._watch.stop()
                    if self._orders is not None:
                        await self._orders.stop()
                case StopSyphon():
                    await self._stop_syphon(effect.within_s)
                case CloseFactory():
                    await self._close_in_time(effect.side)
                case FaultFactory():
                    await self._factories[effect.side].give_up(effect.reason)
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

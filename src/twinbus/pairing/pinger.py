"""Keeps the time of a pair: diverts what has failed for long enough, pings what is diverted.

    the earliest timer of all entities --> handle_timer --> events, and pings
    a ping's answer --> ping_answered --> restored, or another ping later

Rule 1: one task keeps the time of all entities; each ping has a task of its own, so that one that
        hangs delays no other. An entity never has two pending (P11).
Rule 2: a ping uses a link of its own, because the senders' links may be the problem.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never
from uuid import uuid4

from twinbus.drivers.interface import Driver, Sender
from twinbus.encoding.envelope import ping
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import AccessRefused, AuthenticationFailed, EntityNotFound
from twinbus.failover.events import Event, PingPrimary, error_summary
from twinbus.pairing.options import PingMode
from twinbus.pairing.routing import SendRouter

__all__ = ["Pinger"]

_log = logging.getLogger("twinbus.pairing")

# Long enough for a slow primary that is coming back, short enough to ask again soon when the
# answer was lost on the way.
PING_TIMEOUT_S_MIN: Final = 5.0
PING_TIMEOUT_S_MAX: Final = 30.0


class Pinger:
    """Runs as long as the pair."""

    def __init__(
        self,
        routing: SendRouter,
        primary: Driver,
        mode: PingMode,
        contact: Callable[[], Awaitable[str]],
    ) -> None:
        """``contact`` says why the primary cannot be contacted, or nothing."""
        self._routing = routing
        self._primary = primary
        self._mode = mode
        self._contact = contact
        self._asking: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_time(), name="twinbus-pinger")
        if self._routing.outage:
            self._track(asyncio.create_task(self._await_contact(), name="twinbus-contact"))

    async def stop(self) -> None:
        """No ping after this; may be called twice."""
        tasks = [*self._asking] + ([self._task] if self._task is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _timeout_s(self) -> float:
        interval_s = self._routing.policy.ping_interval_s
        return min(max(interval_s, PING_TIMEOUT_S_MIN), PING_TIMEOUT_S_MAX)

    async def _keep_time(self) -> None:
        while True:
            self._do_what_is_due()
            await self._routing.notifier.wait(self._until_next_s())

    def _do_what_is_due(self) -> None:
        now_s = self._routing.now_s()
        for entity in list(self._routing.entities.values()):
            due: list[Event | PingPrimary] = entity.failover.handle_timer(now_s)
            for each in due:
                if isinstance(each, PingPrimary):
                    self._begin(each)
            self._routing.publish(each for each in due if not isinstance(each, PingPrimary))

    def _until_next_s(self) -> float | None:
        timers = [entity.failover.next_timer() for entity in self._routing.entities.values()]
        times = [timer for timer in timers if timer is not None]
        return min(times) - self._routing.now_s() if times else None

    async def _await_contact(self) -> None:
        """A pair that was made during an outage, and whose entities nobody uses yet: find out
        when it is over, so that their first sends go home (P17)."""
        while self._routing.outage:
            await self._interval_passed()
            try:
                found = await self._contact()
            except Exception:
                found = ""  # Whatever it says, it can say something.
            if self._routing.outage:  # Unless a ping, or an operator, knew better meanwhile.
                self._routing.outage = found

    async def _interval_passed(self) -> None:
        """Wait for a ping interval, which may be changed meanwhile."""
        routing, began_s = self._routing, self._routing.now_s()
        while (left_s := began_s + routing.policy.ping_interval_s - routing.now_s()) > 0:
            await routing.notifier.wait(left_s)

    # -- one ping -----------------------------------------------------------------------------

    def _begin(self, wanted: PingPrimary) -> None:
        self._track(asyncio.create_task(self._ping(wanted), name=f"twinbus-ping-{wanted.path}"))

    def _track(self, task: asyncio.Task[None]) -> None:
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ping(self, wanted: PingPrimary) -> None:
        failure = await self._failure(wanted.path)
        if failure is None:
            self._routing.rules.credential.has_succeeded = True
        failover = self._routing.entity(wanted.path).failover
        self._routing.publish(
            failover.ping_answered(
                wanted.epoch,
                self._routing.now_s(),
                None if failure is None else error_summary(failure),
                refusal=_refusal(failure),
            )
        )

    async def _failure(self, path: str) -> Exception | None:
        """Ping; what went wrong, or None."""
        try:
            await self._ask(self._primary.sender(path))
        except Exception as error:
            return error
        return None

    async def _ask(self, sender: Sender) -> None:
        try:
            match self._mode:
                case "message":
                    message = OutgoingMessage(ping(uuid4().hex))
                    await sender.send([message], timeout_s=self._timeout_s)
                case "attach":
                    await sender.attach(timeout_s=self._timeout_s)
                case _:
                    assert_never(self._mode)
        finally:
            await _let_go(sender)


def _refusal(failure: Exception | None) -> str:
    """What the primary will answer until an operator acts; nothing for all other errors."""
    match failure:
        case EntityNotFound():
            return "not found"
        case AccessRefused() | AuthenticationFailed():
            return "unauthorized"
        case _:
            return ""


async def _let_go(sender: Sender) -> None:
    try:
        await sender.close()
    except Exception as error:
        _log.debug("the link of a ping did not close: %s", error)

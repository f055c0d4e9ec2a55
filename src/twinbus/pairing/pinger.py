"""The timers of a pair: diverts entities after the failover interval, pings diverted entities.

    the earliest timer of all entities --> handle_timer --> events, and pings
    the answer to a ping --> ping_answered --> restored, or another ping later

Rule 1: one task handles the timers of all entities; each ping has its own task, so that a ping
        without an answer delays no other. An entity never has two pending pings (P11).
Rule 2: a ping uses its own link, because the links of the senders may be the problem.
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

# Long enough for a slow primary that has just started, short enough to ping again soon if an answer
# was lost.
PING_TIMEOUT_S_MIN: Final = 5.0
PING_TIMEOUT_S_MAX: Final = 30.0


class Pinger:
    """Runs as long as the pair exists."""

    def __init__(
        self,
        routing: SendRouter,
        primary: Driver,
        mode: PingMode,
        contact: Callable[[], Awaitable[str]],
    ) -> None:
        """``contact`` returns why the primary is unreachable, or an empty text."""
        self._routing = routing
        self._primary = primary
        self._mode = mode
        self._contact = contact
        self._ping_tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_timers(), name="twinbus-pinger")
        if self._routing.outage:
            self._track(asyncio.create_task(self._await_contact(), name="twinbus-contact"))

    async def stop(self) -> None:
        """End all timers and pings; may be called twice."""
        tasks = [*self._ping_tasks] + ([self._task] if self._task is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _timeout_s(self) -> float:
        interval_s = self._routing.policy.ping_interval_s
        return min(max(interval_s, PING_TIMEOUT_S_MIN), PING_TIMEOUT_S_MAX)

    async def _run_timers(self) -> None:
        while True:
            self._handle_due_timers()
            await self._routing.notifier.wait(self._until_next_s())

    def _handle_due_timers(self) -> None:
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
        """For a pair that was created during an outage and has no used entities yet: detect the
        end of the outage, so that first sends go to the primary (P17)."""
        while self._routing.outage:
            await self._wait_interval()
            try:
                found = await self._contact()
            except Exception:
                found = ""  # Any answer means that it is reachable.
            if self._routing.outage:  # A ping or an operator may have ended it.
                self._routing.outage = found

    async def _wait_interval(self) -> None:
        """Wait for a ping interval, which may change while waiting."""
        routing, began_s = self._routing, self._routing.now_s()
        while (left_s := began_s + routing.policy.ping_interval_s - routing.now_s()) > 0:
            await routing.notifier.wait(left_s)

    # -- one ping -----------------------------------------------------------------------------

    def _begin(self, wanted: PingPrimary) -> None:
        self._track(asyncio.create_task(self._ping(wanted), name=f"twinbus-ping-{wanted.path}"))

    def _track(self, task: asyncio.Task[None]) -> None:
        self._ping_tasks.add(task)
        task.add_done_callback(self._ping_tasks.discard)

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
        """Ping; the error, or None."""
        try:
            await self._send_ping(self._primary.sender(path))
        except Exception as error:
            return error
        return None

    async def _send_ping(self, sender: Sender) -> None:
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
            await _close_quietly(sender)


def _refusal(failure: Exception | None) -> str:
    """The error that the primary returns until an operator acts; empty for all other errors."""
    match failure:
        case EntityNotFound():
            return "not found"
        case AccessRefused() | AuthenticationFailed():
            return "unauthorized"
        case _:
            return ""


async def _close_quietly(sender: Sender) -> None:
    try:
        await sender.close()
    except Exception as error:
        _log.debug("Ping: closing the link failed: %s", error)

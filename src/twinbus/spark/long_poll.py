"""Waits for messages on the driver: one long poll for each queue, and no executor.

    polled --a message--> ready --passed to a task--> not polled --the batch is over--> polled

A queue becomes ready with the message that the poll received, locked: it is passed to the task,
which needs no second receive for it.

Rule 1: an idle queue costs one receive for each ``poll_s`` (Y3), whatever Spark does meanwhile.
Rule 2: a message whose lock leaves a task too little time is abandoned instead of passed on.
Rule 3: a poll does not end unnoticed: an error that is not the service's is raised by the next
        ready().
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from twinbus.common.clock import Clock, SystemClock
from twinbus.drivers.interface import Driver, Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError
from twinbus.failover.backoff import Backoff

__all__ = ["LongPollWatcher"]

POLL_S: Final = 900.0
"""15 minutes: 40 receives an hour for 10 queues."""
GATHER_S: Final = 0.02
"""After a queue became ready: how long the next one may take to join the same batch."""
GATHER_S_MAX: Final = 0.2
SETTLE_TIMEOUT_S: Final = 10.0
WELL_S: Final = 1.0
LOCK_LEFT_S_MIN: Final = 20.0
"""A task needs this long to start, to send one message and to settle it."""


class LongPollWatcher:
    """The long polls of some queues, in the running event loop."""

    def __init__(
        self,
        driver: Driver,
        paths: Sequence[str],
        *,
        poll_s: float = POLL_S,
        lock_left_s_min: float = LOCK_LEFT_S_MIN,
        backoff: Backoff | None = None,
        on_fault: Callable[[str, ServiceError | None], object] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """``on_fault`` is called with the error of a queue that cannot be received from, and with
        None once it can."""
        self._driver = driver
        self._receivers = {path: driver.receiver(path) for path in paths}
        self._poll_s = poll_s
        self._lock_left_s_min = lock_left_s_min
        self._backoff = backoff or Backoff()
        self._on_fault = on_fault
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._ready_messages: dict[str, ReceivedMessage] = {}
        self._has_messages = asyncio.Event()
        self._defect: BaseException | None = None

    def add(self, path: str) -> None:
        """One more queue, not polled until start_polling()."""
        self._receivers[path] = self._driver.receiver(path)

    def start_polling(self, paths: Iterable[str] | None = None) -> None:
        """Poll these queues, or all; polls that are under way go on."""
        for path in self._receivers if paths is None else paths:
            if path not in self._ready_messages and path not in self._polls:
                poll = asyncio.create_task(self._poll(path), name=f"long poll {path}")
                poll.add_done_callback(self._on_poll_end)
                self._polls[path] = poll

    async def ready(self, wait_s: float) -> dict[str, ReceivedMessage | None]:
        """The queues that have messages, each with the locked message that was received (None when
        its lock is too old); empty after ``wait_s``. They are not polled until start_polling()."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._has_messages.wait()
        if self._defect is not None:
            raise self._defect
        if not self._ready_messages:
            return {}
        await self._collect()
        old = {
            path: each for path, each in self._ready_messages.items() if not self._is_fresh(each)
        }
        await self._abandon_all(old)
        # Taken at the very end: if the caller is cancelled before, the next call returns them.
        taken, self._ready_messages = self._ready_messages, {}
        self._has_messages.clear()
        return {path: None if path in old else each for path, each in taken.items()}

    @property
    def has_messages(self) -> bool:
        """Whether a queue has messages that ready() has not returned yet."""
        return bool(self._ready_messages)

    async def _collect(self) -> None:
        """After an outage all backlog queues become ready at about the same time: one batch for
        all of them."""
        loop = asyncio.get_running_loop()
        ends_s, known = loop.time() + GATHER_S_MAX, 0
        while known < len(self._ready_messages) < len(self._receivers) and loop.time() < ends_s:
            known = len(self._ready_messages)
            await asyncio.sleep(GATHER_S)

    async def close(self) -> None:
        """Stop polling and abandon the messages that were not passed on; may be called twice."""
        polls, self._polls = list(self._polls.values()), {}
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        taken, self._ready_messages = self._ready_messages, {}
        await self._abandon_all(taken)
        await asyncio.gather(*map(_close, self._receivers.values()))

    # -- one queue ------------------------------------------------------------------------

    async def _poll(self, path: str) -> None:
        failure_count = 0
        while True:
            try:
                # After a failure a short poll: its answer shows that the queue works again.
                wait_s = min(WELL_S, self._poll_s) if failure_count else self._poll_s
                messages = await self._receivers[path].receive(1, wait_s=wait_s)
            except ServiceError as error:
                failure_count += 1
                self._report_fault(path, error)
                await asyncio.sleep(self._backoff.pause_s(failure_count, self._random))
                continue
            if failure_count:
                failure_count = 0
                self._report_fault(path, None)
            if messages:
                self._ready_messages[path] = messages[0]
                self._has_messages.set()
                del self._polls[path]
                return

    def _on_poll_end(self, poll: asyncio.Task[None]) -> None:
        if not poll.cancelled() and (error := poll.exception()) is not None:
            self._defect = error
            self._has_messages.set()

    def _is_fresh(self, message: ReceivedMessage) -> bool:
        until_ms = message.locked_until_ms
        if until_ms is None:
            return True
        return (until_ms - self._clock.now().wall_ms) / 1000 >= self._lock_left_s_min

    async def _abandon_all(self, messages: Mapping[str, ReceivedMessage]) -> None:
        """All at the same time, so that an unresponsive service delays this only once."""
        await asyncio.gather(*(_abandon(self._receivers[p], m) for p, m in messages.items()))

    def _report_fault(self, path: str, error: ServiceError | None) -> None:
        if self._on_fault is not None:
            self._on_fault(path, error)


async def _abandon(receiver: Receiver, message: ReceivedMessage) -> None:
    with suppress(ServiceError):  # Its lock ends by itself.
        await receiver.abandon([message], timeout_s=SETTLE_TIMEOUT_S)


async def _close(receiver: Receiver) -> None:
    with suppress(ServiceError):
        await receiver.close()

"""All backlog queues of a mover, and the steps from which schedulers are built.

    run(work)          the same work for all queues at the same time, until it is done or stop()
    empty()            workers that receive a chunk and move it, until nothing is found
    retry_deferred()   deferred messages, piece by piece

The caller decides what the work for one queue is: for ever and with long polls (``Mover``), or for
some seconds (``run_work_order``).

Rule 1: stop() ends at once what only waits, and gives the chunks in progress some seconds; those
        that are cancelled then have receipts, and their messages are received again (L2). That and
        closing the links takes well below 5 s, so that a caller with that timeout gets the result.
Rule 2: one receive at a time for each queue; a queue that was found empty is not received from
        again by another worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Final

from twinbus.common.clock import Clock, SystemClock
from twinbus.drivers.interface import Driver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError
from twinbus.mover.destination_senders import DestinationSenders
from twinbus.mover.in_flight_limit import InFlightLimit
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.circuit_breaker import DestinationCircuits
from twinbus.mover.planning.receipts import Receipt
from twinbus.mover.planning.scan_pace import ScanPace
from twinbus.mover.primary_probe import PrimaryProbe
from twinbus.mover.queue_mover import GroupResources, OnReceipts, QueueMover

__all__ = ["OnFault", "QueueGroup"]

OnFault = Callable[[str, ServiceError], object]
"""Called with the backlog queue that could not be read, and its error."""

STOP_S_MAX: Final = 2.5
"""How long a stop waits for the chunks in progress (L2); a chunk takes a fraction of a second."""
CLOSE_S_MAX: Final = 0.8
"""How long it then waits for links to be closed."""
RATE_CHECK_S: Final = 0.2
"""How often a worker that waits for the rate checks whether its chunk is still wanted."""
KEPT_WAIT_S: Final = 0.5
"""How long a receive of an empty queue waits while other queues are still in progress."""


def _always() -> bool:
    return True


class QueueGroup:
    """The queues of one mover and what they share. Used once: after run() it is closed."""

    def __init__(
        self,
        secondary: Driver,
        primary: Driver,
        queues: Sequence[str],
        options: MoverOptions,
        *,
        on_receipts: OnReceipts,
        on_fault: OnFault | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.random = random or Random()
        self.circuits = DestinationCircuits(options.backoff, self.random)
        self.senders = DestinationSenders(primary)
        self.primary_probe = PrimaryProbe(
            self.circuits, self.senders, self.clock, options.attach_timeout_s
        )
        self.faults: dict[str, ServiceError] = {}
        """Backlog queues whose last receive failed, each with its error."""
        self._on_receipts, self._on_fault = on_receipts, on_fault
        self._scan_pace = ScanPace()
        self._shared = GroupResources(
            secondary=secondary,
            senders=self.senders,
            circuits=self.circuits,
            in_flight=InFlightLimit(options.in_flight_max or options.chunk_count),
            options=options,
            clock=self.clock,
            on_receipts=self._take_receipts,
            scan_pace=self._scan_pace,
        )
        self.queues = [QueueMover(self._shared, queue) for queue in queues]
        self._work: Callable[[QueueMover], Awaitable[None]] | None = None
        """What run() does for a queue; None while it does not run."""
        self._tasks: list[asyncio.Task[None]] = []
        self._has_more = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_cancelled = False
        self._idle: set[asyncio.Task[object]] = set()
        self._works: list[float] = []
        """When each step in progress began."""
        self._next_start_s = 0.0

    # -- start and stop -------------------------------------------------------------------

    async def run(self, work: Callable[[QueueMover], Awaitable[None]]) -> None:
        """``work`` for all queues at the same time, until all of it is done or stop() ends it."""
        self._work = work
        for queue in self.queues:
            self._begin(queue)
        everything = asyncio.create_task(self._all_done())
        stopping = asyncio.create_task(self._wind_down(everything))
        try:
            await asyncio.shield(everything)
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        finally:
            self._work = None
            tasks = [stopping, everything, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()

    def add(self, path: str) -> None:
        """Add a queue; its work starts at once, if run() is active."""
        queue = QueueMover(self._shared, path)
        self.queues.append(queue)
        self._begin(queue)

    def _begin(self, queue: QueueMover) -> None:
        work = self._work
        if work is None:
            return

        async def one() -> None:
            try:
                await work(queue)
            except ServiceError as error:
                self.note_fault(queue, error)

        self._tasks.append(asyncio.create_task(one()))
        self._has_more.set()

    async def _all_done(self) -> None:
        """Return when the work of every queue is done, also of those that were added meanwhile;
        raises the error that ended one of them."""
        while pending := [task for task in self._tasks if not task.done()]:
            self._has_more.clear()
            added = asyncio.create_task(self._has_more.wait())
            try:
                await asyncio.wait((*pending, added), return_when=asyncio.FIRST_COMPLETED)
            finally:
                added.cancel()
            for task in pending:
                if task.done():
                    task.result()
        for task in self._tasks:
            task.result()

    def stop(self) -> None:
        """Ask run() to end; it does within about 3 s."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def is_over(self) -> bool:
        """Whether no chunk may begin: stop() was called, or the primary is unreachable."""
        return self.is_stopped or self.primary_probe.is_unreachable

    async def _wind_down(self, everything: asyncio.Task[None]) -> None:
        await self._stopped.wait()
        for task in list(self._idle):
            task.cancel()
        await asyncio.sleep(STOP_S_MAX)
        self._is_cancelled = True
        everything.cancel()

    async def close(self) -> None:
        """Close all links."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                # At the same time: each close waits for a namespace that does not respond.
                closing = [queue.close() for queue in self.queues]
                await asyncio.gather(*closing, self.senders.close())

    # -- moving ---------------------------------------------------------------------------

    async def move(self, queue: QueueMover, wait_s: float) -> list[Receipt]:
        """Receive and move one chunk; no receipts when none was found in time."""
        with self._idling():
            deliveries = await queue.receive(wait_s=wait_s)
        return await self.move_received(queue, deliveries)

    async def move_received(
        self, queue: QueueMover, deliveries: Sequence[ReceivedMessage]
    ) -> list[Receipt]:
        with self.in_progress():
            return await queue.move(deliveries)

    async def empty(
        self,
        queue: QueueMover,
        *,
        wait_s: float,
        receives: int = 1,
        may_receive: Callable[[], bool] = _always,
        may_end: Callable[[], bool] = _always,
    ) -> bool:
        """Move chunks until ``receives`` receives in a row find nothing (True) and ``may_end``
        allows it, or until no chunk may be received any more."""
        found_nothing = 0
        turn = asyncio.Lock()

        async def receive() -> list[ReceivedMessage]:
            nonlocal found_nothing
            while True:
                await self.wait_for_rate(may_receive)
                is_done = found_nothing >= receives and may_end()
                if is_done or self.is_over or not may_receive():
                    return []
                is_kept = found_nothing >= receives
                with self._idling():
                    deliveries = await queue.receive(wait_s=KEPT_WAIT_S if is_kept else wait_s)
                if deliveries:
                    found_nothing = 0
                    return deliveries
                found_nothing += 1

        async def worker() -> None:
            while True:
                async with turn:
                    deliveries = await receive()
                if not deliveries:
                    return
                await self.move_received(queue, deliveries)

        workers = [worker() for _ in range(self.options.chunks_at_once)]
        for result in await asyncio.gather(*workers, return_exceptions=True):
            # A worker that was cancelled was waiting when stop() was called.
            if isinstance(result, Exception):
                raise result
        return found_nothing >= receives

    async def retry_deferred(
        self, queue: QueueMover, may_receive: Callable[[], bool] = _always
    ) -> None:
        """Retry the deferred messages whose destinations may be tried, while ``may_receive``."""

        async def may_go_on() -> bool:
            await self.wait_for_rate(may_receive)
            return not self.is_over and may_receive()

        with self.in_progress():
            await queue.retry_deferred(may_go_on)

    @property
    def is_at_work(self) -> bool:
        """Whether messages of any queue are being moved now."""
        return bool(self._works)

    def has_older_work(self, since_s: float) -> bool:
        """Whether a step is in progress that began before ``since_s``."""
        return any(began_s < since_s for began_s in self._works)

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """The block moves messages."""
        began_s = self.clock.now().monotonic_s
        self._works.append(began_s)
        try:
            yield
        finally:
            self._works.remove(began_s)

    # -- pauses ---------------------------------------------------------------------------

    @contextmanager
    def _idling(self) -> Iterator[None]:
        """The task only waits in the block: stop() ends it at once."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            yield
        finally:
            self._idle.discard(task)

    async def wait_for_primary(self) -> None:
        """Return once the primary is reachable."""
        if not self.primary_probe.is_unreachable:
            return
        with self._idling():
            await self.primary_probe.wait_until_reachable()
        # This mover received nothing meanwhile; others may have.
        self._note_sign()

    async def rest(self, pause_s: float) -> None:
        """A pause, which stop() ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopped.wait()

    @property
    def rate_delay_s(self) -> float:
        """For how long the rate allows no further chunk."""
        return max(0.0, self._next_start_s - self.clock.now().monotonic_s)

    async def wait_for_rate(self, may_go_on: Callable[[], bool] = _always) -> None:
        """Wait until the rate allows another chunk, or none is wanted any more."""
        while self.rate_delay_s > 0 and not self.is_stopped and may_go_on():
            await self.rest(min(self.rate_delay_s, RATE_CHECK_S))

    # -- receipts and faults --------------------------------------------------------------

    def _note_sign(self) -> None:
        """Messages may have been diverted: queues are scanned for what others deferred."""
        self._scan_pace.note_sign(self.clock.now().monotonic_s)

    def _take_receipts(self, receipts: Sequence[Receipt]) -> None:
        if receipts:
            self._note_sign()
        if self.options.rate_per_s is not None:
            now_s = self.clock.now().monotonic_s
            begin_s = max(now_s, self._next_start_s)
            self._next_start_s = begin_s + len(receipts) / self.options.rate_per_s
        self._on_receipts(receipts)

    def note_fault(self, queue: QueueMover, error: ServiceError) -> None:
        self._note_sign()
        self.faults[queue.queue] = error
        if self._on_fault is not None:
            self._on_fault(queue.queue, error)

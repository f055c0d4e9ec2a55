"""Brings the messages of all backlog queues home: the syphon's engine, in plain Python.

    Mover --for each queue--> lanes      receive a chunk, send it home, and again
                          '-> returner   tries what was set aside, once it may be tried
    move_chunk                           one chunk of one queue, for who schedules chunks itself

Rule 1: any number of movers may run against one backlog (Y5).
Rule 2: stop() lets the chunks under way end, for at most 5 s; what is cut off then is told in
        receipts and comes again.
Rule 3: while nobody can be reached at the primary nothing is received: an outage costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from twinbus.clock import Clock, SystemClock
from twinbus.core.chunk_board import DestinationBoard
from twinbus.core.receipts import Receipt, Tally
from twinbus.drivers.port import Driver
from twinbus.pairing.mover_gate import PrimaryGate
from twinbus.pairing.mover_options import MoverOptions
from twinbus.pairing.mover_queue import OnReceipts, QueueMover, Shared
from twinbus.pairing.mover_senders import SenderPool
from twinbus.service_errors import ServiceError

__all__ = ["Mover", "MoverOptions", "MoverReport", "OnFault", "move_chunk"]

OnFault = Callable[[str, ServiceError], object]
"""Told the backlog queue that could not be read, and why."""

STOP_S_MAX: Final = 5.0
"""How long a stop waits for the chunks under way (L2)."""
ONCE_WAIT_S: Final = 1.0
"""How long a run over everything waits for a queue before it calls it empty."""
# How often what is set aside is looked at, in memory: the pauses of the board decide the rest.
RETURN_INTERVAL_S: Final = 0.5


async def move_chunk(
    secondary: Driver,
    primary: Driver,
    queue: str,
    options: MoverOptions,
    *,
    wait_s: float = ONCE_WAIT_S,
) -> list[Receipt]:
    """Bring one chunk of ``queue`` home: a receipt for every message that was received.

    Raises ServiceError when the queue cannot be read; everything after that is in the receipts.
    """
    mover = Mover(secondary, primary, [queue], options)
    try:
        deliveries = await mover.queues[0].receive(wait_s=wait_s)
        return await mover.queues[0].bring_home(deliveries)
    finally:
        await mover.close()


@dataclass(slots=True)
class MoverReport:
    """What a mover has done so far."""

    tally: Tally = field(default_factory=Tally)
    faults: dict[str, ServiceError] = field(default_factory=dict)
    """Backlog queues that could not be read when it was last tried, each with its error."""


class Mover:
    """All backlog queues of a pair. Used once: after run() it is closed."""

    def __init__(
        self,
        secondary: Driver,
        primary: Driver,
        queues: Sequence[str],
        options: MoverOptions,
        *,
        on_receipts: OnReceipts | None = None,
        on_fault: OnFault | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.report = MoverReport()
        self._options = options
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._on_receipts, self._on_fault = on_receipts, on_fault
        self._senders = SenderPool(primary)
        board = DestinationBoard(options.backoff, self._random)
        shared = Shared(secondary, self._senders, board, options, self._clock, self._take_receipts)
        self._gate = PrimaryGate(board, self._senders, self._clock, options.send_timeout_s)
        self.queues = [QueueMover(shared, queue) for queue in queues]
        self._stopped = asyncio.Event()
        self._is_cut_off = False
        self._idle: set[asyncio.Task[object]] = set()
        self._next_start_s = 0.0

    # -- running --------------------------------------------------------------------------

    async def run(self, *, once: bool = False) -> MoverReport:
        """Move until stop(); with ``once`` until every queue is empty, or what is left has to
        wait for its destination."""
        work = self._drain if once else self._serve
        tasks = [asyncio.create_task(work(each)) for each in self.queues]
        everything = asyncio.gather(*tasks)
        stopping = asyncio.create_task(self._wind_down(everything))
        try:
            await asyncio.shield(everything)
        except asyncio.CancelledError:
            if not self._is_cut_off:
                raise
        finally:
            # Each by itself: a gathering that has failed no longer passes a cancellation on.
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            await self.close()
        return self.report

    async def preview(self) -> MoverReport:
        """What run() would do with everything that is there now; nothing is received."""
        try:
            for queue in self.queues:
                try:
                    await queue.preview()
                except ServiceError as error:
                    self._note_fault(queue, error)
        finally:
            await self.close()
        return self.report

    def stop(self) -> None:
        """Ask run() to end; it does within about 5 s."""
        self._stopped.set()

    async def _wind_down(self, everything: asyncio.Future[list[None]]) -> None:
        await self._stopped.wait()
        for task in list(self._idle):
            task.cancel()
        await asyncio.sleep(STOP_S_MAX)
        self._is_cut_off = True
        everything.cancel()

    async def close(self) -> None:
        """Let go of all links."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                # All at once: each takes its time with a namespace that does not answer.
                closing = [queue.close() for queue in self.queues]
                await asyncio.gather(*closing, self._senders.close())

    # -- one queue ------------------------------------------------------------------------

    async def _serve(self, queue: QueueMover) -> None:
        async with asyncio.TaskGroup() as group:
            for _lane in range(self._options.chunks_at_once):
                group.create_task(self._lane(queue))
            group.create_task(self._returner(queue))

    async def _lane(self, queue: QueueMover) -> None:
        failure_count = 0
        while not self._stopped.is_set():
            try:
                await self._step(queue)
                failure_count = 0
                self.report.faults.pop(queue.queue, None)
            except ServiceError as error:
                failure_count += 1
                self._note_fault(queue, error)
                await self._rest(self._options.backoff.pause_s(failure_count, self._random))

    async def _step(self, queue: QueueMover) -> None:
        with self._resting():
            await self._gate.opened()
        await self._keep_pace()
        # What another mover had set aside before it was killed does not wait for a whole poll.
        wait_s = self._options.poll_s
        if not queue.has_discovered:
            wait_s = min(wait_s, ONCE_WAIT_S)
        if not await self._move(queue, wait_s):
            await queue.discover_if_due()

    async def _returner(self, queue: QueueMover) -> None:
        while not self._stopped.is_set():
            await self._rest(RETURN_INTERVAL_S)
            if not self._gate.is_closed:
                try:
                    await queue.bring_back()
                except ServiceError as error:
                    self._note_fault(queue, error)

    async def _drain(self, queue: QueueMover) -> None:
        try:
            await self._empty(queue)
            if not self._is_over:
                await queue.discover()
                await queue.bring_back()
        except ServiceError as error:
            self._note_fault(queue, error)

    async def _empty(self, queue: QueueMover) -> None:
        """Until a receive finds nothing, or nobody is there to send to."""
        is_empty = False

        async def lane() -> None:
            nonlocal is_empty
            while not (is_empty or self._is_over):
                await self._keep_pace()
                if not await self._move(queue, ONCE_WAIT_S):
                    is_empty = True

        lanes = [lane() for _ in range(self._options.chunks_at_once)]
        for result in await asyncio.gather(*lanes, return_exceptions=True):
            # A lane that was cancelled was waiting when somebody called stop().
            if isinstance(result, Exception):
                raise result

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or self._gate.is_closed

    async def _move(self, queue: QueueMover, wait_s: float) -> list[Receipt]:
        with self._resting():
            deliveries = await queue.receive(wait_s=wait_s)
        return await queue.bring_home(deliveries)

    # -- pauses ---------------------------------------------------------------------------

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """While a task only waits, stop() ends it at once."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            yield
        finally:
            self._idle.discard(task)

    async def _rest(self, pause_s: float) -> None:
        with self._resting():
            await asyncio.sleep(pause_s)

    async def _keep_pace(self) -> None:
        """Wait until the rate allows another chunk."""
        pause_s = self._next_start_s - self._clock.now().monotonic_s
        if self._options.rate_per_s is not None and pause_s > 0:
            await self._rest(pause_s)

    # -- telling --------------------------------------------------------------------------

    def _take_receipts(self, receipts: Sequence[Receipt]) -> None:
        self.report.tally.add(receipts)
        if self._options.rate_per_s is not None:
            now_s = self._clock.now().monotonic_s
            begin_s = max(now_s, self._next_start_s)
            self._next_start_s = begin_s + len(receipts) / self._options.rate_per_s
        if self._on_receipts is not None:
            self._on_receipts(receipts)

    def _note_fault(self, queue: QueueMover, error: ServiceError) -> None:
        self.report.faults[queue.queue] = error
        if self._on_fault is not None:
            self._on_fault(queue.queue, error)

"""Publishers and consumers in processes of their own, so that two of them use two cores.

Each worker connects first and says so; only when all are ready do they start, at the same instant.

    prepare() -> "ready" -> go -> run -> Sent (or the reason why not)
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from bench.processes import BenchError
from bench.sending import Publisher, Sent, publish_paced, publish_windowed

# Starting an interpreter and connecting takes well under a second on an idle machine.
READY_WAIT_S_MAX = 60.0
RUN_WAIT_S_MAX = 900.0


class Drainer(Protocol):
    def drain(self, expected: int, window: int) -> None:
        """Return when ``expected`` messages are received and settled."""

    def close(self) -> None: ...


class QueueAccess(Protocol):
    """What a worker needs to reach one queue; it must survive pickling."""

    def publisher(self, size_bytes: int, batch: int) -> Publisher: ...

    def drainer(self) -> Drainer: ...


class Job(Protocol):
    def prepare(self) -> Callable[[], Sent]:
        """Connect, and return the part that is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedJob:
    """Publish with a window of outstanding deliveries until time or limit is reached."""

    queue: QueueAccess
    size_bytes: int
    batch: int
    window: int
    duration_s: float
    deliveries_max: int = 1 << 40

    def prepare(self) -> Callable[[], Sent]:
        publisher = self.queue.publisher(self.size_bytes, self.batch)
        return lambda: publish_windowed(
            publisher, self.window, self.duration_s, self.deliveries_max
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedJob:
    """Publish single messages at a fixed rate and note every acknowledgement's latency."""

    queue: QueueAccess
    size_bytes: int
    rate_per_s: float
    duration_s: float

    def prepare(self) -> Callable[[], Sent]:
        publisher = self.queue.publisher(self.size_bytes, 1)
        return lambda: publish_paced(publisher, self.rate_per_s, self.duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainJob:
    """Receive and settle a known number of messages."""

    queue: QueueAccess
    expected: int
    window: int

    def prepare(self) -> Callable[[], Sent]:
        drainer = self.queue.drainer()

        def run() -> Sent:
            started_s = time.monotonic()
            drainer.drain(self.expected, self.window)
            return Sent(self.expected, started_s, time.monotonic(), array("d"))

        return run


def _work(job: Job, pipe: Connection) -> None:
    try:
        run = job.prepare()
        pipe.send("ready")
        pipe.recv()
        pipe.send(run())
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def run_together(jobs: Sequence[Job]) -> list[Sent]:
    """Run every job in its own process from the same start; fail if one of them fails."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for job in jobs:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            _answer(pipe, READY_WAIT_S_MAX)
        for pipe in pipes:
            pipe.send("go")
        return [sent for pipe in pipes if isinstance(sent := _answer(pipe, RUN_WAIT_S_MAX), Sent)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _answer(pipe: Connection, timeout_s: float) -> object:
    if not pipe.poll(timeout_s):
        raise BenchError(f"a worker did not answer within {timeout_s:.0f} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise BenchError("a worker ended without an answer") from None
    if isinstance(answer, str) and answer != "ready":
        raise BenchError(f"a worker failed with {answer}")
    return answer


def rate_per_s(sents: Sequence[Sent]) -> float:
    """Messages per second of all workers together, from the first start to the last end."""
    total = sum(sent.acknowledged_messages for sent in sents)
    return total / (max(s.ended_s for s in sents) - min(s.started_s for s in sents))

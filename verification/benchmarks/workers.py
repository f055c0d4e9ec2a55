"""Publishers and consumers in processes of their own, so that two of them use two cores.

Each worker connects first and says so; only when all are ready do they start, at the same instant.

    prepare() -> "ready" -> go -> run -> Sent (or the reason why not) -> the broker rests -> end

A worker keeps its connection until the broker rests. Once, on a busy machine, RabbitMQ still held
messages after a drain whose consumer had left at once; the cause was not found.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from verification.benchmarks.processes import BenchError, cpu_seconds, wait_until_quiet
from verification.benchmarks.sending import Publisher, Sent, publish_paced, publish_windowed

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
        pipe.recv()  # nothing comes: the parent ends this process when the broker rests
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Ran:
    """What the workers of one round did together, and what it cost the broker."""

    sents: list[Sent]
    broker_cpu_s: float
    """Its work until it came to rest: steadier than a rate when the machine is shared."""

    @property
    def messages(self) -> int:
        return sum(sent.acknowledged_messages for sent in self.sents)

    @property
    def rate_per_s(self) -> float:
        """Messages per second, from the first start to the last end."""
        ended_s = max(sent.ended_s for sent in self.sents)
        return self.messages / (ended_s - min(sent.started_s for sent in self.sents))

    @property
    def broker_cpu_us_per_message(self) -> float:
        return 1e6 * self.broker_cpu_s / max(1, self.messages)


def run_together(jobs: Sequence[Job], broker_pid: int) -> Ran:
    """Run every job in its own process from the same start; fail if one of them fails.

    Returns when the broker has come to rest and the workers are gone.
    """
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
        cpu_before_s = cpu_seconds(broker_pid)
        for pipe in pipes:
            pipe.send("go")
        answers = [_answer(pipe, RUN_WAIT_S_MAX) for pipe in pipes]
        wait_until_quiet(broker_pid)
        sents = [answer for answer in answers if isinstance(answer, Sent)]
        return Ran(sents, cpu_seconds(broker_pid) - cpu_before_s)
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

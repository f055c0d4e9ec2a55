"""The threads of the store, and the reads that queues request.

A StoreThread runs the store's blocking calls, so that the event loop never waits for a disk. Each
namespace has two: the writer, which commits, and the reader. The event loop submits a job and is
called back on its own thread.

    submit(job, done, queue) --> the jobs of that queue --its turn--> one step --> done(result)
                                          ^                              |
                                          +------- there is more --------+

Rule 1: queues take turns, one step each; within a queue jobs begin in the order in which they
        were submitted. Jobs without a queue run in order.
Rule 2: a job that may take long is a generator: what it does between two ``yield`` is a step, and
        a step is short (a few milliseconds). A job waits for one step of each other queue, however
        many reads a client requests of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twinbus.broker.engine.delivery_stream import READ_AHEAD_BYTES, READ_AHEAD_CHUNKS
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import (
    FindTimes,
    LoadBlob,
    LoadDue,
    LoadExpired,
    LoadNext,
    Request,
)
from twinbus.common.steps import Steps

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace

# Chunks or scheduled messages that one sweep reads, and their bytes; the next sweep follows at
# once. The loop handles a whole sweep in one turn: 64 KB are 2,500 messages at most.
SWEEP_COUNT_MAX = 256
SWEEP_BYTES_MAX = 64 * 1024


def submit_read(namespace: Namespace, queue: Queue, request: Request) -> None:
    """Read what the queue requests, on the reader's thread, and pass it the result."""
    queue_id = queue.queue_id
    match request:
        case LoadNext():
            namespace.read(
                queue,
                lambda store: store.load_chunks(
                    queue_id,
                    request.after_seq,
                    READ_AHEAD_BYTES,
                    READ_AHEAD_CHUNKS,
                    request.stream.session,
                ),
                partial(queue.chunks_loaded, request),
            )
        case LoadBlob():
            namespace.read(
                queue,
                lambda store: store.load_chunk_holding(queue_id, request.chunk.first_seq),
                partial(queue.blob_loaded, request),
            )
        case LoadExpired():
            namespace.read(
                queue,
                lambda store: store.load_expired(
                    queue_id, request.now_ms, SWEEP_COUNT_MAX, SWEEP_BYTES_MAX
                ),
                lambda rows: queue.expired_loaded(rows, namespace.now()),
            )
        case LoadDue():
            namespace.read(
                queue,
                lambda store: store.load_due(
                    queue_id, request.now_ms, SWEEP_COUNT_MAX, SWEEP_BYTES_MAX
                ),
                queue.due_loaded,
            )
        case FindTimes():
            namespace.read(
                queue,
                lambda store: (store.next_expiry(queue_id), store.next_due(queue_id)),
                lambda times: queue.times_found(*times),
            )


T = TypeVar("T")

Post = Callable[..., object]
"""Runs a function on the event loop's thread, e.g. ``loop.call_soon_threadsafe``."""

# Housekeeping waits until the thread had nothing to do for this long.
IDLE_BEFORE_HOUSEKEEPING_S = 0.1
# Between two attempts of housekeeping on an idle store.
HOUSEKEEPING_PAUSE_S = 1.0


class _Unfinished:
    """The result of a step that is not the last one."""


UNFINISHED: Final = _Unfinished()


class Job:
    """A call, or the steps of a generator that it returned."""

    __slots__ = ("_call", "_steps", "done")

    def __init__(self, call: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self._call = call
        self._steps: Generator[None, None, Any] | None = None
        self.done = done

    def step(self) -> Any:
        """Run one step; returns the result after the last one, else UNFINISHED."""
        if self._steps is None:
            result = self._call()
            if not isinstance(result, Generator):
                return result
            self._steps = result
        try:
            next(self._steps)
        except StopIteration as end:
            return end.value
        return UNFINISHED


class StoreThread:
    """Runs jobs on a thread; the module's rules define their order."""

    def __init__(
        self, name: str, post: Post, housekeeping: Callable[[], bool] | None = None
    ) -> None:
        self._post = post
        self._housekeeping = housekeeping
        self._inbox: SimpleQueue[tuple[object, Job] | None] = SimpleQueue()
        self._jobs: dict[object, deque[Job]] = {}
        """The jobs that wait, by queue, in the order of their turns. Only the thread uses it."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        job: Callable[[], T | Steps[T]],
        done: Callable[[T | None, Exception | None], None],
        queue: object = None,
    ) -> None:
        """Run ``job`` when ``queue`` has its turn; then ``done(result, error)`` on the loop."""
        self._inbox.put((queue, Job(job, done)))

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        wait_s = IDLE_BEFORE_HOUSEKEEPING_S
        while True:
            try:
                self._take_in(wait_s)
            except Empty:
                wait_s = self._run_housekeeping()
                continue
            if not self._jobs:
                return
            wait_s = IDLE_BEFORE_HOUSEKEEPING_S
            self._take_turn()

    def _take_in(self, wait_s: float) -> None:
        """Assign submitted jobs to their queues; without any job, wait for one."""
        inbox = self._inbox
        while not (self._jobs or self._is_stopping) or not inbox.empty():
            entry = inbox.get(timeout=wait_s if self._housekeeping else None)
            if entry is None:
                self._is_stopping = True
                continue
            queue, job = entry
            waiting = self._jobs.get(queue)
            if waiting is None:
                self._jobs[queue] = deque((job,))
            else:
                waiting.append(job)

    def _take_turn(self) -> None:
        queue, waiting = next(iter(self._jobs.items()))
        del self._jobs[queue]
        job = waiting.popleft()
        if not self._do(job):
            waiting.append(job)
        if waiting:
            self._jobs[queue] = waiting

    def _do(self, job: Job) -> bool:
        """Run one step; returns whether it was the last."""
        error: Exception | None = None
        try:
            result = job.step()
        except Exception as failure:  # the caller decides what each kind of failure means
            result, error = None, failure
        if result is UNFINISHED:
            return False
        # When the loop was closed meanwhile, there is no caller left.
        with suppress(RuntimeError):
            self._post(job.done, result, error)
        # The error references this frame: without this both, and all that the job was to write,
        # would wait for the garbage collector.
        del job, result, error
        return True

    def _run_housekeeping(self) -> float:
        if self._housekeeping is None:
            return HOUSEKEEPING_PAUSE_S
        try:
            return 0.0 if self._housekeeping() else HOUSEKEEPING_PAUSE_S
        except Exception:
            # A failing disk is reported by the next commit.
            return HOUSEKEEPING_PAUSE_S

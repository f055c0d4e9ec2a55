"""A thread that runs the store's blocking calls one after the other.

Each namespace has two: the writer, which commits, and the reader. The event loop hands over a
job and is called back on its own thread, so that nothing in the broker waits for a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Post = Callable[..., object]
"""Runs a function on the event loop's thread, e.g. ``loop.call_soon_threadsafe``."""

# Housekeeping waits until the thread had nothing to do for this long.
IDLE_BEFORE_HOUSEKEEPING_S = 0.1
# Between two looks for housekeeping on a quiet store.
HOUSEKEEPING_PAUSE_S = 1.0


class StoreThread:
    """Runs jobs in the order in which they came."""

    def __init__(
        self, name: str, post: Post, housekeeping: Callable[[], bool] | None = None
    ) -> None:
        self._post = post
        self._housekeeping = housekeeping
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, Any], None]] | None]
        self._jobs = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run ``job``; then ``done(result, error)`` on the event loop."""
        self._jobs.put((job, done))

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        wait_s = IDLE_BEFORE_HOUSEKEEPING_S
        while True:
            try:
                job = self._jobs.get(timeout=wait_s if self._housekeeping else None)
            except Empty:
                wait_s = self._keep_house()
                continue
            if job is None:
                return
            wait_s = IDLE_BEFORE_HOUSEKEEPING_S
            self._do(*job)

    def _do(self, job: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        try:
            result, error = job(), None
        except Exception as failure:  # the caller decides what each kind of failure means
            result, error = None, failure
        # When the loop was closed meanwhile, nobody is left to be told.
        with suppress(RuntimeError):
            self._post(done, result, error)

    def _keep_house(self) -> float:
        if self._housekeeping is None:
            return HOUSEKEEPING_PAUSE_S
        try:
            return 0.0 if self._housekeeping() else HOUSEKEEPING_PAUSE_S
        except Exception:
            # A failing disk shows itself at the next commit, where somebody is told.
            return HOUSEKEEPING_PAUSE_S

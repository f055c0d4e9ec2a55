"""A disk that is full or slow, without one: what the writer's thread meets instead of it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from twinbus.broker.faults.board import FaultRegistry
from twinbus.errors import StoreFull


def faulty(registry: FaultRegistry, commit: Callable[[], None]) -> Callable[[], None]:
    """The commit as the disk of now would take it. Chance is asked here, on the loop."""
    wait_s = 0.0
    for active in registry.on_now("slow-disk"):
        wait_s += active.latency_s()
        active.fires()
    is_full = any(active.fires() for active in registry.on_now("disk-full"))
    if not wait_s and not is_full:
        return commit

    def slowly() -> None:
        time.sleep(wait_s)
        if is_full:
            # The same error, by the same way, as when SQLite finds no room.
            raise StoreFull(path="fault disk-full", detail=os.strerror(errno.ENOSPC))
        commit()

    return slowly

"""Every lock of a queue is lost at once, as if the time of each had run out (rule F4).

Who waits for a session goes on waiting: it has no lock to lose.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from twinbus.broker.entities import fates

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue


def lose_locks(queue: Queue) -> int:
    """End all message and session locks; how many messages were held."""
    lost = queue.locked_count
    if queue.sessions is not None:
        queue.sessions.lose_all()
    while queue.locks.next_deadline_s() is not None:
        for run, mask in queue.locks.expired(inf):
            if run.consumer is not None:
                queue.credit_available(run.consumer)
            fates.count_failed_delivery(queue, run.chunk, mask)
    return lost

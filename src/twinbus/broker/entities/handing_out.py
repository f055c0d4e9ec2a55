"""Which messages are handed out next, and to whom.

Rule 1: the oldest message goes first, whether it came back or was never handed out; if its bytes
        must be read, later ones wait for it.
Rule 2: receivers of a lane take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.broker.entities import fates
from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.consumer import Grant
from twinbus.broker.entities.lane import Lane
from twinbus.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue


def pump(queue: Queue, now: Instant) -> list[Grant]:
    """Hand out what can be handed out."""
    grants: list[Grant] = []
    if queue.sessions is None:
        _pump(queue, queue.lane, now, grants)
        return grants
    queue.sessions.serve_waiters(now)
    for lane in queue.sessions.take_ready():
        _pump(queue, lane, now, grants)
    return grants


def _pump(queue: Queue, lane: Lane, now: Instant, grants: list[Grant]) -> None:
    while (consumer := lane.turns.first()) is not None:
        source = _next_source(queue, lane, now)
        if source is None:
            break
        grants.append(queue.grant(consumer, *source, now))
        lane.turns.next()
    if consumer is not None:
        queue.ask_next(lane)


def _next_source(queue: Queue, lane: Lane, now: Instant) -> tuple[Chunk, int, int] | None:
    """The oldest messages that can be handed out: (chunk, index, count)."""
    returned = _first_fresh(queue, lane.returned.first, now)
    head = _first_fresh(queue, lane.head, now)
    if returned is None:
        return None if head is None else (head, *head.next_free())
    index, count = returned.next_returned()
    seq = returned.first_seq + index
    if head is not None and head.first_seq + head.next_free()[0] < seq:
        return head, *head.next_free()
    if returned.blob is None:
        queue.ask_blob(returned)
        return None
    return returned, index, count


def _first_fresh(queue: Queue, first: Callable[[], Chunk | None], now: Instant) -> Chunk | None:
    """The first chunk, once nothing in it has expired."""
    while (chunk := first()) is not None:
        if not fates.expire(queue, chunk, now):
            return chunk
    return None

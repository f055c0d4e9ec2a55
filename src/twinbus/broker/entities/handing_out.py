"""Which messages are handed out next, and to whom.

Rule 1: the oldest message goes first, whether it came back or was never handed out; if its bytes
        must be read, later ones wait for it.
Rule 2: receivers of a lane take turns.
Rule 3: a pump hands out a few hundred messages; the rest comes with the next one, for which there
        is time or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.broker.entities import fates
from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.consumer import DeliveryBatch
from twinbus.broker.entities.lane import DeliveryStream
from twinbus.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue

# A message costs half a microsecond to hand out and to write, six if it has to be looked at whole;
# and what is handed out together costs as much as so many messages.
GRANT_COST = 16
PUMP_COST_MAX = 512


def deliver(queue: Queue, now: Instant) -> list[DeliveryBatch]:
    """Hand out what can be handed out, or a good part of it: queue.has_more says which."""
    grants: list[DeliveryBatch] = []
    if queue.sessions is None:
        _deliver(queue, queue.stream, now, grants, PUMP_COST_MAX)
        return grants
    queue.sessions.serve_waiters(now)
    left = PUMP_COST_MAX
    for lane in queue.sessions.take_ready():
        if left > 0:
            left = _deliver(queue, lane, now, grants, left)
        if left <= 0:
            queue.has_more = True
            queue.sessions.mark_ready(lane)
    return grants


def _deliver(
    queue: Queue, lane: DeliveryStream, now: Instant, grants: list[DeliveryBatch], left: int
) -> int:
    """Hand out what the lane has; what is left of the cost that is allowed."""
    while (consumer := lane.turns.first()) is not None:
        if left <= 0:
            queue.has_more = True
            return left
        source = _next_source(queue, lane, now)
        if source is None:
            break
        grant = queue.grant(consumer, *source, now)
        left -= grant.count + GRANT_COST
        grants.append(grant)
        lane.turns.next()
    if consumer is not None:
        queue.ask_next(lane)
    return left


def _next_source(queue: Queue, lane: DeliveryStream, now: Instant) -> tuple[Chunk, int, int] | None:
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

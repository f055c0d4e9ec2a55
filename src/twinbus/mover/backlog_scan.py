"""Peeks through a backlog queue page by page, and finds the deferred messages of a page.

Rule 1: a scan only peeks: nothing is received and nothing is locked, so that it may run beside
        everything else, and costs an idle queue no receive (Y3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.mover.chunk_transfer import PRIMARY
from twinbus.mover.planning.chunk_plan import DeliveryRules, plan_chunk
from twinbus.mover.planning.deferred_messages import is_deferred

__all__ = ["PAGE_COUNT", "find_deferred", "pages"]

PAGE_COUNT: Final = 250
"""Messages that one request peeks at or receives by number; the service allows 250."""


async def pages(
    receiver: Receiver, first: int, *, timeout_s: float
) -> AsyncIterator[list[ReceivedMessage]]:
    """All messages of the queue from sequence number ``first`` on, as pages of a peek."""
    while page := await receiver.peek(PAGE_COUNT, from_sequence=first, timeout_s=timeout_s):
        yield page
        # A message that cannot be decoded has no number: the scan must not restart because of it.
        last = max(each.sequence_number for each in page)
        if last < first:
            return
        first = last + 1


def find_deferred(
    page: Sequence[ReceivedMessage], rules: DeliveryRules, *, now_ms: int
) -> dict[str, list[int]]:
    """The numbers of the deferred messages of a page, by destination; PRIMARY: no usable one."""
    deferred = [each for each in page if is_deferred(each.encoded)]
    plan = plan_chunk(deferred, rules, now_ms=now_ms)
    found = {
        path: [item.delivered.sequence_number for item in items]
        for path, items in plan.by_destination.items()
    }
    if plan.poison:
        found[PRIMARY] = [each.item.delivered.sequence_number for each in plan.poison]
    return found

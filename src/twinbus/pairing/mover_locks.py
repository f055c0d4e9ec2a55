"""Keeps the locks of a chunk while it is moved.

A chunk is over in a fraction of its lock, nearly always. So nothing is started for it but a
timer; only a chunk that takes longer than half of its lock gets a task that renews.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from twinbus.core.chunk_ledger import ChunkLedger
from twinbus.core.parcel import ReceivedMessage
from twinbus.drivers.port import Receiver
from twinbus.service_errors import ServiceError

__all__ = ["renew_locks"]

# The lock of a backlog queue (P4). The service's clock may differ from ours, so what it says
# about the end of a lock is believed only within these.
LOCK_S_MAX: Final = 60.0
LOCK_S_MIN: Final = 2.0


def remaining_lock_s(deliveries: Sequence[ReceivedMessage], now_ms: int) -> float:
    """How long the locks of a chunk last from now, as far as we can tell."""
    ends_ms = [each.locked_until_ms for each in deliveries if each.locked_until_ms is not None]
    left_s = (min(ends_ms) - now_ms) / 1000 if ends_ms else LOCK_S_MAX
    return min(LOCK_S_MAX, max(LOCK_S_MIN, left_s))


@asynccontextmanager
async def renew_locks(
    receiver: Receiver, ledger: ChunkLedger, *, lock_s: float, timeout_s: float
) -> AsyncIterator[None]:
    """Renew what the ledger still owes, every half of the lock, until the block is left."""
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(asyncio.create_task(_renew(receiver, ledger, lock_s / 2, timeout_s)))

    timer = asyncio.get_running_loop().call_later(lock_s / 2, begin)
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _renew(
    receiver: Receiver, ledger: ChunkLedger, interval_s: float, timeout_s: float
) -> None:
    while not ledger.is_closed:
        # A lock that is lost shows when the message is settled, and a line that is down too.
        with suppress(ServiceError):
            await receiver.renew(ledger.unsettled, timeout_s=timeout_s)
        await asyncio.sleep(interval_s)

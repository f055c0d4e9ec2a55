"""One chunk of one backlog queue, for tests that look at each step."""

from __future__ import annotations

from twinbus.drivers.interface import Driver
from twinbus.mover.mover import ONCE_WAIT_S, Mover, MoverOptions
from twinbus.mover.planning.receipts import Receipt


async def move_chunk(
    secondary: Driver,
    primary: Driver,
    queue: str,
    options: MoverOptions,
    *,
    wait_s: float = ONCE_WAIT_S,
) -> list[Receipt]:
    """Move one chunk of ``queue`` to the primary: a receipt for every message that was received.

    Raises ServiceError when the queue cannot be read; everything after that is in the receipts.
    """
    mover = Mover(secondary, primary, [queue], options)
    try:
        deliveries = await mover.queues[0].receive(wait_s=wait_s)
        return await mover.queues[0].move(deliveries)
    finally:
        await mover.close()

"""An order service that accepts orders without a network: its secondary is its own disk.

    $ export SERVICEBUS_CONNECTION_STRING=...
    $ printf '1 coffee\n2 teas\n' | python examples/order_service.py ./spool

Every line is an order. While the queue ``orders`` is unreachable, orders wait in ./spool, and are
moved to the queue as soon as it is reachable again: in this run, or in the next one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from twinbus.aio import (
    BrokeredMessage,
    EmbeddedNamespace,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)

PATIENCE_S = 10.0


async def take_orders(primary_text: str, spool: Path, orders: Iterable[str]) -> int:
    """Send every order; returns how many still wait on the disk at the end."""
    async with (
        EmbeddedNamespace("spool", data_directory=spool) as disk,
        MessagingFactory.from_connection_string(primary_text) as primary,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(disk.connection_string),
            MessagingFactory.from_connection_string(disk.connection_string, driver="amqp"),
            backlog_queue_count=2,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
            enable_syphon=True,
            syphon=SyphonHosting("local"),  # It moves orders to the primary in this process.
            namespace_name="shop",  # The primary's name here, also while it is unreachable.
        )
        await primary.pair_namespace(options)
        queue = primary.create_queue_client("orders")
        for order in orders:
            # When send() returns, the order is stored durably: in the queue, or in ./spool.
            await queue.send(BrokeredMessage(order.encode()))
            where = "diverted" if primary.health("orders").is_diverted else "sent"
            print(f"{where}: {order}", flush=True)
        return await _wait_for_syphon(primary)


async def _wait_for_syphon(primary: MessagingFactory) -> int:
    """Give the syphon some seconds to move the orders that wait."""
    for _ in range(int(PATIENCE_S)):
        waiting = sum(queue.messages or 0 for queue in await primary.backlog())
        if not waiting or any(each.is_diverted for each in primary.failovers()):
            break
        await asyncio.sleep(1)
    return waiting


if __name__ == "__main__":
    lines = (line.strip() for line in sys.stdin)
    address = os.environ["SERVICEBUS_CONNECTION_STRING"]
    left = asyncio.run(take_orders(address, Path(sys.argv[1]), lines))
    print(f"{left} orders wait in the spool" if left else "all orders are in the queue")

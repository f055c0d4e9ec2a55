"""An outage drill: the primary is killed and restarted; no send may fail, no message may be lost.

    $ python examples/outage_drill.py

Two brokers run as processes of their own, with their data in a temporary directory. The exit code
is 0 when every order that was sent has arrived.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    QueueClient,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.testing import BrokerProcessHandle

ORDERS = 300
ARRIVAL_S_MAX = 60.0


async def drill(directory: Path) -> bool:
    """Whether everything that was sent has arrived."""
    with (
        BrokerProcessHandle(directory / "east", namespace="east", queues=("orders",)) as east,
        BrokerProcessHandle(directory / "west", namespace="west") as west,
    ):
        async with MessagingFactory.from_connection_string(east.connection_string) as primary:
            await primary.pair_namespace(paired_with(west))
            orders = primary.create_queue_client("orders")
            sent = await send(orders, range(ORDERS // 3))

            print(f"kill -9 {east.pid}: the primary has been killed")
            await asyncio.to_thread(east.kill)
            sent |= await send(orders, range(ORDERS // 3, 2 * ORDERS // 3))
            print(f"{primary.health('orders').messages_diverted} messages diverted to the backlog")

            await asyncio.to_thread(east.restart)
            print("the primary has been restarted")
            sent |= await send(orders, range(2 * ORDERS // 3, ORDERS))
            arrived = await receive(orders, sent)
    print(f"sent {len(sent)}, arrived {len(arrived)}, lost {len(sent - arrived)}")
    return arrived == sent


def paired_with(west: BrokerProcessHandle) -> SendAvailabilityPairedNamespaceOptions:
    """The options of a pair that fails over at once and hosts its own syphon."""
    return SendAvailabilityPairedNamespaceOptions(
        NamespaceManager.from_connection_string(west.connection_string),
        MessagingFactory.from_connection_string(west.connection_string),
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(seconds=1),
        enable_syphon=True,
        syphon=SyphonHosting("local"),
    )


async def send(orders: QueueClient, numbers: range) -> set[str]:
    """Send an order for each number; an error would end the drill."""
    for number in numbers:
        await orders.send(BrokeredMessage(b"1 coffee", message_id=f"order-{number}"))
    return {f"order-{number}" for number in numbers}


async def receive(orders: QueueClient, wanted: set[str]) -> set[str]:
    """Receive until all wanted ids have arrived. A duplicate counts once."""
    arrived: set[str] = set()
    end_s = time.monotonic() + ARRIVAL_S_MAX
    while not wanted <= arrived and time.monotonic() < end_s:
        for message in await orders.receive_batch(100, max_wait_time=1):
            arrived.add(str(message.message_id))
            await message.complete()
    return arrived


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        sys.exit(0 if asyncio.run(drill(Path(scratch))) else 1)

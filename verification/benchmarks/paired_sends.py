"""``python paired_sends.py QUEUE COUNT``: CPU time of paired sends, in µs each.

The primary is healthy; the environment has the connection strings. It is a program of its own with
public names only, so that it runs with the ``src`` directory of another commit (commits.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)

WARM_UP = 2_000
AT_ONCE = 16


async def measure(queue: str, count: int) -> float:
    primary_text = os.environ["SERVICEBUS_CONNECTION_STRING"]
    secondary_text = os.environ["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
    primary = MessagingFactory.from_connection_string(primary_text, driver="amqp")
    secondary = MessagingFactory.from_connection_string(secondary_text, driver="amqp")
    manager = NamespaceManager.from_connection_string(secondary_text)
    await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary))
    try:
        sender = primary.create_queue_client(queue)
        message = BrokeredMessage(bytes(1_024))

        async def send(number: int) -> None:
            for _ in range(number // AT_ONCE):
                await sender.send(message)

        async def send_all(number: int) -> None:
            await asyncio.gather(*(send(number) for _ in range(AT_ONCE)))

        await send_all(WARM_UP)
        began_s = time.process_time()
        await send_all(count)
        return (time.process_time() - began_s) / count * 1_000_000
    finally:
        await primary.close()


if __name__ == "__main__":
    print(asyncio.run(measure(sys.argv[1], int(sys.argv[2]))))

"""An application without a network: its primary cannot be reached, its secondary is its own disk.

    python -m tests.integration.pairing.offline_application DIRECTORY
    PRIMARY_CONNECTION_STRING_VARIABLE

It pairs, sends to the queue ``orders`` until it is killed, and prints the number of each message
after that was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.broker.options import ThrottleThresholds
from twinbus.drivers.embedded import EmbeddedNamespace

PRIMARY_NAME = "primary"
BACKLOG_QUEUE_COUNT = 3
# A test's machine may have less than the usual reserve.
ROOMY = ThrottleThresholds(disk_free_bytes_min=16 << 20)


def local_disk(directory: Path) -> EmbeddedNamespace:
    return EmbeddedNamespace("spool", data_directory=directory, thresholds=ROOMY)


async def main(directory: Path, primary_text: str) -> None:
    async with local_disk(directory) as spool:
        primary = MessagingFactory.from_connection_string(primary_text, driver="amqp")
        options = SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(spool.connection_string),
            MessagingFactory.from_driver(spool.driver()),
            BACKLOG_QUEUE_COUNT,
            failover_interval=0,  # type: ignore[arg-type]
            namespace_name=PRIMARY_NAME,
        )
        await primary.pair_namespace(options)
        sender = primary.create_message_sender("orders")
        number = 0
        while True:
            await sender.send(BrokeredMessage(b"%d" % number, message_id=f"m{number}"))
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), os.environ[sys.argv[2]]))

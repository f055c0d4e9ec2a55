"""An application whose secondary is on its own disk, sending until it is killed.

    python -m tests.drivers.embedded.spooling_application DIRECTORY

It prints the number of each message after that was acknowledged, and never ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.drivers.parcels import parcel
from twinbus.broker.options import Thresholds
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.pairing.backlog_queues import backlog_queue
from twinbus.pairing.manager import NamespaceManager

QUEUE = "contoso/x-servicebus-transfer/0"
# A test's machine may have less than the usual reserve.
ROOMY = Thresholds(disk_free_bytes_min=16 << 20)


async def main(directory: Path) -> None:
    async with EmbeddedNamespace("spool", data_directory=directory, thresholds=ROOMY) as spool:
        manager = NamespaceManager.from_connection_string(spool.connection_string)
        await manager.create_queue(backlog_queue(QUEUE))
        driver = spool.driver()
        sender = driver.sender(QUEUE)
        number = 0
        while True:
            await sender.send([parcel(b"%d" % number)], timeout_s=30)
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

"""An application that uses azure-servicebus, with one changed line: the import of its client.

    $ export SERVICEBUS_CONNECTION_STRING=... SERVICEBUS_SECONDARY_CONNECTION_STRING=...
    $ printf '1 coffee\n2 teas\n' | python examples/drop_in.py

While the primary is unreachable orders go to the backlog on the secondary. `twinbus syphon` moves
them to the primary when it is reachable again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from azure.servicebus import ServiceBusMessage

# Before: from azure.servicebus import ServiceBusClient
from twinbus.azure import PairedServiceBusClient as ServiceBusClient
from twinbus.azure import Pairing


def send_orders(address: str, orders: Iterable[str], pairing: Pairing | None = None) -> int:
    """Send each order, and return how many there were.

    Without ``pairing`` an environment variable names the secondary.
    """
    count = 0
    with (
        ServiceBusClient.from_connection_string(address, pairing=pairing) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for order in orders:
            sender.send_messages(ServiceBusMessage(order))
            count += 1
    return count


if __name__ == "__main__":
    lines = (line.strip() for line in sys.stdin)
    print(send_orders(os.environ["SERVICEBUS_CONNECTION_STRING"], lines), "orders sent")

"""A web application whose client is made, and used, before its workers are forked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from azure.servicebus import ServiceBusMessage

from twinbus.azure import PairedServiceBusClient

client = PairedServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"])
orders = client.get_queue_sender("orders")
orders.send_messages(ServiceBusMessage("the shop is open"))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    orders.send_messages(ServiceBusMessage(environ["QUERY_STRING"]))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]

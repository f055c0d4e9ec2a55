"""Tasks of Celery, whose prefork pool inherits a client that its parent has used."""

from __future__ import annotations

import os
from typing import Any

from azure.servicebus import ServiceBusMessage
from celery import Celery
from celery.signals import worker_ready

from twinbus.azure import PairedServiceBusClient

ORDERS = 12

# The queue of the tasks is in the worker's own memory, and looked at often.
app = Celery("tasks", broker="memory://", broker_transport_options={"polling_interval": 0.05})
client = PairedServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"])
orders = client.get_queue_sender("orders")
orders.send_messages(ServiceBusMessage("the worker starts"))


@app.task
def place(text: str) -> None:
    orders.send_messages(ServiceBusMessage(text))


@worker_ready.connect
def begin(**_facts: Any) -> None:
    for number in range(ORDERS):
        place.delay(f"order {number}")

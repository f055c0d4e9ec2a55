"""Every driver that the contract is tested with: add yours here.

A driver is made from the connection string of a namespace of the broker. For "embedded" that
namespace is an EmbeddedNamespace (see conftest.py), with the driver that it gives out.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.interface import Driver
from twinbus.drivers.metered import MeteredDriver
from twinbus.metering.client_meter import ClientMeter


class WithBooks(MeteredDriver):
    """A driver whose books, audit and all, end with it."""

    def __init__(self, connection_string: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._own_books = ClientMeter(
            Path(self._directory.name), name="test", other_name="test", audit=True
        )
        super().__init__(AmqpDriver.from_connection_string(connection_string), self._own_books)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._own_books.close)
        self._directory.cleanup()


DRIVERS: dict[str, Callable[[str], Driver]] = {
    "amqp": AmqpDriver.from_connection_string,
    "embedded": AmqpDriver.from_connection_string,
    "metered": WithBooks,
    "servicebus": ServiceBusDriver.from_connection_string,
}

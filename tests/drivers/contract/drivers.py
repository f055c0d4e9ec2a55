"""Every driver that the contract is tested with: add yours here.

A driver is made from the connection string of a namespace of the broker.
"""

from __future__ import annotations

from collections.abc import Callable

from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.port import Driver

DRIVERS: dict[str, Callable[[str], Driver]] = {
    "amqp": AmqpDriver.from_connection_string,
}

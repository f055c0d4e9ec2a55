"""Every driver that the contract is tested with: add yours here.

A driver is made from the connection string of a namespace of the broker. For "embedded" that
namespace is an EmbeddedNamespace (see conftest.py), with the driver that it gives out.
"""

from __future__ import annotations

from collections.abc import Callable

from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.port import Driver
from twinbus.drivers.servicebus import ServiceBusDriver

DRIVERS: dict[str, Callable[[str], Driver]] = {
    "amqp": AmqpDriver.from_connection_string,
    "embedded": AmqpDriver.from_connection_string,
    "servicebus": ServiceBusDriver.from_connection_string,
}

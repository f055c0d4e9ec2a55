"""The lean AMQP client: the driver for whoever counts microseconds.

driver.py      AmqpDriver, the port's Driver; sender.py and receiver.py what it makes
namespace.py   the connections of a driver
line.py        one connection: the engine of twinbus.amqp on a socket
ends.py        what our ends of links share; sending.py, receiving.py and nodes.py are their kinds
authority.py   tokens, shown and renewed
batches.py     several messages as one delivery; facts.py what a delivered message says of itself
settling.py    settlement by lock token
attempts.py    one try for many who wait; patience.py how long they do
refusals.py    what the service says no with, as errors
options.py     what can be chosen
"""

from __future__ import annotations

from twinbus.drivers.amqp.driver import AmqpDriver
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint

__all__ = ["AmqpDriver", "AmqpOptions", "Endpoint"]

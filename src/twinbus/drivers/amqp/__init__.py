"""The lean AMQP client: the driver for whoever counts microseconds.

driver               AmqpDriver; sender and receiver what it makes
connection           one connection: the engine of twinbus.amqp on a socket
connection_pool      the connections of a driver
link_endpoint        what our ends of links share: sender_endpoint, receiver_endpoint, request_nodes
token_refresh        tokens, shown and renewed
batching             several messages as one delivery
delivery_metadata    what a delivered message says of itself
shared_attempt       one attempt for many who wait, and how long they do
errors               what the service says no with, as errors
options              what can be chosen
"""

from __future__ import annotations

from twinbus.drivers.amqp.driver import AmqpDriver
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint

__all__ = ["AmqpDriver", "AmqpOptions", "Endpoint"]

"""Our own AMQP client: the driver for throughput.

driver               AmqpDriver; sender and receiver what it creates
connection           one connection: the engine of twinbus.amqp on a socket
connection_pool      the connections of a driver
link_endpoint        what our link endpoints share: sender_endpoint, receiver_endpoint,
                     request_nodes
token_refresh        tokens, sent and renewed
batching             several messages as one delivery
delivery_metadata    sequence number, times and delivery count of a delivered message
shared_attempt       one attempt for many callers that wait, and their time limits
errors               errors of the service as ours
options              the options of the client
"""

from __future__ import annotations

from twinbus.drivers.amqp.driver import AmqpDriver
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint

__all__ = ["AmqpDriver", "AmqpOptions", "Endpoint"]

"""How twinbus talks to a messaging service: one small port, several drivers.

port         what every driver can do, and what its answers mean
servicebus   the official SDK (Azure, the official emulator, our broker)
amqp         our lean client on our own AMQP stack, for throughput
embedded     our broker in this process, on local disk or in memory
management   entities over the service's HTTP interface, for all of them
conditions   which condition on the wire means which error
credentials  who we are to a namespace: tokens for AMQP and HTTP
"""

from __future__ import annotations

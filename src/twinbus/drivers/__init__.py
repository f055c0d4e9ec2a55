"""How twinbus talks to a messaging service: one small interface, several drivers.

interface         what every driver can do, and what its answers mean
azure_sdk/        the official SDK (Azure, the official emulator, our broker)
amqp/             our lean client on our own AMQP stack, for throughput
embedded          our broker in this process, on local disk or in memory
administration/   entities over the service's HTTP interface, for all of them
metered           any of them, with metering
error_conditions  which condition on the wire means which error
credentials       who we are to a namespace: tokens for AMQP and HTTP
"""

from __future__ import annotations

"""How twinbus connects to a messaging service: one small interface, several drivers.

interface         what every driver can do, and what its results mean
azure_sdk/        the official SDK (Azure, the official emulator, our broker)
amqp/             our own AMQP client, for throughput
embedded          our broker in this process, on local disk or in memory
administration/   entities over the service's HTTP interface, for all of them
metered           any driver, with metering
error_conditions  which AMQP condition means which error
credentials       credentials for a namespace: tokens for AMQP and HTTP
"""

from __future__ import annotations

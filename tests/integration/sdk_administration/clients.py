"""The stock administration client in its two flavours, behind one shape.

A scenario is written once, against the aio shape, and runs with both clients. Retries are off:
a broker that needs the client's second attempt should not pass.
"""

from __future__ import annotations

import asyncio
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management

from tests.support.broker_process import BrokerProcess


class Administration:
    """One flavour of the client, with the aio shape."""

    def __init__(self, flavour: str, broker: BrokerProcess, **options: Any) -> None:
        self.flavour = flavour
        is_sync = flavour == "sync"
        module = azure.servicebus.management if is_sync else azure.servicebus.aio.management
        self.client: Any = module.ServiceBusAdministrationClient.from_connection_string(
            options.pop("connection_string", broker.connection_string),
            connection_verify=broker.ca_path,
            retry_total=0,
            **options,
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.client, name)
        if self.flavour == "aio":
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(value, *arguments, **options)

        return call

    async def all(self, kind: str, *arguments: Any, **options: Any) -> list[Any]:
        """Everything that a list operation yields, over all its pages."""
        found = getattr(self.client, f"list_{kind}")(*arguments, **options)
        if self.flavour == "aio":
            return [item async for item in found]
        return await asyncio.to_thread(list, found)

    async def close(self) -> None:
        closing = self.client.close()
        if closing is not None:
            await closing

"""The stock administration client in its two flavours, behind one shape.

A scenario is written once, against the aio shape, and runs with both clients. Retries are off:
a broker that needs the client's second attempt should not pass.
"""

from __future__ import annotations

import asyncio
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport


class PlainTransport(RequestsTransport):
    """The client insists on https; this takes its requests to a plain port."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class PlainAioTransport(AioHttpTransport):
    """The same for the aio client."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


class Administration:
    """One flavour of the client, with the aio shape."""

    def __init__(self, flavour: str, connection_string: str, **options: Any) -> None:
        self.flavour = flavour
        is_sync = flavour == "sync"
        module = azure.servicebus.management if is_sync else azure.servicebus.aio.management
        self.client: Any = module.ServiceBusAdministrationClient.from_connection_string(
            connection_string,
            transport=PlainTransport() if is_sync else PlainAioTransport(),
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

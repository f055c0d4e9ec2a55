"""The pair behind a paired client: two factories, joined before the first send.

    client --get_queue_sender--> PairedSender --> the primary, through the SDK's own client
                                              --> or a backlog queue of the secondary

Rule 1: the SDK's client inside retries nothing: all retries are the pair's (F6).
Rule 2: pairing happens once, with the first ``async with`` or the first send; everybody waits for
        the same attempt. One that failed is made again by whoever comes next.
"""

from __future__ import annotations

import asyncio
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from twinbus.azure.pairing_settings import Pairing
from twinbus.connection_string import TLS_PORT
from twinbus.core.retry import RetryPolicy
from twinbus.drivers.port import NamespaceAddress
from twinbus.drivers.servicebus import ServiceBusDriver
from twinbus.pairing.factory import MessagingFactory
from twinbus.pairing.sending import PairedSender

# What every tier of the service takes; a backlog queue's own answer replaces it once paired.
MESSAGE_BYTES_MAX = 262_144


class Engine:
    """One primary, one secondary."""

    def __init__(self, client: ServiceBusClient, pairing: Pairing, retry: RetryPolicy) -> None:
        host, _, port = client.fully_qualified_namespace.partition(":")
        self._driver = ServiceBusDriver(
            client, NamespaceAddress(host.lower(), int(port or TLS_PORT))
        )
        self.factory = MessagingFactory.from_driver(
            self._driver, retry=retry, operation_timeout=pairing.operation_timeout
        )
        self._pairing = pairing
        self._secondary: MessagingFactory | None = None
        self._turn = asyncio.Lock()

    async def ready(self) -> None:
        """Return once the namespaces are paired; raises what pairing raises."""
        if self._secondary is None:
            async with self._turn:
                if self._secondary is None:
                    self._secondary = await self._pair()

    async def _pair(self) -> MessagingFactory:
        options = self._pairing.options()
        try:
            await self.factory.pair_namespace(options)
        except BaseException:
            await options.messaging_factory.close()
            raise
        return options.messaging_factory

    @property
    def message_bytes_max(self) -> int:
        """What a message may have so that a backlog queue takes it, aliases included."""
        backlog = self.factory.routing.backlog
        return MESSAGE_BYTES_MAX if backlog is None else backlog.message_bytes_max

    def sender(self, path: str, **options: Any) -> PairedSender:
        """A sender with a link of its own; ``options`` are the SDK's for this sender."""
        return self.factory.create_paired_sender(path, primary=self._driver.sender(path, **options))

    async def close(self) -> None:
        await self.factory.close()
        if self._secondary is not None:
            await self._secondary.close()

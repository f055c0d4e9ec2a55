"""The pair behind a paired client: two factories, joined before the first send.

    client --get_queue_sender--> PairedSender --> the primary, through the SDK's own client
                                              --> or a backlog queue of the secondary

Rule 1: the SDK's client inside retries nothing: all retries are the pair's (F6).
Rule 2: pairing happens once, with the first ``async with`` or the first send; everybody waits for
        the same attempt. One that failed is made again by whoever comes next.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal, TypedDict

from azure.servicebus.aio import ServiceBusClient

from twinbus.azure.messages import SDK_MESSAGES
from twinbus.azure.pairing_settings import Pairing
from twinbus.connection_string import namespace_at
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions, Endpoint
from twinbus.drivers.credentials import Credential
from twinbus.drivers.management import ManagementClient, ManagementEndpoint
from twinbus.drivers.port import NamespaceAddress, Sender
from twinbus.drivers.servicebus import ServiceBusDriver
from twinbus.pairing.factory import NAME_TIMEOUT_S, MessagingFactory
from twinbus.pairing.sending import PairedSender


class RetryOptions(TypedDict):
    """The SDK's four."""

    retry_total: int
    retry_backoff_factor: float
    retry_backoff_max: float
    retry_mode: Literal["exponential", "fixed"]


class Engine:
    """One primary, one secondary."""

    def __init__(
        self,
        client: ServiceBusClient,
        credential: Credential,
        pairing: Pairing,
        retry: RetryOptions,
        *,
        uses_tls: bool,
        ca_file: str | None,
    ) -> None:
        place = replace(
            namespace_at(client.fully_qualified_namespace), use_development_emulator=not uses_tls
        )
        self._driver = ServiceBusDriver(client, NamespaceAddress(place.host, place.effective_port))
        options = AmqpOptions(ca_file=ca_file)
        self.factory = MessagingFactory.from_driver(
            self._driver,
            ManagementClient(
                ManagementEndpoint.of(place),
                credential,
                ca_file=ca_file,
                timeout_s=NAME_TIMEOUT_S,
            ),
            lambda: AmqpDriver(Endpoint.of(place), credential, options),
            operation_timeout=pairing.operation_timeout,
            **retry,
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

    def sender(self, path: str, **options: Any) -> tuple[Sender, PairedSender]:
        """A link to the primary's entity, made with the SDK's ``options`` for a sender, and the
        way of paired sends through it."""
        link = self._driver.sender(path, **options)
        return link, self.factory.create_paired_sender(path, SDK_MESSAGES, link)

    async def close(self) -> None:
        await self.factory.close()
        if self._secondary is not None:
            await self._secondary.close()

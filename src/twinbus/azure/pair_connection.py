"""The pair behind a paired client: two factories, joined before the first send.

    client --get_queue_sender--> PairedSender --> the primary, through the SDK's own client
                                              --> or a backlog queue of the secondary

Rule 1: the SDK's client inside retries nothing: all retries are the pair's (F6).
Rule 2: pairing happens once, with the first ``async with`` or the first send; everybody waits for
        the same attempt. One that failed is made again by whoever comes next.
Rule 3: a call waits for it no longer than it has time (F6), and does not stop it by going away.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, Literal, TypedDict

from azure.servicebus.aio import ServiceBusClient

from twinbus.azure.messages import SDK_MESSAGES
from twinbus.azure.options import Pairing
from twinbus.common.connection_string import namespace_at
from twinbus.drivers.administration import AdministrationClient, AdministrationEndpoint
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions, Endpoint
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.credentials import Credential
from twinbus.drivers.interface import NamespaceAddress, Sender
from twinbus.errors import OperationTimeout, ServiceError
from twinbus.pairing.client.factory import NAME_TIMEOUT_S, MessagingFactory
from twinbus.pairing.paired_sender import PairedSender

# A call that was paired in the last moment gets its attempt, short as it is.
LEFT_S_MIN: Final = 0.01


class RetryOptions(TypedDict):
    """The SDK's four."""

    retry_total: int
    retry_backoff_factor: float
    retry_backoff_max: float
    retry_mode: Literal["exponential", "fixed"]


class PairConnection:
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
            AdministrationClient(
                AdministrationEndpoint.of(place),
                credential,
                ca_file=ca_file,
                timeout_s=NAME_TIMEOUT_S,
            ),
            lambda: AmqpDriver(Endpoint.of(place), credential, options),
            operation_timeout=pairing.operation_timeout,
            metering=pairing.metering,
            audit=pairing.audit,
            keep_days=pairing.keep_days,
            **retry,
        )
        self._pairing = pairing
        self._secondary: MessagingFactory | None = None
        self._joining: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the namespaces are paired."""
        return self._secondary is not None

    async def ready(self, timeout_s: float | None) -> float | None:
        """Return once the namespaces are paired; what is left of a call's time, None being the
        usual one. Raises what pairing raises."""
        if self._secondary is not None:
            return timeout_s
        clock = asyncio.get_running_loop().time
        end_s = clock() + (timeout_s or self._pairing.operation_timeout)
        try:
            async with asyncio.timeout_at(end_s):
                await self.join()
        except ServiceError:
            raise  # What ended the pairing, which can be an OperationTimeout.
        except TimeoutError:
            error = OperationTimeout(
                "the namespaces were not paired within the time of a call",
                hint="Enter the client with `async with` first, or give the call more time",
            )
            error.is_ambiguous = False
            raise error from None
        return max(end_s - clock(), LEFT_S_MIN)

    async def join(self) -> None:
        """Return once the namespaces are paired, however long that takes."""
        if self._secondary is None:
            if self._joining is None:
                self._joining = asyncio.create_task(self._join(), name="twinbus-pairing")
            await asyncio.shield(self._joining)

    async def _join(self) -> None:
        try:
            options = self._pairing.options()
            try:
                await self.factory.pair_namespace(options)
            except BaseException:
                await options.messaging_factory.close()
                raise
            self._secondary = options.messaging_factory
        finally:
            self._joining = None

    def sender(self, path: str, **options: Any) -> tuple[Sender, PairedSender]:
        """A link to the primary's entity, made with the SDK's ``options`` for a sender, and the
        way of paired sends through it."""
        link = self._driver.sender(path, **options)
        return link, self.factory.create_paired_sender(path, SDK_MESSAGES, link)

    async def close(self) -> None:
        if self.factory.is_inherited:
            return
        joining = self._joining
        await self.factory.close()  # Ends a pairing that is under way, too.
        if joining is not None:
            await asyncio.gather(joining, return_exceptions=True)
        if self._secondary is not None:
            await self._secondary.close()

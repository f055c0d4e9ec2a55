"""The pair of a paired client: two factories, paired before the first send.

    client --get_queue_sender--> PairedSender --> the primary, through the SDK's own client
                                              --> or a backlog queue of the secondary

Rule 1: the inner client of the SDK never retries: all retries belong to the pair (F6).
Rule 2: pairing happens once, with the first ``async with`` or the first send; all calls wait for
        the same attempt. After a failure the next call starts another attempt.
Rule 3: a call waits for it at most for its own timeout (F6); a cancelled call does not stop it.
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

# Minimum time for the attempt of a call that has waited for pairing.
LEFT_S_MIN: Final = 0.01


class RetryOptions(TypedDict):
    """The four retry options of the SDK."""

    retry_total: int
    retry_backoff_factor: float
    retry_backoff_max: float
    retry_mode: Literal["exponential", "fixed"]


class PairConnection:
    """The factories of one primary and one secondary."""

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
        namespace = replace(
            namespace_at(client.fully_qualified_namespace), use_development_emulator=not uses_tls
        )
        self._driver = ServiceBusDriver(
            client, NamespaceAddress(namespace.host, namespace.effective_port)
        )
        options = AmqpOptions(ca_file=ca_file)
        self.factory = MessagingFactory.from_driver(
            self._driver,
            AdministrationClient(
                AdministrationEndpoint.of(namespace),
                credential,
                ca_file=ca_file,
                timeout_s=NAME_TIMEOUT_S,
            ),
            lambda: AmqpDriver(Endpoint.of(namespace), credential, options),
            operation_timeout=pairing.operation_timeout,
            metering=pairing.metering,
            audit=pairing.audit,
            keep_days=pairing.keep_days,
            **retry,
        )
        self._pairing = pairing
        self._secondary: MessagingFactory | None = None
        self._pairing_task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the namespaces are paired."""
        return self._secondary is not None

    async def wait_until_paired(self, timeout_s: float | None) -> float | None:
        """Return once the namespaces are paired; the result is the rest of the call's timeout, None
        for the default. Raises the error of pairing."""
        if self._secondary is not None:
            return timeout_s
        clock = asyncio.get_running_loop().time
        end_s = clock() + (timeout_s or self._pairing.operation_timeout)
        try:
            async with asyncio.timeout_at(end_s):
                await self.pair()
        except ServiceError:
            raise  # The error of pairing, which can be an OperationTimeout.
        except TimeoutError:
            error = OperationTimeout(
                "The namespaces were not paired within the timeout of the call",
                hint="Enter the client with `async with` first, or use a longer timeout",
            )
            error.is_ambiguous = False
            raise error from None
        return max(end_s - clock(), LEFT_S_MIN)

    async def pair(self) -> None:
        """Return once the namespaces are paired, however long that takes."""
        if self._secondary is None:
            if self._pairing_task is None:
                self._pairing_task = asyncio.create_task(self._pair(), name="twinbus-pairing")
            await asyncio.shield(self._pairing_task)

    async def _pair(self) -> None:
        try:
            options = self._pairing.options()
            try:
                await self.factory.pair_namespace(options)
            except BaseException:
                await options.messaging_factory.close()
                raise
            self._secondary = options.messaging_factory
        finally:
            self._pairing_task = None

    def sender(self, path: str, **options: Any) -> tuple[Sender, PairedSender]:
        """A link to an entity of the primary, created with the SDK's ``options`` for a sender, and
        the paired sender that uses it."""
        link = self._driver.sender(path, **options)
        return link, self.factory.create_paired_sender(path, SDK_MESSAGES, link)

    async def close(self) -> None:
        if self.factory.is_inherited:
            return
        pairing_task = self._pairing_task
        await self.factory.close()  # Also ends pairing in progress.
        if pairing_task is not None:
            await asyncio.gather(pairing_task, return_exceptions=True)
        if self._secondary is not None:
            await self._secondary.close()

"""The SDK's async client with a pair.

    from twinbus.azure.aio import PairedServiceBusClient as ServiceBusClient

is the one line that an application changes; the secondary is set in the environment, or with
``pairing=Pairing(...)``.

Rule 1: every public member of the SDK's client and sender is here with the SDK's signature.
Rule 2: receivers are the SDK's own, on the primary: receiving is never diverted (P15).
Rule 3: a sender opens no link before its first message, so that a process can start while the
        primary is unreachable (P17).

Scheduling while diverted: the messages wait in the backlog with their schedule, and the numbers
that schedule_messages() returns for them are negative. cancel_scheduled_messages() raises
ServiceBusError for such numbers, and for all numbers while the entity is diverted.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient

from twinbus.azure.errors import raise_sdk_error, sdk_errors
from twinbus.azure.messages import to_outgoing_messages, to_scheduled_messages
from twinbus.azure.options import Pairing, resolve_pairing, token_source
from twinbus.azure.pair_connection import PairConnection
from twinbus.drivers.azure_sdk.trusted_certificates import with_certificates
from twinbus.errors import TwinbusError
from twinbus.pairing.client.factory import MessagingFactory
from twinbus.pairing.paired_sender import PairedSender

if TYPE_CHECKING:
    from azure.servicebus.aio._servicebus_sender_async import MessageTypes

__all__ = ["PairedServiceBusClient", "PairedServiceBusSender", "Pairing"]

# Every tier of the service accepts batches of this size.
BATCH_BYTES = 262_144
# Time limit for requesting the limit of the primary; the default size works as well.
LIMIT_TIMEOUT_S = 5.0


class PairedServiceBusClient(ServiceBusClient):
    """``azure.servicebus.aio.ServiceBusClient`` whose sends keep working during an outage."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Any,
        *,
        retry_total: int = 3,
        retry_backoff_factor: float = 0.8,
        retry_backoff_max: float = 120,
        retry_mode: str = "exponential",
        **kwargs: Any,
    ) -> None:
        pairing = resolve_pairing(kwargs.pop("pairing", None), credential)
        retry: Any = {
            "retry_total": retry_total,
            "retry_backoff_factor": retry_backoff_factor,
            "retry_backoff_max": retry_backoff_max,
            "retry_mode": retry_mode,
        }
        super().__init__(fully_qualified_namespace, credential, **retry, **kwargs)
        # This client checks the entity of the connection string, not the inner one.
        inside = {name: value for name, value in kwargs.items() if name != "entity_name"}
        self._pair_connection = PairConnection(
            ServiceBusClient(
                fully_qualified_namespace, credential, retry_total=0, **with_certificates(inside)
            ),
            token_source(credential),
            pairing,
            retry,
            uses_tls=kwargs.get("use_tls", True),
            ca_file=kwargs.get("connection_verify"),
        )

    @property
    def messaging_factory(self) -> MessagingFactory:
        """The factory of the primary, with health(), events(), force_failover() and so on."""
        return self._pair_connection.factory

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        with sdk_errors():
            await self._pair_connection.pair()
        return self

    async def close(self) -> None:
        try:
            await self._pair_connection.close()
        finally:
            await super().close()

    def get_queue_sender(  # type: ignore[override]
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        stock = super().get_queue_sender(
            queue_name, client_identifier=client_identifier, socket_timeout=socket_timeout, **kwargs
        )
        return self._paired(stock, queue_name, socket_timeout, kwargs)

    def get_topic_sender(  # type: ignore[override]
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        stock = super().get_topic_sender(
            topic_name, client_identifier=client_identifier, socket_timeout=socket_timeout, **kwargs
        )
        return self._paired(stock, topic_name, socket_timeout, kwargs)

    def _paired(
        self, stock: Any, path: str, socket_timeout: float | None, options: dict[str, Any]
    ) -> PairedServiceBusSender:
        """A paired sender instead of the SDK's own sender, which has checked the arguments and is
        never opened."""
        return PairedServiceBusSender(
            self._pair_connection,
            path,
            fully_qualified_namespace=stock.fully_qualified_namespace,
            client_identifier=stock.client_identifier,
            options={**options, "socket_timeout": socket_timeout},
        )


class PairedServiceBusSender:
    """``azure.servicebus.aio.ServiceBusSender`` that sends to the backlog during an outage.

    Unlike the SDK's it may be used from many tasks at once.
    """

    def __init__(
        self,
        connection: PairConnection,
        path: str,
        *,
        fully_qualified_namespace: str,
        client_identifier: str,
        options: dict[str, Any],
    ) -> None:
        self.fully_qualified_namespace = fully_qualified_namespace
        self.entity_name = path
        self._client_identifier = client_identifier
        self._pair_connection = connection
        self._link, self._sender = connection.sender(
            path, client_identifier=client_identifier, **options
        )
        self._batch_bytes_max: int | None = None
        self._is_closed = False

    @property
    def client_identifier(self) -> str:
        return self._client_identifier

    @property
    def paired_sender(self) -> PairedSender:
        """The paired sender of its messages."""
        return self._sender

    async def send_messages(
        self,
        message: MessageTypes | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Send, and return once the primary or a backlog queue has stored all messages."""
        # Inlined, because every send pays for every layer (P0).
        if kwargs or self._is_closed or (timeout is not None and timeout <= 0):
            self._check(timeout, kwargs)
        try:
            if not self._pair_connection.is_ready:
                timeout = await self._pair_connection.wait_until_paired(timeout)
            outgoing_messages = to_outgoing_messages(message)
            if outgoing_messages:
                await self._sender.send_outgoing(outgoing_messages, timeout_s=timeout)
        except TwinbusError as error:
            raise_sdk_error(error)

    async def schedule_messages(
        self,
        messages: MessageTypes,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Send scheduled messages; returns sequence numbers, for cancelling (see above)."""
        self._check(timeout, kwargs)
        with sdk_errors():
            timeout = await self._pair_connection.wait_until_paired(timeout)
            outgoing_messages = to_scheduled_messages(messages, schedule_time_utc)
            if not outgoing_messages:
                return []
            return await self._sender.schedule_outgoing(outgoing_messages, timeout_s=timeout)

    async def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Cancel scheduled messages, as long as that is possible (see above)."""
        self._check(timeout, kwargs)
        numbers: Sequence[int] = (
            [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
        )
        if not numbers:
            return
        with sdk_errors():
            timeout = await self._pair_connection.wait_until_paired(timeout)
            await self._sender.cancel_scheduled(numbers, timeout_s=timeout)

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """An empty batch, also while the primary is unreachable."""
        self._check(None, {})
        limit_bytes = await self._batch_limit_bytes()
        if max_size_in_bytes is not None and max_size_in_bytes > limit_bytes:
            raise ValueError(
                f"Max message size: {max_size_in_bytes} is too large, "
                f"acceptable max batch size is: {limit_bytes} bytes."
            )
        return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or limit_bytes)

    async def close(self) -> None:
        self._is_closed = True
        await self._sender.close()

    async def __aenter__(self) -> Self:
        self._check(None, {})
        with sdk_errors():
            await self._pair_connection.pair()
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.close()

    def __str__(self) -> str:
        return f"Sender client id: {self._client_identifier}, entity: {self.entity_name}"

    async def _batch_limit_bytes(self) -> int:
        if self._batch_bytes_max is None:
            if self._pair_connection.factory.health(self._sender.path).is_diverted:
                return BATCH_BYTES
            try:
                facts = await self._link.attach(timeout_s=LIMIT_TIMEOUT_S)
            except Exception:
                return BATCH_BYTES  # Both namespaces accept a batch of the default size.
            self._batch_bytes_max = facts.batch_limit_bytes
        return self._batch_bytes_max

    def _check(self, timeout: float | None, kwargs: dict[str, Any]) -> None:
        """The errors of the SDK for a closed sender, a wrong timeout and unknown arguments."""
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=3)
        if self._is_closed:
            raise ValueError(
                "The handler has already been shutdown. Please use ServiceBusClient to "
                "create a new instance."
            )
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")

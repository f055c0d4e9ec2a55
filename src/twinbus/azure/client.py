"""The SDK's sync client with a pair: the paired async client, on the loop of ``twinbus.sync``.

Rule 1: every public member of the SDK's client and sender is here with the SDK's signature.
Rule 2: receivers are the SDK's own sync ones; only sends go through the loop of ``twinbus.sync``.
Rule 3: while its entity is healthy, a busy sender sends small messages on the caller's thread,
        with a blocking sender of the SDK (``twinbus.pairing.direct_sender``).
Rule 4: a forked child creates everything again with its first call, and does not touch the SDK's
        receivers of its parent (P27).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakSet

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch

from twinbus.azure import aio
from twinbus.azure.errors import raise_sdk_error
from twinbus.azure.messages import fits_one_write, to_outgoing_messages
from twinbus.azure.options import Pairing, resolve_pairing
from twinbus.common import fork
from twinbus.drivers.azure_sdk.blocking_link import (
    BlockingLink,
    is_tracing_enabled,
    native_message,
)
from twinbus.errors import TwinbusError
from twinbus.pairing.direct_sender import DirectSender
from twinbus.sync.blocking_portal import PORTAL, Twin
from twinbus.sync.factory import MessagingFactory

if TYPE_CHECKING:
    from azure.servicebus._servicebus_sender import MessageTypes


class PairedServiceBusClient(ServiceBusClient):
    """``azure.servicebus.ServiceBusClient`` whose sends keep working during an outage."""

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
        retry: dict[str, Any] = {
            "retry_total": retry_total,
            "retry_backoff_factor": retry_backoff_factor,
            "retry_backoff_max": retry_backoff_max,
            "retry_mode": retry_mode,
        }
        super().__init__(fully_qualified_namespace, credential, **retry, **kwargs)
        self._is_closed = False
        created_in = fork.generation

        def make() -> _ClientParts:
            # The parent has paired already, so an unreachable secondary is not an error here; and
            # the parent hosts the syphon.
            is_child = fork.generation != created_in
            chosen = replace(pairing, require_secondary=False, enable_syphon=False)
            paired = _create(
                fully_qualified_namespace,
                as_async_credential(credential),
                pairing=chosen if is_child else pairing,
                **retry,
                **kwargs,
            )
            blocking = _blocking_client(fully_qualified_namespace, credential, pairing, kwargs)
            parts = _ClientParts(PORTAL.call(paired), blocking, WeakSet())
            if is_child:
                self._handlers = WeakSet()  # The parent's receivers.
                if self._is_closed:
                    PORTAL.call(parts.paired.close())
            return parts

        self._parts = Twin(make)
        self._factory = MessagingFactory.wrap(lambda: self._paired.messaging_factory)

    @property
    def _paired(self) -> aio.PairedServiceBusClient:
        return self._parts().paired

    @property
    def messaging_factory(self) -> MessagingFactory:
        """The factory of the primary, with health(), backlog(), events(), force_failover() and so
        on, for any thread."""
        return self._factory

    def __enter__(self) -> Self:
        super().__enter__()
        PORTAL.call(self._paired.__aenter__())
        return self

    def close(self) -> None:
        self._is_closed = True
        if self._parts.is_inherited:
            return
        paired, _, direct = self._parts()
        try:
            PORTAL.call(paired.close())
        finally:
            for each in tuple(direct):
                each.close()
            super().close()

    def get_queue_sender(  # type: ignore[override]
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        options: dict[str, Any] = {
            "client_identifier": client_identifier,
            "socket_timeout": socket_timeout,
        }
        options |= kwargs
        return PairedServiceBusSender(
            lambda: self._sender(self._paired.get_queue_sender(queue_name, **options), options)
        )

    def get_topic_sender(  # type: ignore[override]
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        options: dict[str, Any] = {
            "client_identifier": client_identifier,
            "socket_timeout": socket_timeout,
        }
        options |= kwargs
        return PairedServiceBusSender(
            lambda: self._sender(self._paired.get_topic_sender(topic_name, **options), options)
        )

    def _sender(self, paired: aio.PairedServiceBusSender, options: dict[str, Any]) -> _SenderParts:
        _, blocking, all_direct = self._parts()
        if blocking is None:
            return _SenderParts(paired, None)

        def open_link() -> BlockingLink[ServiceBusMessage]:
            # Senders of topics and queues are the same. Without keep-alive no other thread reads
            # from the connection; an idle link may be closed.
            path = paired.entity_name
            sdk = blocking.get_queue_sender(path, keep_alive=0, **options)
            link = BlockingLink(path, sdk, native_message)
            link.open()
            return link

        direct = DirectSender(
            paired.paired_sender,
            open_link=open_link,
            fits=fits_one_write,
            to_outgoing_messages=to_outgoing_messages,
            run=PORTAL.call,
        )
        all_direct.add(direct)
        return _SenderParts(paired, direct)


class _ClientParts(NamedTuple):
    """The clients and direct senders of a PairedServiceBusClient, created once per process."""

    paired: aio.PairedServiceBusClient
    blocking: ServiceBusClient | None
    direct: WeakSet[DirectSender[ServiceBusMessage]]


class _SenderParts(NamedTuple):
    """The senders of a PairedServiceBusSender, created once per process."""

    paired: aio.PairedServiceBusSender
    direct: DirectSender[ServiceBusMessage] | None


def _blocking_client(
    fully_qualified_namespace: str, credential: Any, pairing: Pairing, options: dict[str, Any]
) -> ServiceBusClient | None:
    """Creates the blocking senders; None if every send must go through the loop: metering and
    async credentials work only there."""
    is_async = inspect.iscoroutinefunction(getattr(credential, "get_token", None))
    if pairing.metering is not None or is_async:
        return None
    # The paired client checks the entity of the connection string.
    inside = {name: value for name, value in options.items() if name != "entity_name"}
    return ServiceBusClient(fully_qualified_namespace, credential, retry_total=0, **inside)


async def _create(
    fully_qualified_namespace: str, credential: Any, **kwargs: Any
) -> aio.PairedServiceBusClient:
    """Created on the loop, because its locks and events belong to the loop."""
    return aio.PairedServiceBusClient(fully_qualified_namespace, credential, **kwargs)


class PairedServiceBusSender:
    """``azure.servicebus.ServiceBusSender`` that sends to the backlog during an outage."""

    def __init__(self, make: Callable[[], _SenderParts]) -> None:
        self._parts = Twin(make)
        paired = self._paired
        self.fully_qualified_namespace = paired.fully_qualified_namespace
        self.entity_name = paired.entity_name

    @property
    def _paired(self) -> aio.PairedServiceBusSender:
        return self._parts().paired

    @property
    def client_identifier(self) -> str:
        return self._paired.client_identifier

    def send_messages(
        self,
        message: MessageTypes | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Send, and return once the primary or a backlog queue has stored all messages."""
        paired, direct = self._parts()
        if direct is None:
            PORTAL.call(paired.send_messages(message, timeout=timeout, **kwargs))
            return
        # Inlined, because every send pays for every layer (P0).
        if (
            type(message) is ServiceBusMessage
            and not kwargs
            and (timeout is None or timeout > 0)
            and get_ident() != PORTAL.thread_id
            and not is_tracing_enabled()  # type: ignore[no-untyped-call]
        ):
            try:
                if direct.send(message, timeout):
                    return
            except TwinbusError as error:
                raise_sdk_error(error)
        PORTAL.call(paired.send_messages(message, timeout=timeout, **kwargs))
        if type(message) is ServiceBusMessage:
            direct.sent_by_loop(message)

    def schedule_messages(
        self,
        messages: MessageTypes,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Send scheduled messages; see ``twinbus.azure.aio`` about cancelling."""
        return PORTAL.call(
            self._paired.schedule_messages(messages, schedule_time_utc, timeout=timeout, **kwargs)
        )

    def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Cancel scheduled messages, as long as that is possible."""
        PORTAL.call(
            self._paired.cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
        )

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch, also while the primary is unreachable."""
        return PORTAL.call(self._paired.create_message_batch(max_size_in_bytes))

    def close(self) -> None:
        if self._parts.is_inherited:
            return
        paired, direct = self._parts()
        if direct is not None:
            direct.close()
        PORTAL.call(paired.close())

    def __enter__(self) -> Self:
        PORTAL.call(self._paired.__aenter__())
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._paired)


class _AsyncCredential:
    """A sync credential for the async client, which awaits its tokens."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    def __getattr__(self, name: str) -> Any:
        # The SDK reads ``token_type``, to distinguish a signature from the token of an identity.
        return getattr(self._credential, name)

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        # It uses the network, and may start a program.
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)


def as_async_credential(credential: Any) -> Any:
    """The same credential for the async client."""
    if isinstance(credential, AzureSasCredential | AzureNamedKeyCredential):
        return credential
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        return credential
    return _AsyncCredential(credential)

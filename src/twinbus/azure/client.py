"""The SDK's sync client with a second namespace behind it: the async one, through the portal.

Rule 1: every public member of the SDK's client and sender is here with the SDK's signature.
Rule 2: receivers are the SDK's own sync ones; only sends go through the loop of ``twinbus.sync``.
Rule 3: while its entity is healthy, a busy sender sends small messages on the caller's thread, by
        a blocking sender of the SDK (``twinbus.pairing.direct_sender``).
Rule 4: a forked child makes everything anew with its first call, and leaves the SDK's receivers
        that its parent has made to the parent (P27).
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
from twinbus.azure.errors import raise_in_words_of_the_sdk
from twinbus.azure.messages import fits_one_write, to_outgoing_messages
from twinbus.azure.options import Pairing, pairing_given
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
        pairing = pairing_given(kwargs.pop("pairing", None), credential)
        retry: dict[str, Any] = {
            "retry_total": retry_total,
            "retry_backoff_factor": retry_backoff_factor,
            "retry_backoff_max": retry_backoff_max,
            "retry_mode": retry_mode,
        }
        super().__init__(fully_qualified_namespace, credential, **retry, **kwargs)
        self._is_closed = False
        made_in = fork.generation

        def make() -> _Ends:
            # A secondary that is away stops nobody who has paired before, and the syphon is the
            # parent's.
            is_child = fork.generation != made_in
            chosen = replace(pairing, require_secondary=False, enable_syphon=False)
            paired = _made(
                fully_qualified_namespace,
                as_async_credential(credential),
                pairing=chosen if is_child else pairing,
                **retry,
                **kwargs,
            )
            blocking = _blocking_client(fully_qualified_namespace, credential, pairing, kwargs)
            ends = _Ends(PORTAL.call(paired), blocking, WeakSet())
            if is_child:
                self._handlers = WeakSet()  # The parent's receivers.
                if self._is_closed:
                    PORTAL.call(ends.paired.close())
            return ends

        self._ends = Twin(make)
        self._factory = MessagingFactory.wrap(lambda: self._paired.messaging_factory)

    @property
    def _paired(self) -> aio.PairedServiceBusClient:
        return self._ends().paired

    @property
    def messaging_factory(self) -> MessagingFactory:
        """The pair's primary: health(), backlog(), events(), force_failover() and the like, for
        any thread."""
        return self._factory

    def __enter__(self) -> Self:
        super().__enter__()
        PORTAL.call(self._paired.__aenter__())
        return self

    def close(self) -> None:
        self._is_closed = True
        if self._ends.is_inherited:
            return
        paired, _, direct = self._ends()
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

    def _sender(self, paired: aio.PairedServiceBusSender, options: dict[str, Any]) -> _SenderEnds:
        _, blocking, all_direct = self._ends()
        if blocking is None:
            return _SenderEnds(paired, None)

        def open_link() -> BlockingLink[ServiceBusMessage]:
            # A topic's sender is a queue's by another name. Without keep-alive no other thread
            # reads from the connection; an idle link may go.
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
        return _SenderEnds(paired, direct)


class _Ends(NamedTuple):
    """What a client sends by."""

    paired: aio.PairedServiceBusClient
    blocking: ServiceBusClient | None
    direct: WeakSet[DirectSender[ServiceBusMessage]]


class _SenderEnds(NamedTuple):
    """What a sender sends by."""

    paired: aio.PairedServiceBusSender
    direct: DirectSender[ServiceBusMessage] | None


def _blocking_client(
    fully_qualified_namespace: str, credential: Any, pairing: Pairing, options: dict[str, Any]
) -> ServiceBusClient | None:
    """Makes the blocking senders; None where every send goes through the loop: what is metered is
    counted there, and only there an async credential can be asked."""
    is_async = inspect.iscoroutinefunction(getattr(credential, "get_token", None))
    if pairing.metering is not None or is_async:
        return None
    # Which entity a connection string is for is checked by the client itself.
    inside = {name: value for name, value in options.items() if name != "entity_name"}
    return ServiceBusClient(fully_qualified_namespace, credential, retry_total=0, **inside)


async def _made(
    fully_qualified_namespace: str, credential: Any, **kwargs: Any
) -> aio.PairedServiceBusClient:
    """Made on the loop, where its locks and events belong."""
    return aio.PairedServiceBusClient(fully_qualified_namespace, credential, **kwargs)


class PairedServiceBusSender:
    """``azure.servicebus.ServiceBusSender`` that goes round by the backlog during an outage."""

    def __init__(self, make: Callable[[], _SenderEnds]) -> None:
        self._ends = Twin(make)
        paired = self._paired
        self.fully_qualified_namespace = paired.fully_qualified_namespace
        self.entity_name = paired.entity_name

    @property
    def _paired(self) -> aio.PairedServiceBusSender:
        return self._ends().paired

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
        """Send, and return once the primary or a backlog queue holds all of it."""
        paired, direct = self._ends()
        if direct is None:
            PORTAL.call(paired.send_messages(message, timeout=timeout, **kwargs))
            return
        # Written out, because every layer more is paid by every send (P0).
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
                raise_in_words_of_the_sdk(error)
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
        """Send messages that become visible later; see ``twinbus.azure.aio`` about cancelling."""
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
        """Take scheduled messages back, as long as that is possible."""
        PORTAL.call(
            self._paired.cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
        )

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch; also while the primary is away."""
        return PORTAL.call(self._paired.create_message_batch(max_size_in_bytes))

    def close(self) -> None:
        if self._ends.is_inherited:
            return
        paired, direct = self._ends()
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
    """A sync credential, for a client that awaits its tokens."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    def __getattr__(self, name: str) -> Any:
        # The SDK looks for ``token_type``, which tells a signature from an identity's token.
        return getattr(self._credential, name)

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        # It goes over the network, and may start a program, before it returns.
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)


def as_async_credential(credential: Any) -> Any:
    """The same credential as the async client takes it."""
    if isinstance(credential, AzureSasCredential | AzureNamedKeyCredential):
        return credential
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        return credential
    return _AsyncCredential(credential)

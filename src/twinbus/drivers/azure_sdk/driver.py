"""One namespace, through the official SDK.

Rule 1: creating a driver, a sender or a receiver uses no network.
Rule 2: senders and receivers are closed with their driver at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, TransportType
from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus.aio import ServiceBusClient

from twinbus.common.connection_string import TLS_PORT, ConnectionString, parse_connection_string
from twinbus.drivers.azure_sdk.blocking_link import BlockingLink, encoded_message
from twinbus.drivers.azure_sdk.errors import closed_error
from twinbus.drivers.azure_sdk.receiver import SdkReceiver
from twinbus.drivers.azure_sdk.sender import SdkSender
from twinbus.drivers.azure_sdk.trusted_certificates import with_certificates
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    SharedKey,
    SharedSignature,
    credential_of,
)
from twinbus.drivers.interface import NamespaceAddress, NextSession, ReceiveMode
from twinbus.encoding.transit import OutgoingMessage

SdkCredential = AzureNamedKeyCredential | AzureSasCredential

_MODES: Final = {
    ReceiveMode.PEEK_LOCK: ServiceBusReceiveMode.PEEK_LOCK,
    ReceiveMode.RECEIVE_AND_DELETE: ServiceBusReceiveMode.RECEIVE_AND_DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusOptions:
    """Options for the SDK's client."""

    ca_file: str | None = None
    """An authority to trust instead of the default ones (PEM file)."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """More keywords for the SDK's ServiceBusClient, for example ``transport_type`` or
    ``http_proxy``. Its retries stay off: the pairing retries."""


class ServiceBusDriver:
    """The Driver interface over the SDK."""

    def __init__(
        self,
        client: ServiceBusClient,
        address: NamespaceAddress,
        blocking: Callable[[], BlockingClient] | None = None,
    ) -> None:
        """``blocking`` creates the SDK's client for threads without an event loop."""
        self.address = address
        self._client = client
        self._blocking = blocking
        self._opened: set[SdkSender | SdkReceiver] = set()
        self._is_closed = False

    @classmethod
    def from_connection_string(
        cls, connection_string: ConnectionString | str, options: ServiceBusOptions | None = None
    ) -> ServiceBusDriver:
        """A driver for a namespace, with the key or the signature of its connection string."""
        parsed = connection_string
        if isinstance(parsed, str):
            parsed = parse_connection_string(parsed)
        keywords = _keywords(options or ServiceBusOptions())
        address = NamespaceAddress(parsed.host, parsed.effective_port)
        if parsed.uses_tls and parsed.effective_port != TLS_PORT:
            # Without the emulator flag the SDK ignores any other port of a connection string.
            keywords.setdefault("custom_endpoint_address", f"sb://{address}")
            keywords.setdefault("transport_type", TransportType.Amqp)
        # The SDK uses plain text only with that flag. The callers choose the entity, and the
        # service checks it.
        adapted = replace(
            parsed,
            scheme="sb",
            entity_path=None,
            use_development_emulator=not parsed.uses_tls,
        )
        text = adapted.to_text()
        return cls(
            ServiceBusClient.from_connection_string(text, **with_certificates(keywords)),
            address,
            lambda: BlockingClient.from_connection_string(text, **keywords),
        )

    @classmethod
    def for_namespace(
        cls,
        fully_qualified_namespace: str,
        credential: SdkCredential | Credential | IdentityCredential,
        options: ServiceBusOptions | None = None,
    ) -> ServiceBusDriver:
        """A driver for a namespace with a credential: azure-identity's, the SDK's, or ours."""
        sdk_credential, keywords = _to_sdk(credential), _keywords(options or ServiceBusOptions())
        client = ServiceBusClient(
            fully_qualified_namespace, sdk_credential, **with_certificates(keywords)
        )
        host, _, port = client.fully_qualified_namespace.partition(":")
        blocking: Callable[[], BlockingClient] | None = None
        if not isinstance(sdk_credential, _Tokens):  # An identity needs the event loop.
            blocking = partial(
                BlockingClient, fully_qualified_namespace, sdk_credential, **keywords
            )
        return cls(client, NamespaceAddress(host.lower(), int(port or TLS_PORT)), blocking)

    def sender(self, path: str, **options: Any) -> SdkSender:
        """``options`` are keywords of the SDK for this sender."""
        self._check_open()
        # A sender for a topic is the same as one for a queue.
        sender = SdkSender(
            path,
            lambda: self._client.get_queue_sender(path, **options),
            forget=self._opened.discard,
        )
        self._opened.add(sender)
        return sender

    def blocking_opener(self, path: str) -> Callable[[], BlockingLink[OutgoingMessage]] | None:
        """A function that opens a link for one thread; None if only an event loop can send."""
        make = self._blocking
        if make is None:
            return None

        def open_link() -> BlockingLink[OutgoingMessage]:
            # Without keep-alive no other thread reads from the connection; an idle link may end.
            sdk = make().get_queue_sender(path, keep_alive=0)
            link = BlockingLink(path, sdk, encoded_message)
            link.open()
            return link

        return open_link

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> SdkReceiver:
        self._check_open()

        def make(session_wait_s: float | None) -> Any:
            # The SDK builds the paths of subscriptions and sub-queues in the same way.
            return self._client.get_queue_receiver(
                path,
                receive_mode=_MODES[mode],
                prefetch_count=prefetch,
                session_id=NEXT_AVAILABLE_SESSION if isinstance(session, NextSession) else session,
                max_wait_time=session_wait_s,
            )

        receiver = SdkReceiver(
            path, make, prefetch=prefetch, session=session, forget=self._opened.discard
        )
        self._opened.add(receiver)
        return receiver

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error(f"The driver of {self.address}")

    async def close(self) -> None:
        self._is_closed = True
        try:
            await asyncio.gather(*(each.close() for each in list(self._opened)))
        finally:
            await self._client.close()


class _Tokens:
    """An identity for the SDK; its failures are distinct from those of the service."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        token = await self._credential.token_for(scopes[0])
        return AccessToken(token.text, int(token.expires_s))


def _to_sdk(given: SdkCredential | Credential | IdentityCredential) -> Any:
    """A credential in the form that the SDK accepts."""
    if isinstance(given, SdkCredential):
        return given
    match credential_of(given):
        case SharedKey(rule_name, key):
            return AzureNamedKeyCredential(rule_name, key)
        case SharedSignature(signature):
            return AzureSasCredential(signature)
        case identity:
            return _Tokens(identity)


def _keywords(options: ServiceBusOptions) -> dict[str, Any]:
    keywords = {**options.client_options, "retry_total": 0}
    if options.ca_file is not None:
        keywords["connection_verify"] = options.ca_file
    return keywords

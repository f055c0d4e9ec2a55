"""One namespace, through the official SDK.

Rule 1: making a driver, a sender or a receiver touches no network.
Rule 2: what was made here is closed here, at the latest with the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, TransportType
from azure.servicebus.aio import ServiceBusClient

from twinbus.connection_string import TLS_PORT, ConnectionString, parse_connection_string
from twinbus.drivers.port import NamespaceAddress, NextSession, ReceiveMode
from twinbus.drivers.servicebus.receiver import SdkReceiver
from twinbus.drivers.servicebus.sender import SdkSender
from twinbus.drivers.servicebus.translation import closed
from twinbus.service_errors import AuthenticationFailed

_MODES: Final = {
    ReceiveMode.PEEK_LOCK: ServiceBusReceiveMode.PEEK_LOCK,
    ReceiveMode.RECEIVE_AND_DELETE: ServiceBusReceiveMode.RECEIVE_AND_DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusOptions:
    """How the SDK's client is made."""

    ca_file: str | None = None
    """An authority to trust instead of the usual ones (PEM)."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """More keywords for the SDK's ServiceBusClient, e.g. ``transport_type`` or ``http_proxy``.
    Its retries stay off: they are ours."""


class ServiceBusDriver:
    """The port's Driver."""

    def __init__(self, client: ServiceBusClient, address: NamespaceAddress) -> None:
        self.address = address
        self._client = client
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
            # Without the emulator's flag the SDK takes no other port from a connection string.
            keywords.setdefault("custom_endpoint_address", f"sb://{address}")
            keywords.setdefault("transport_type", TransportType.Amqp)
        # The SDK knows plain text only by that flag, and which entity is used is our callers'
        # choice: the service checks it.
        shown = replace(
            parsed,
            scheme="sb",
            entity_path=None,
            use_development_emulator=not parsed.uses_tls,
        )
        return cls(ServiceBusClient.from_connection_string(shown.to_text(), **keywords), address)

    @classmethod
    def for_namespace(
        cls,
        fully_qualified_namespace: str,
        credential: Any,
        options: ServiceBusOptions | None = None,
    ) -> ServiceBusDriver:
        """A driver for a namespace with an async credential, as azure-identity has them."""
        if not isinstance(credential, AzureSasCredential | AzureNamedKeyCredential):
            credential = _Tokens(credential)
        client = ServiceBusClient(
            fully_qualified_namespace, credential, **_keywords(options or ServiceBusOptions())
        )
        host, _, port = client.fully_qualified_namespace.partition(":")
        return cls(client, NamespaceAddress(host.lower(), int(port or TLS_PORT)))

    def sender(self, path: str) -> SdkSender:
        self._check_open()
        # A topic's sender is a queue's by another name.
        made = SdkSender(
            path, lambda: self._client.get_queue_sender(path), forget=self._opened.discard
        )
        self._opened.add(made)
        return made

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
            # The SDK puts a subscription's path and a sub-queue's together just like this.
            return self._client.get_queue_receiver(
                path,
                receive_mode=_MODES[mode],
                prefetch_count=prefetch,
                session_id=NEXT_AVAILABLE_SESSION if isinstance(session, NextSession) else session,
                max_wait_time=session_wait_s,
            )

        made = SdkReceiver(
            path, make, prefetch=prefetch, session=session, forget=self._opened.discard
        )
        self._opened.add(made)
        return made

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed(f"the driver of {self.address}")

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(each.close() for each in list(self._opened)))
        await self._client.close()


class _Tokens:
    """A credential whose every failure is told apart from a failure of the service."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    def __getattr__(self, name: str) -> Any:
        # The SDK looks for ``token_type``, which tells a signature from an identity's token.
        return getattr(self._credential, name)

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        try:
            return await self._credential.get_token(*scopes, **options)
        except Exception as error:
            raise AuthenticationFailed(
                f"the credential gave no token: {type(error).__name__}",
                hint="Sign in again, or check what the identity may do",
            ) from error


def _keywords(options: ServiceBusOptions) -> dict[str, Any]:
    keywords = {**options.client_options, "retry_total": 0}
    if options.ca_file is not None:
        keywords["connection_verify"] = options.ca_file
    return keywords

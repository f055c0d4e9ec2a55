"""The Driver interface over AMQP: one namespace of Service Bus, or of the twinbus broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from twinbus.common.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.drivers.amqp.connection_pool import ConnectionPool
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint
from twinbus.drivers.amqp.receiver import AmqpReceiver
from twinbus.drivers.amqp.sender import AmqpSender
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    SharedKey,
    SharedSignature,
    credential_in,
    credential_of,
)
from twinbus.drivers.interface import NextSession, ReceiveMode


class AmqpDriver:
    """One namespace. Connections open when they are first needed."""

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential | IdentityCredential,
        options: AmqpOptions | None = None,
    ) -> None:
        self.address = endpoint.address
        self.options = options or AmqpOptions()
        self._endpoint, self._credential = endpoint, credential_of(credential)
        self._pool = ConnectionPool(endpoint, self._credential, self.options)
        self._open: set[AmqpSender | AmqpReceiver] = set()

    @classmethod
    def from_connection_string(
        cls, connection_string: ConnectionString | str, options: AmqpOptions | None = None
    ) -> AmqpDriver:
        parsed = connection_string
        if isinstance(parsed, str):
            parsed = parse_connection_string(parsed)
        return cls(Endpoint.of(parsed), credential_in(parsed), options)

    @classmethod
    def for_namespace(
        cls,
        fully_qualified_namespace: str,
        credential: Credential | IdentityCredential,
        options: AmqpOptions | None = None,
    ) -> AmqpDriver:
        """The namespace is given by its host, for example ``orders.servicebus.windows.net``."""
        return cls(Endpoint.of(namespace_at(fully_qualified_namespace)), credential, options)

    def access(self) -> ConnectionString | None:
        """The connection string for another process; None if there is none, because the credential
        is an object of this process."""
        where = ConnectionString(
            host=self._endpoint.host,
            port=self._endpoint.port,
            use_development_emulator=not self._endpoint.uses_tls,
        )
        match self._credential:
            case SharedKey(rule_name, key):
                return replace(where, shared_access_key_name=rule_name, shared_access_key=key)
            case SharedSignature(signature):
                return replace(where, shared_access_signature=signature)
            case _:
                return None

    def sender(self, path: str) -> AmqpSender:
        sender = AmqpSender(self._pool, path, self._open.discard)
        self._open.add(sender)
        return sender

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> AmqpReceiver:
        receiver = AmqpReceiver(
            self._pool,
            path,
            mode=mode,
            prefetch=prefetch,
            session=session,
            on_close=self._open.discard,
        )
        self._open.add(receiver)
        return receiver

    async def close(self) -> None:
        try:
            await asyncio.gather(*(each.close() for each in list(self._open)))
        finally:
            await self._pool.close()

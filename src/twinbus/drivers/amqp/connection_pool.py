"""The connections of one driver, which its endpoints use.

    PooledConnection   a connection with its tokens and its management nodes
    ConnectionPool     the connections of one driver: one, or as many as its links need

Rule 1: links share a connection as long as it has free sessions and receives frames.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from twinbus.drivers.amqp.connection import AmqpConnection, open_connection
from twinbus.drivers.amqp.errors import closed_loss
from twinbus.drivers.amqp.link_endpoint import LinkEndpoint
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint
from twinbus.drivers.amqp.request_nodes import ManagementNodeClient
from twinbus.drivers.amqp.shared_attempt import SharedAttempt
from twinbus.drivers.amqp.token_refresh import TokenRefresher
from twinbus.drivers.credentials import Credential
from twinbus.errors import AccessRefused, ConfigurationError

AnyEndpoint = TypeVar("AnyEndpoint", bound=LinkEndpoint)


class PooledConnection:
    """One connection and what all its links share."""

    def __init__(self, connection: AmqpConnection, credential: Credential) -> None:
        self.connection = connection
        self.tokens = TokenRefresher(connection, credential)
        self._nodes: dict[str, ManagementNodeClient] = {}
        self._opening: dict[str, SharedAttempt[ManagementNodeClient]] = {}
        connection.on_loss = self.tokens.close

    async def management(self, path: str) -> ManagementNodeClient:
        """The management node of an entity."""
        node = self._nodes.get(path)
        if node is None or not node.is_open:
            opening = self._opening.setdefault(path, SharedAttempt())
            node = await opening.result(lambda: self._open_node(path))
        return node

    async def request(
        self,
        path: str,
        operation: str,
        body: Mapping[str, Any],
        *,
        timeout_s: float,
        link_name: str = "",
    ) -> dict[str, Any]:
        """The response of the management node of an entity. One that was already open may have an
        expired token: the request was not carried out then, and a new token is sent (P7)."""
        known = self._nodes.get(path)
        node = await self.management(path)
        facts: dict[str, Any] = {"timeout_s": timeout_s, "link_name": link_name}
        try:
            return await node.request(operation, body, **facts)
        except AccessRefused:
            if node is not known:
                raise
        self.tokens.forget(path)
        await self.tokens.authorize(path)
        return await node.request(operation, body, **facts)

    async def _open_node(self, path: str) -> ManagementNodeClient:
        is_token_new = await self.tokens.authorize(path)
        node = await self.attach(
            path,
            lambda connection: ManagementNodeClient(connection, path),
            is_token_new=is_token_new,
        )
        self._nodes[path] = node
        self._opening.pop(path, None)
        return node

    async def attach(
        self, path: str, make: Callable[[AmqpConnection], AnyEndpoint], *, is_token_new: bool
    ) -> AnyEndpoint:
        """A new link; ``is_token_new``: a token for it was sent just now.

        A link that is refused with an earlier token gets another one: the old one may have expired
        by the service's clock, and if its key is revoked, the new one is refused (P7).
        """
        while True:
            end = make(self.connection)
            try:
                await end.wait_attached()
            except AccessRefused:
                self.tokens.forget(path)
                if is_token_new:
                    raise
                is_token_new = await self.tokens.authorize(path)
            else:
                return end


class ConnectionPool:
    """All connections of one driver."""

    def __init__(self, endpoint: Endpoint, credential: Credential, options: AmqpOptions) -> None:
        self.endpoint = endpoint
        self._credential = credential
        self._options = options
        self._connections: list[PooledConnection] = []
        self._opening: SharedAttempt[PooledConnection] = SharedAttempt()
        self._context = _tls_context(options.ca_file) if endpoint.uses_tls else None
        self._is_closed = False

    async def acquire(self) -> PooledConnection:
        """A connection with room for one more endpoint."""
        if self._is_closed:
            raise closed_loss(f"The driver for {self.endpoint.address}").error("", was_sent=False)
        self._connections = [each for each in self._connections if not each.connection.is_gone]
        for pooled in [each for each in self._connections if each.connection.is_usable]:
            await pooled.connection.poll_if_idle()
            if pooled.connection.is_usable and pooled.connection.has_room:
                return pooled
        return await self._opening.result(self._open)

    async def attach(
        self, path: str, make: Callable[[AmqpConnection], AnyEndpoint]
    ) -> tuple[PooledConnection, AnyEndpoint]:
        """A new link, and the connection that it is on."""
        pooled, is_token_new = await self._authorized_connection(path)
        return pooled, await pooled.attach(path, make, is_token_new=is_token_new)

    async def _authorized_connection(self, path: str) -> tuple[PooledConnection, bool]:
        """A connection with room that is authorized for ``path``, and whether its token was sent
        just now."""
        while True:
            pooled = await self.acquire()
            is_token_new = await pooled.tokens.authorize(path)
            if pooled.connection.is_usable and pooled.connection.has_room:
                return pooled, is_token_new

    def suspect(self, since_s: float) -> None:
        """A call timed out: connections that received nothing since are not used for others."""
        for pooled in self._connections:
            pooled.connection.suspect(since_s)

    async def _open(self) -> PooledConnection:
        connection = await open_connection(self.endpoint, self._options, self._context)
        pooled = PooledConnection(connection, self._credential)
        self._connections.append(pooled)
        return pooled

    async def close(self) -> None:
        self._is_closed = True
        loss = closed_loss(f"The driver for {self.endpoint.address}")
        self._opening.fail(loss.error("", was_sent=False))
        connections, self._connections = self._connections, []
        await asyncio.gather(*(pooled.connection.close() for pooled in connections))


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"Certificates in {ca_file!r} cannot be read: {error.strerror or error}",
            hint="Set ca_file to a file in PEM format",
        ) from error

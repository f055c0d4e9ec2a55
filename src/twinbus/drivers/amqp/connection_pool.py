"""The connections of one driver: where an end gets its line from.

    PooledConnection       a line with its authority and its management nodes
    ConnectionPool   the trunks of one driver: one, or as many as its links need

Rule 1: links share a connection as long as it has room and can be heard.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from twinbus.drivers.amqp.connection import AmqpConnection, open_line
from twinbus.drivers.amqp.errors import closed_by_us
from twinbus.drivers.amqp.link_endpoint import LinkEndpoint
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint
from twinbus.drivers.amqp.request_nodes import ManagementNodeClient
from twinbus.drivers.amqp.shared_attempt import SharedAttempt
from twinbus.drivers.amqp.token_refresh import TokenRefresher
from twinbus.drivers.credentials import Credential
from twinbus.errors import AccessRefused, ConfigurationError

AnyEndpoint = TypeVar("AnyEndpoint", bound=LinkEndpoint)


class PooledConnection:
    """One line and what is shared by everybody on it."""

    def __init__(self, line: AmqpConnection, credential: Credential) -> None:
        self.line = line
        self.authority = TokenRefresher(line, credential)
        self._nodes: dict[str, ManagementNodeClient] = {}
        self._opening: dict[str, SharedAttempt[ManagementNodeClient]] = {}
        line.on_loss = self.authority.close

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
        """What the management node of an entity answers. One that was open before may know a token
        that is no longer good: nothing was done then, and another one is shown (P7)."""
        known = self._nodes.get(path)
        node = await self.management(path)
        facts: dict[str, Any] = {"timeout_s": timeout_s, "link_name": link_name}
        try:
            return await node.request(operation, body, **facts)
        except AccessRefused:
            if node is not known:
                raise
        self.authority.forget(path)
        await self.authority.authorize(path)
        return await node.request(operation, body, **facts)

    async def _open_node(self, path: str) -> ManagementNodeClient:
        is_told = await self.authority.authorize(path)
        node = await self.attached(
            path, lambda line: ManagementNodeClient(line, path), is_reported=is_told
        )
        self._nodes[path] = node
        self._opening.pop(path, None)
        return node

    async def attached(
        self, path: str, make: Callable[[AmqpConnection], AnyEndpoint], *, is_reported: bool
    ) -> AnyEndpoint:
        """A new link; ``is_told``: the service was shown a token for it just now.

        Who is refused with a token of earlier shows another one: the old one may have run out by
        the service's clock, and if its key is gone the answer to the new one says so (P7).
        """
        while True:
            end = make(self.line)
            try:
                await end.attached()
            except AccessRefused:
                self.authority.forget(path)
                if is_reported:
                    raise
                is_reported = await self.authority.authorize(path)
            else:
                return end


class ConnectionPool:
    """All connections of one driver."""

    def __init__(self, endpoint: Endpoint, credential: Credential, options: AmqpOptions) -> None:
        self.endpoint = endpoint
        self._credential = credential
        self._options = options
        self._trunks: list[PooledConnection] = []
        self._opening: SharedAttempt[PooledConnection] = SharedAttempt()
        self._context = _tls_context(options.ca_file) if endpoint.uses_tls else None
        self._is_closed = False

    async def trunk(self) -> PooledConnection:
        """A connection with room for one more end."""
        if self._is_closed:
            raise closed_by_us(f"the driver for {self.endpoint.address}").error("", was_sent=False)
        self._trunks = [each for each in self._trunks if not each.line.is_gone]
        for trunk in [each for each in self._trunks if each.line.is_usable]:
            await trunk.line.listen()
            if trunk.line.is_usable and trunk.line.has_room:
                return trunk
        return await self._opening.result(self._open)

    async def attached(
        self, path: str, make: Callable[[AmqpConnection], AnyEndpoint]
    ) -> tuple[PooledConnection, AnyEndpoint]:
        """A new link, and the connection that it is on."""
        trunk, is_told = await self._admitted(path)
        return trunk, await trunk.attached(path, make, is_reported=is_told)

    async def _admitted(self, path: str) -> tuple[PooledConnection, bool]:
        """A connection with room, on which the service knows who we are (for ``path``), and
        whether it was told just now."""
        while True:
            trunk = await self.trunk()
            is_told = await trunk.authority.authorize(path)
            if trunk.line.is_usable and trunk.line.has_room:
                return trunk, is_told

    def suspect(self, since_s: float) -> None:
        """A call had no answer: whatever was silent since is not used for others."""
        for trunk in self._trunks:
            trunk.line.suspect(since_s)

    async def _open(self) -> PooledConnection:
        line = await open_line(self.endpoint, self._options, self._context)
        trunk = PooledConnection(line, self._credential)
        self._trunks.append(trunk)
        return trunk

    async def close(self) -> None:
        self._is_closed = True
        loss = closed_by_us(f"the driver for {self.endpoint.address}")
        self._opening.fail(loss.error("", was_sent=False))
        trunks, self._trunks = self._trunks, []
        await asyncio.gather(*(trunk.line.close() for trunk in trunks))


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"the certificates in {ca_file!r} cannot be read: {error.strerror or error}",
            hint="ca_file is a file in PEM format",
        ) from error

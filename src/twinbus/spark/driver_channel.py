"""The channel from running tasks to the source on Spark's driver: a small server and its client.

    task (executor) --one line of JSON--> channel (driver) --one line of JSON--> task

Spark gives a source no way to get reports from its tasks before a batch has ended, and some
reports cannot wait that long: which locks to renew, which destination fails, that a task must stop.

Rule 1: only connections that send the nonce are served. It travels inside the partition, which
        Spark shows nowhere, and is valid for one run of one query.
Rule 2: an invalid request ends its own connection and affects no other one; from a connection
        without the nonce no more bytes are read than a nonce has.
Rule 3: answers come in the order of the requests. An answer for which its task no longer waits is
        skipped, so that the next request gets its own.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from twinbus.errors import CommunicationError, OperationTimeout, ServiceError

logger = logging.getLogger("twinbus.spark")

__all__ = ["DriverChannel", "DriverChannelAddress", "DriverChannelClient", "Handler"]

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Called with the kind of a report and its facts; the result is sent back to the task."""

LOOPBACK: Final = "127.0.0.1"
LINE_BYTES_MAX: Final = 16 << 20
ASK_TIMEOUT_S: Final = 20.0
HELLO_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DriverChannelAddress:
    """How a task reaches the channel."""

    host: str
    port: int
    nonce: str = field(repr=False)


class DriverChannel:
    """Listens from start() to close(), in the running event loop."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._nonce = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, host: str = LOOPBACK) -> DriverChannelAddress:
        """Listen on a free port of ``host``, an address under which tasks reach this machine."""
        bound = await asyncio.to_thread(_bind, host)
        self._server = await asyncio.start_server(self._accept, sock=bound, limit=LINE_BYTES_MAX)
        return DriverChannelAddress(host, bound.getsockname()[1], self._nonce)

    async def close(self) -> None:
        """End every connection; may be called twice."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            if not self._is_closed and await self._has_nonce(reader):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # The task sees the end of the connection.
        except Exception as error:
            # A socket that fails is not logged; an error of the service, which can be an OSError,
            # is.
            if isinstance(error, ServiceError) or not isinstance(error, OSError):
                # The text is not logged: it may contain messages.
                logger.warning("Invalid report of a task: %s", type(error).__name__)
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _has_nonce(self, reader: asyncio.StreamReader) -> bool:
        expected = self._nonce.encode() + b"\n"
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await reader.readexactly(len(expected))
        except (TimeoutError, asyncio.IncompleteReadError):
            return False
        return hmac.compare_digest(hello, expected)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            facts = json.loads(line)
            answer = await self._handle(facts.pop("kind"), facts)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()


def _bind(host: str) -> socket.socket:
    """One socket, so that there is one port, whichever address of a name a task tries first."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                return socket.create_server(address, family=family)
    # With network address translation this machine does not have the address that others use.
    with suppress(OSError):
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


class DriverChannelClient:
    """A task's connection to the channel; opened by ``async with``."""

    def __init__(self, address: DriverChannelAddress) -> None:
        self._address = address
        self._turn = asyncio.Lock()
        self._asked_count = 0
        self._answer_count = 0
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        address = self._address
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                self._reader, self._writer = await asyncio.open_connection(
                    address.host, address.port, limit=LINE_BYTES_MAX
                )
        except (OSError, TimeoutError) as error:
            raise CommunicationError(
                f"The Spark driver is unreachable at {address.host}:{address.port}",
                hint="Set the option driverHost to an address that the executors can reach",
            ) from error
        self._writer.write(address.nonce.encode() + b"\n")
        return self

    async def ask(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Send a report and return the driver's answer."""
        request = json.dumps({"kind": kind, **facts}).encode() + b"\n"
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S), self._turn:
                return await self._answer(request)
        except TimeoutError as error:
            raise OperationTimeout(
                f"The Spark driver did not answer a task within {ASK_TIMEOUT_S:g} s"
            ) from error
        except (OSError, ValueError) as error:
            raise _disconnected() from error

    async def _answer(self, request: bytes) -> dict[str, Any]:
        self._writer.write(request)
        self._asked_count += 1
        await self._writer.drain()
        while self._answer_count < self._asked_count:
            line = await self._reader.readline()
            if not line:
                raise _disconnected()
            self._answer_count += 1
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()


def _disconnected() -> CommunicationError:
    return CommunicationError(
        "The Spark driver closed the connection of a task",
        hint="Read the query's error in the driver's log",
    )

"""Where tasks report to while they run: a small server beside the source, on Spark's driver.

    task (executor) --one line of JSON--> desk (driver) --one line of JSON--> task

Spark gives a source no way to hear from its tasks before a batch has ended, and some things
cannot wait that long: which locks to renew, which destination has closed, that it is time to stop.

Rule 1: only who knows the nonce is heard. It travels inside the partition, which Spark shows
        nowhere, and is good for one run of one query.
Rule 2: a request that makes no sense ends its own connection and harms nobody else; a stranger
        is read no further than a nonce is long.
Rule 3: answers come in the order of the requests. One that its task no longer waited for is
        passed over, so that the next request gets its own.
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
"""Told what a report is and its facts; its answer goes back to the task."""

LOOPBACK: Final = "127.0.0.1"
LINE_BYTES_MAX: Final = 16 << 20
ASK_TIMEOUT_S: Final = 20.0
HELLO_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DriverChannelAddress:
    """How a task finds the desk."""

    host: str
    port: int
    nonce: str = field(repr=False)


class DriverChannel:
    """Listens from start() to close(), in the running event loop."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._nonce = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, host: str = LOOPBACK) -> DriverChannelAddress:
        """Listen on a free port of ``host``, an address under which tasks reach this machine."""
        bound = await asyncio.to_thread(_bound_to, host)
        self._server = await asyncio.start_server(self._accept, sock=bound, limit=LINE_BYTES_MAX)
        return DriverChannelAddress(host, bound.getsockname()[1], self._nonce)

    async def close(self) -> None:
        """End every connection; may be called twice."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            if not self._is_closed and await self._knows_nonce(reader):
                await self._talk(reader, writer)
        except asyncio.CancelledError:
            pass  # The task sees the end of the connection.
        except Exception as error:
            # A socket that fails is no news; an error of the service, which can be an OSError, is.
            if isinstance(error, ServiceError) or not isinstance(error, OSError):
                # What was said is not repeated: it may hold messages.
                logger.warning("A task's report was not understood: %s", type(error).__name__)
        finally:
            self._talks.discard(talk)
            writer.close()

    async def _knows_nonce(self, reader: asyncio.StreamReader) -> bool:
        expected = self._nonce.encode() + b"\n"
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await reader.readexactly(len(expected))
        except (TimeoutError, asyncio.IncompleteReadError):
            return False
        return hmac.compare_digest(hello, expected)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            facts = json.loads(line)
            answer = await self._handle(facts.pop("kind"), facts)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()


def _bound_to(host: str) -> socket.socket:
    """One socket, so that there is one port, whichever address of a name a task tries first."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                return socket.create_server(address, family=family)
    # Behind an address translation the name that others use is none of this machine's.
    with suppress(OSError):
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


class DriverChannelClient:
    """A task's connection to the desk; opened by ``async with``, used by one task at a time."""

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
                f"the Spark driver was not reached at {address.host}:{address.port}",
                hint="Set the option driverHost to an address that the executors can reach",
            ) from error
        self._writer.write(address.nonce.encode() + b"\n")
        return self

    async def ask(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Report something, and hear what the driver says to it."""
        request = json.dumps({"kind": kind, **facts}).encode() + b"\n"
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S), self._turn:
                return await self._answer(request)
        except TimeoutError as error:
            raise OperationTimeout("the Spark driver did not answer a task in time") from error
        except (OSError, ValueError) as error:
            raise _hung_up() from error

    async def _answer(self, request: bytes) -> dict[str, Any]:
        self._writer.write(request)
        self._asked_count += 1
        await self._writer.drain()
        while self._answer_count < self._asked_count:
            line = await self._reader.readline()
            if not line:
                raise _hung_up()
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


def _hung_up() -> CommunicationError:
    return CommunicationError(
        "the Spark driver ended the connection of a task",
        hint="Look for the query's error in the driver's log",
    )

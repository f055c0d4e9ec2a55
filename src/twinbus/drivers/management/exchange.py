"""One HTTP/1.1 request and its answer, on asyncio streams.

Rule 1: one connection, one request: a burst of management calls is rare, a half-dead connection
        kept for it is not.
Rule 2: an answer has a bounded head, a bounded body and a bounded time; more is an error.
Rule 3: everything that goes wrong on the way is a ServiceError; a status is not (see answers.py).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.drivers.management.endpoint import AdministrationEndpoint
from twinbus.service_errors import CommunicationError, OperationTimeout, ServiceInternalError

__all__ = ["HttpAnswer", "exchange"]

# Azure answers with some 20 headers of tracing.
HEAD_BYTES_MAX: Final = 32 << 10
# A page of 100 queues with 12 access rules each is about 1 MB.
BODY_BYTES_MAX: Final = 8 << 20
_CHUNK_LINE_BYTES_MAX: Final = 256

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?", re.ASCII)
_LENGTH = re.compile(rb"[0-9]{1,9}", re.ASCII)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a repeated one the last."""
    body: bytes


class _Garbled(Exception):
    """The answer is not HTTP as we understand it."""


async def exchange(
    endpoint: AdministrationEndpoint,
    tls: ssl.SSLContext | None,
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
) -> HttpAnswer:
    """Ask once; raises CommunicationError, OperationTimeout or ServiceInternalError."""
    request = _request(endpoint, method, target, headers, body)
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, tls, request)
    except TimeoutError as error:
        raise OperationTimeout(
            f"{endpoint.url} gave no answer within {timeout_s:g} s",
            hint="Check that the namespace can be reached over HTTP from here",
        ) from error
    except _Garbled as error:
        raise ServiceInternalError(
            f"{endpoint.url} does not answer like a messaging service: {error}",
            hint="Check the host and the port; the emulator has its HTTP side on port 5300",
        ) from error


async def _exchange(
    endpoint: AdministrationEndpoint, tls: ssl.SSLContext | None, request: bytes
) -> HttpAnswer:
    reader, writer = await _connected(endpoint, tls)
    try:
        writer.write(request)
        await writer.drain()
        return await _answer(reader)
    except (OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
        raise CommunicationError(
            f"the connection to {endpoint.url} was lost",
            hint="Check the namespace and the network, then try again",
        ) from error
    finally:
        # Nothing more is wanted, so nobody waits for a polite goodbye either.
        writer.transport.abort()


async def _connected(
    endpoint: AdministrationEndpoint, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=tls, limit=HEAD_BYTES_MAX
        )
    except ssl.SSLCertVerificationError as error:
        raise CommunicationError(
            f"the certificate of {endpoint.url} is not trusted: {error.verify_message}",
            hint="Name the authority's file with ca_file, or set SSL_CERT_FILE",
            was_sent=False,
        ).used_up() from error
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CommunicationError(
            f"{endpoint.url} cannot be reached: {reason}",
            hint="Check the host name, the port, and that the namespace is up",
            was_sent=False,
        ) from error


def _request(
    endpoint: AdministrationEndpoint,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
) -> bytes:
    told = {
        "Host": endpoint.authority,
        **headers,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


# -- reading ------------------------------------------------------------------------------


async def _answer(reader: asyncio.StreamReader) -> HttpAnswer:
    status, headers = await _head(reader)
    while status < 200:  # "100 Continue" and its like announce the answer.
        status, headers = await _head(reader)
    return HttpAnswer(status, headers, await _body(reader, status, headers))


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Garbled("its headers do not end") from error
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise _Garbled("it is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(b":")
        if not colon:
            raise _Garbled("a header has no colon")
        headers[name.decode("latin-1").lower()] = text.decode("latin-1").strip()
    return int(match[1]), headers


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise _Garbled("its transfer encoding is not known")
        return await _chunks(reader)
    if "content-length" in headers:
        text = headers["content-length"].encode("latin-1")
        if not _LENGTH.fullmatch(text) or int(text) > BODY_BYTES_MAX:
            raise _Garbled("its length is no number, or too large")
        return await reader.readexactly(int(text))
    return await _until_close(reader)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        match = _CHUNK_SIZE.fullmatch(await _line(reader))
        if match is None:
            raise _Garbled("a chunk has no size")
        size = int(match[1], 16)
        if size == 0:
            return bytes(body)  # Trailers may follow; the connection ends here.
        if len(body) + size > BODY_BYTES_MAX:
            raise _Garbled(f"it has more than {BODY_BYTES_MAX} bytes")
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise _Garbled("a chunk does not end where it said")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _Garbled("a chunk has no size") from error
    if len(line) > _CHUNK_LINE_BYTES_MAX:
        raise _Garbled("the size of a chunk is too long")
    return line


async def _until_close(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while part := await reader.read(64 << 10):
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise _Garbled(f"it has more than {BODY_BYTES_MAX} bytes")
    return bytes(body)

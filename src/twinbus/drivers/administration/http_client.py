"""One HTTP exchange: its endpoint, its bounded answer, and its status as an error.

Which door a namespace has for HTTP.

    sb://contoso.servicebus.windows.net      https, port 443
    sb://localhost:5672 (emulator flag)      http on the same port: our broker serves both there
    sb://localhost      (emulator flag)      http on port 5300, as the official emulator does

One HTTP/1.1 request and its answer, on asyncio streams.

What a refusal of the HTTP interface means, in the words of service_errors.

    401, 403   the token is not good (AuthenticationFailed) or lacks a claim (AccessRefused)
    404, 410   EntityNotFound
    409        EntityExists, or ServerBusy while somebody else changes the entity
    400        MessageRefused: the service does not take the request as it is
    408, 504   OperationTimeout
    429, 503   ServerBusy
    5xx        ServiceInternalError

Rule 1: plain HTTP is spoken only where the connection string speaks plain AMQP.
Rule 2: one connection, one request: a burst of management calls is rare, a half-dead connection
        kept for it is not.
Rule 3: an answer has a bounded head, a bounded body and a bounded time; more is an error.
Rule 4: everything that goes wrong on the way is a ServiceError; a status is not (see
        http_client.py).
Rule 5: the service's own sentence is passed on, shortened, and only if nothing in it looks like
        a secret.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from twinbus.common.connection_string import ConnectionString
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
    EntityExists,
    EntityNotFound,
    MessageRefused,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    TwinbusError,
)

__all__ = ["AdministrationEndpoint", "HttpAnswer", "detail_of", "exchange", "refusal_of"]

HTTPS_PORT: Final = 443
EMULATOR_PORT: Final = 5300
"""Where the official emulator, and ``twinbus serve``, have their HTTP side."""


@dataclass(frozen=True, slots=True)
class AdministrationEndpoint:
    """A host, a port and whether TLS is spoken there."""

    host: str
    port: int
    uses_tls: bool

    @classmethod
    def of(
        cls, parsed: ConnectionString, *, administration_port: int | None = None
    ) -> AdministrationEndpoint:
        """The door of the namespace that a connection string names."""
        if administration_port is not None and not 1 <= administration_port <= 65_535:
            raise ConfigurationError(
                f"administration_port is {administration_port!r}",
                hint="Use a number from 1 to 65535",
            )
        usual = HTTPS_PORT if parsed.uses_tls else EMULATOR_PORT
        return cls(parsed.host, administration_port or parsed.port or usual, parsed.uses_tls)

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.uses_tls and self.port == HTTPS_PORT
        return host if is_usual else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.uses_tls else 'http'}://{self.authority}/"

    def url_of(self, target: str) -> str:
        """The URL here of an entity that is given by its path or URL; whatever host that names, a
        token is made out to this one."""
        _scheme, is_url, rest = target.strip().partition("://")
        return f"{self.url}{rest.partition('/')[2] if is_url else target.strip()}"

    def tls_context(self, ca_file: str | Path | None) -> ssl.SSLContext | None:
        """What verifies the other side; None where plain HTTP is spoken."""
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context()
            if ca_file is not None:
                context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise ConfigurationError(
                f"the certificates in {str(ca_file)!r} cannot be read: {error.strerror or error}",
                hint="Name a PEM file with the authority's certificate",
            ) from error
        return context


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
        ).mark_final() from error
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


# Enough for the service's sentence; what follows is tracking numbers.
DETAIL_LENGTH_MAX: Final = 240
_SECRETS = re.compile(r"sig=|sharedaccesskey|sharedaccesssignature|bearer ", re.IGNORECASE)
_TRACKING = re.compile(r"[.\s]*(?:To know more visit|TrackingId:).*", re.DOTALL)
# "Manage,EntityRead claims required for this operation", "the claim Manage is missing"
_CLAIM = re.compile(r"\bclaims?\b", re.IGNORECASE)
# The service's own code for "another conflicting operation is in progress".
_CONFLICT: Final = "SubCode=40901"

_BY_STATUS: Final[dict[int, type[ServiceError]]] = {
    400: MessageRefused,
    404: EntityNotFound,
    408: OperationTimeout,
    410: EntityNotFound,
    429: ServerBusy,
    503: ServerBusy,
    504: OperationTimeout,
}
_HINTS: Final[dict[type[ServiceError], str]] = {
    AuthenticationFailed: "Check the name and the key of the access rule, and this machine's clock",
    EntityNotFound: "Create it first, or check its spelling",
    MessageRefused: "Check the properties of the entity",
    OperationTimeout: "Try again later",
    QuotaExceeded: "Delete entities that nobody needs, or ask for a larger namespace",
    ServerBusy: "Try again in ten seconds",
    ServiceInternalError: "Try again later; if it stays, ask whoever runs the namespace",
}


def refusal_of(answer: HttpAnswer, *, verb: str, kind: str, path: str) -> TwinbusError:
    """The error that an answer stands for; ``verb`` and ``kind`` say what was asked for."""
    detail = detail_of(answer.body)
    if answer.status == 409 and _CONFLICT not in detail:
        # Queues and topics share their names.
        shared = "queue or topic" if kind in ("queue", "topic") else kind
        return EntityExists(kind=shared, path=path)
    error = _class_of(answer.status, detail)
    asked = f"{verb} the {kind} {path!r}" if path else f"{verb} the {kind}"
    said = f": {detail.rstrip('.')}" if detail else ""
    hint = _HINTS.get(error, "Check that the address is the one of a messaging service")
    if error is AccessRefused:
        hint = "Use an access rule with the claim Manage"
        asked += ", which needs the claim Manage"
    if ". " in detail and not detail.startswith("SubCode"):
        hint = ""  # Our broker's own is in it.
    return error(
        f"the namespace refused to {asked} (status {answer.status}){said}",
        path=path,
        condition=f"http:{answer.status}",
        hint=hint,
    )


def _class_of(status: int, detail: str) -> type[ServiceError]:
    if status == 401:
        return AccessRefused if _CLAIM.search(detail) else AuthenticationFailed
    if status == 403:
        return QuotaExceeded if "quota" in detail.lower() else AccessRefused
    if status == 409:
        return ServerBusy
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServiceInternalError if status >= 500 else ServiceError


def detail_of(body: bytes) -> str:
    """The sentence in an error's body, on one line; empty when there is none to be shown."""
    try:
        found = fromstring(body, forbid_dtd=True).find("Detail")
    except (ParseError, DefusedXmlException, LookupError, ValueError):
        return ""
    text = " ".join(("" if found is None else found.text or "").split())
    text = _TRACKING.sub("", text)
    if _SECRETS.search(text) or not text.isprintable():
        return ""
    return text if len(text) <= DETAIL_LENGTH_MAX else text[: DETAIL_LENGTH_MAX - 1] + "…"

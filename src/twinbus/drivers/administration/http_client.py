"""One HTTP exchange: its endpoint, its bounded response, and the error of its status.

The endpoint of a namespace for HTTP:

    sb://contoso.servicebus.windows.net      https, port 443
    sb://localhost:5672 (emulator flag)      http on the same port: our broker serves both there
    sb://localhost      (emulator flag)      http on port 5300, as the official emulator does

The error of a status:

    401, 403   the token is invalid (AuthenticationFailed) or lacks a claim (AccessRefused)
    404, 410   EntityNotFound
    409        EntityExists, or ServerBusy while another client changes the entity
    400        MessageRefused: the service does not accept the request
    408, 504   OperationTimeout
    429, 503   ServerBusy
    5xx        ServiceInternalError

Rule 1: plain HTTP is used only if the connection string uses plain AMQP.
Rule 2: one connection, one request: a burst of administration calls is rare, a half-open connection
        kept for it is not.
Rule 3: a response has a bounded head, a bounded body and a bounded time; more is an error.
Rule 4: every failure on the way is a ServiceError; a status is not (see ``error_for``).
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

__all__ = ["AdministrationEndpoint", "HttpAnswer", "error_for", "exchange", "parse_error_detail"]

HTTPS_PORT: Final = 443
EMULATOR_PORT: Final = 5300
"""The HTTP port of the official emulator and of ``twinbus serve``."""


@dataclass(frozen=True, slots=True)
class AdministrationEndpoint:
    """A host, a port and whether it uses TLS."""

    host: str
    port: int
    uses_tls: bool

    @classmethod
    def of(
        cls, parsed: ConnectionString, *, administration_port: int | None = None
    ) -> AdministrationEndpoint:
        """The endpoint of the namespace that a connection string names."""
        if administration_port is not None and not 1 <= administration_port <= 65_535:
            raise ConfigurationError(
                f"Invalid value for administration_port: {administration_port!r}",
                hint="Use a number from 1 to 65535",
            )
        usual = HTTPS_PORT if parsed.uses_tls else EMULATOR_PORT
        return cls(parsed.host, administration_port or parsed.port or usual, parsed.uses_tls)

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.uses_tls and self.port == HTTPS_PORT
        return host if is_usual else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.uses_tls else 'http'}://{self.authority}/"

    def entity_url(self, target: str) -> str:
        """The URL of an entity, given by its path or URL, on this host: a token is always issued
        for this host."""
        _scheme, is_url, rest = target.strip().partition("://")
        return f"{self.url}{rest.partition('/')[2] if is_url else target.strip()}"

    def tls_context(self, ca_file: str | Path | None) -> ssl.SSLContext | None:
        """The TLS context that verifies the server; None for plain HTTP."""
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context()
            if ca_file is not None:
                context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise ConfigurationError(
                f"Certificates in {str(ca_file)!r} cannot be read: {error.strerror or error}",
                hint="Set ca_file to a PEM file with the certificate of the authority",
            ) from error
        return context


# Azure responds with about 20 headers for tracing.
HEAD_BYTES_MAX: Final = 32 << 10
# A page of 100 queues with 12 access rules each is about 1 MB.
BODY_BYTES_MAX: Final = 8 << 20
_CHUNK_LINE_BYTES_MAX: Final = 256

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?", re.ASCII)
_LENGTH = re.compile(rb"[0-9]{1,9}", re.ASCII)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; the last one if a name is repeated."""
    body: bytes


class _InvalidResponse(Exception):
    """The response is not HTTP as it is expected here."""


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
    """Send one request; raises CommunicationError, OperationTimeout or ServiceInternalError."""
    request = _request(endpoint, method, target, headers, body)
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, tls, request)
    except TimeoutError as error:
        raise OperationTimeout(
            f"No response from {endpoint.url} within {timeout_s:g} s",
            hint="Check that this machine can reach the namespace over HTTP",
        ) from error
    except _InvalidResponse as error:
        raise ServiceInternalError(
            f"Invalid HTTP response from {endpoint.url}: {error}",
            hint="Check the host and the port; the emulator uses port 5300 for HTTP",
        ) from error


async def _exchange(
    endpoint: AdministrationEndpoint, tls: ssl.SSLContext | None, request: bytes
) -> HttpAnswer:
    reader, writer = await _connect(endpoint, tls)
    try:
        writer.write(request)
        await writer.drain()
        return await _answer(reader)
    except (OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
        raise CommunicationError(
            f"The connection to {endpoint.url} was lost",
            hint="Check the namespace and the network, then try again",
        ) from error
    finally:
        # Nothing more is needed from this connection, so its closing handshake is skipped.
        writer.transport.abort()


async def _connect(
    endpoint: AdministrationEndpoint, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=tls, limit=HEAD_BYTES_MAX
        )
    except ssl.SSLCertVerificationError as error:
        raise CommunicationError(
            f"The certificate of {endpoint.url} is not trusted: {error.verify_message}",
            hint="Set ca_file, or SSL_CERT_FILE, to the certificate file of the authority",
            was_sent=False,
        ).mark_final() from error
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CommunicationError(
            f"Connection to {endpoint.url} failed: {reason}",
            hint="Check the host name, the port, and that the namespace is running",
            was_sent=False,
        ) from error


def _request(
    endpoint: AdministrationEndpoint,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
) -> bytes:
    all_headers = {
        "Host": endpoint.authority,
        **headers,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    fields = (f"{name}: {text}" for name, text in all_headers.items())
    lines = [f"{method} {target} HTTP/1.1", *fields]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


# -- reading ------------------------------------------------------------------------------


async def _answer(reader: asyncio.StreamReader) -> HttpAnswer:
    status, headers = await _head(reader)
    while status < 200:  # "100 Continue" and the like precede the response.
        status, headers = await _head(reader)
    return HttpAnswer(status, headers, await _body(reader, status, headers))


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _InvalidResponse(f"the headers exceed {HEAD_BYTES_MAX} bytes") from error
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise _InvalidResponse("it is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(b":")
        if not colon:
            raise _InvalidResponse("a header has no colon")
        headers[name.decode("latin-1").lower()] = text.decode("latin-1").strip()
    return int(match[1]), headers


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise _InvalidResponse("its transfer encoding is unknown")
        return await _chunks(reader)
    if "content-length" in headers:
        text = headers["content-length"].encode("latin-1")
        if not _LENGTH.fullmatch(text) or int(text) > BODY_BYTES_MAX:
            raise _InvalidResponse(
                f"its content length is not a number, or exceeds {BODY_BYTES_MAX} bytes"
            )
        return await reader.readexactly(int(text))
    return await _until_close(reader)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        match = _CHUNK_SIZE.fullmatch(await _line(reader))
        if match is None:
            raise _InvalidResponse("a chunk has no size")
        size = int(match[1], 16)
        if size == 0:
            return bytes(body)  # Trailers may follow; the connection ends here.
        if len(body) + size > BODY_BYTES_MAX:
            raise _InvalidResponse(f"its body exceeds {BODY_BYTES_MAX} bytes")
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise _InvalidResponse("a chunk does not have the size that it states")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _InvalidResponse("a chunk has no size") from error
    if len(line) > _CHUNK_LINE_BYTES_MAX:
        raise _InvalidResponse("the line with the size of a chunk is too long")
    return line


async def _until_close(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while part := await reader.read(64 << 10):
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise _InvalidResponse(f"its body exceeds {BODY_BYTES_MAX} bytes")
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
    EntityNotFound: "Create the entity, or check its name",
    MessageRefused: "Check the properties of the entity",
    OperationTimeout: "Try again later",
    QuotaExceeded: "Delete unused entities, or use a larger namespace",
    ServerBusy: "Try again in 10 seconds",
    ServiceInternalError: "Try again later; if the error persists, contact the operator",
}


def error_for(answer: HttpAnswer, *, verb: str, kind: str, path: str) -> TwinbusError:
    """The error for a response; ``verb`` and ``kind`` describe the request."""
    detail = parse_error_detail(answer.body)
    if answer.status == 409 and _CONFLICT not in detail:
        # Queues and topics share their names.
        shared = "queue or topic" if kind in ("queue", "topic") else kind
        return EntityExists(kind=shared, path=path)
    error = _class_of(answer.status, detail)
    operation = f"{verb} the {kind} {path!r}" if path else f"{verb} the {kind}"
    reason = f": {detail.rstrip('.')}" if detail else ""
    hint = _HINTS.get(error, "Check that the address is that of a messaging service")
    if error is AccessRefused:
        hint = "Use an access rule with the Manage claim"
        operation += ", which requires the Manage claim"
    if ". " in detail and not detail.startswith("SubCode"):
        hint = ""  # The detail contains our broker's own hint.
    return error(
        f"The namespace refused to {operation} (status {answer.status}){reason}",
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


def parse_error_detail(body: bytes) -> str:
    """The sentence in an error's body, on one line; empty when it must not be shown."""
    try:
        found = fromstring(body, forbid_dtd=True).find("Detail")
    except (ParseError, DefusedXmlException, LookupError, ValueError):
        return ""
    text = " ".join(("" if found is None else found.text or "").split())
    text = _TRACKING.sub("", text)
    if _SECRETS.search(text) or not text.isprintable():
        return ""
    return text if len(text) <= DETAIL_LENGTH_MAX else text[: DETAIL_LENGTH_MAX - 1] + "…"

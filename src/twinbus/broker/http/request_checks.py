"""What every HTTP request is checked for: host, body, paging and authorization.

Rule 1: the Host must be a name of this namespace. A web page can point a name of its own at this
        machine (DNS rebinding) and read what is served here as if it were its own; its requests
        have that name in the Host header and are refused.
Rule 2: bodies are not compressed, have at most 64 KB and are declared as XML.
Rule 3: a query parameter that has an effect occurs at most once.
Rule 4: every response has X-Content-Type-Options, so that no browser guesses another type.
Rule 5: the port in the audience is the socket's own; the Host header comes from the client.
Rule 6: an unknown key name and a wrong signature get the same error (see broker/access/sas.py).
Rule 7: a token is verified before the body is read, and its rule again afterwards: the claim may
        have been removed while the body was received.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinbus.broker.access.rules import Claim, RuleSet
from twinbus.broker.access.sas import AccessGrant, Audience, is_backed, parse_token, verify
from twinbus.broker.http.request_gate import BODY_BYTES_MAX
from twinbus.common.clock import Instant
from twinbus.errors import AccessDenied, ConfigurationError, EntityExists, TwinbusError

__all__ = [
    "SLOT",
    "HostCheck",
    "HttpError",
    "PageRequest",
    "TokenAudience",
    "audience_of",
    "check_host",
    "check_still_granted",
    "host_name_of",
    "may_manage",
    "parse_page",
    "parse_version",
    "read_body",
    "status_of",
    "verify_header",
    "verify_request",
]


class HttpError(Exception):
    """An HTTP status with its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: HttpError | TwinbusError) -> int:
    """The HTTP status by which the official clients recognise the kind of error."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, AccessDenied):
        return 401
    if isinstance(error, EntityExists):
        return 409
    if isinstance(error, ConfigurationError):
        return 400
    # The disk is full or failed: retries of the client may succeed.
    return 503


# The service returns pages of at most this many entries, whatever was requested.
PAGE_SIZE_MAX: Final = 100
SKIP_MAX: Final = 10_000_000

VERSIONS: Final = ("2017-04", "2021-05", "2024-05")
_XML_TYPES: Final = ("application/atom+xml", "application/xml", "text/xml")
_HOST = re.compile(
    r"(?P<name>[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\.?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?",
    re.ASCII | re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)


class PageRequest(NamedTuple):
    """The part of a list that is requested."""

    skip: int
    top: int


def host_name_of(request: Request) -> str | None:
    """The name in the Host header; None when it is not a valid name."""
    match = _HOST.fullmatch(request.headers.get("host", ""))
    return None if match is None else match["name"].lower()


def check_host(request: Request, audience: Audience) -> None:
    """Refuse a request whose Host is not a name of the namespace."""
    name = host_name_of(request)
    if not audience.known_as(name).answers_to(name):
        raise HttpError(
            421,
            "The Host header is not a name of this namespace. Use the host of its connection "
            "string.",
        )


def parse_version(request: Request) -> str:
    """The version of the protocol that the client uses."""
    version = _one(request, "api-version") or VERSIONS[-1]
    if version not in VERSIONS:
        raise HttpError(
            400, f"The query parameter api-version must be one of {', '.join(VERSIONS)}."
        )
    return version


def parse_page(request: Request) -> PageRequest:
    """The page that ``$skip`` and ``$top`` request."""
    if request.query_params.get("$filter") is not None:
        raise HttpError(400, "Lists cannot be filtered. Remove $filter.")
    skip = _number(request, "$skip", 0)
    top = _number(request, "$top", PAGE_SIZE_MAX)
    if skip > SKIP_MAX or top < 1:
        raise HttpError(
            400, f"The query parameter $skip must be at most {SKIP_MAX}, and $top at least 1."
        )
    return PageRequest(skip, min(top, PAGE_SIZE_MAX))


async def read_body(request: Request) -> bytes:
    """The body, if it is XML within the size limit."""
    kind = request.headers.get("content-type", _XML_TYPES[0]).partition(";")[0].strip().lower()
    if kind not in _XML_TYPES:
        raise HttpError(415, f"The body must have the content type {_XML_TYPES[0]}.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError(415, "The body must not be compressed. Remove Content-Encoding.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                raise HttpError(413, f"The body must have at most {BODY_BYTES_MAX} bytes.")
    except ClientDisconnect:
        raise HttpError(400, "The body is incomplete. Send the request again.") from None
    return bytes(body)


def _number(request: Request, name: str, default: int) -> int:
    text = _one(request, name)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text):
        raise HttpError(400, f"The query parameter {name} must have 1 to 9 digits.")
    return int(text)


def _one(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise HttpError(400, f"The query parameter {name} occurs more than once. Send it once.")
    return values[0] if values else None


class HostCheck:
    """ASGI middleware that accepts only requests whose Host is a name of this broker."""

    def __init__(self, application: ASGIApp, audience: Audience) -> None:
        self._application = application
        self._audience = audience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        application = self._application
        if scope["type"] == "http":
            try:
                check_host(Request(scope), self._audience)
            except HttpError as refusal:
                application = JSONResponse({"error": str(refusal)}, status_code=refusal.status)
        await application(scope, receive, send_typed)


# With a ready-made signature the official client writes this word before it.
_BEARER: Final = "Bearer "
SLOT: Final = "twinbus.slot"
"""The name under which a request's scope has the slot of its connection."""
_SIGNATURE: Final = "SharedAccessSignature "


class TokenAudience(Protocol):
    """What a token is verified against: a running or a stopped namespace."""

    @property
    def audience(self) -> Audience: ...

    def rules_for(self, path: str, /) -> RuleSet | None: ...

    def now(self) -> Instant: ...


def verify_request(request: Request, namespace: TokenAudience) -> AccessGrant:
    """What the request's token grants; raises AccessDenied."""
    shown = request.headers.get("authorization", "")
    if not shown:
        raise AccessDenied(
            "The request has no Authorization header",
            hint="Create the client from a connection string",
        )
    grant = verify_header(shown, namespace, audience_of(request, namespace))
    slot = request.scope.get("state", {}).get(SLOT)
    if slot is not None:
        # Its connection is authenticated from now on (broker/fairness/connection_slots.py).
        slot.authenticate((grant.scope, grant.rule_name))
    return grant


def verify_header(shown: str, namespace: TokenAudience, audience: Audience) -> AccessGrant:
    """What the token in a header grants; raises AccessDenied."""
    if shown.startswith(_BEARER):
        shown = shown[len(_BEARER) :]
        if not shown.startswith(_SIGNATURE):
            raise AccessDenied(
                "Tokens of an identity provider are not supported",
                hint="Create the client from a connection string with a shared access key",
            )
    return verify(
        parse_token(shown),
        audience=audience,
        rules=namespace.rules_for,
        now_s=namespace.now().wall_ms / 1000,
    )


def check_still_granted(grant: AccessGrant, namespace: TokenAudience) -> None:
    """Raise AccessDenied when the rule or key was removed, or the token expired, meanwhile."""
    is_over = grant.expires_s <= namespace.now().wall_ms / 1000
    if is_over or not is_backed(grant, namespace.rules_for):
        raise AccessDenied(
            "The token expired, or its access rule or key was removed, before the request was "
            "complete",
            hint="Send the request again with a valid token",
        )


def audience_of(request: Request, namespace: TokenAudience) -> Audience:
    """The names and the port under which the client reached the namespace."""
    port = request.scope["server"][1]
    return replace(namespace.audience, port=port).known_as(host_name_of(request))


def may_manage(grant: AccessGrant, segments: tuple[str, ...]) -> bool:
    return Claim.MANAGE in grant.claims and grant.covers(segments)

"""What every HTTP request is checked for: host, body, paging and authorization.

What the administration says when it does not do what it was asked.

What a request must be before anybody looks at what it wants.

What stands between our HTTP and browsers that somebody else's page is open in.

Whose token opens what, over HTTP.

Rule 1: the Host must be a name of this namespace. A web page that points a name of its own at
        this machine (DNS rebinding) has another one.
Rule 2: bodies come as they are: not compressed, at most 64 KB, declared as XML.
Rule 3: a query parameter that decides something stands there once.
Rule 4: a web page can point a name of its own at this machine (DNS rebinding) and then read what
        is served here as if it were its own. The Host header still says that name: refused.
Rule 5: no answer is to be taken for anything but what its type says.
Rule 6: the port in the audience is the socket's own; the Host header is the caller's word.
Rule 7: an unknown key name and a wrong signature get the same answer (see broker/access/sas.py).
Rule 8: a token is looked at before the body is read, and its rule once more afterwards: a body may
        take its time, and its sender may have lost the right meanwhile.
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
    "body_of",
    "check_host",
    "check_still_granted",
    "grant_in",
    "grant_of",
    "host_name_of",
    "may_manage",
    "page_of",
    "status_of",
    "version_of",
]


class HttpError(Exception):
    """An HTTP status with its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: HttpError | TwinbusError) -> int:
    """The status that tells the stock clients what kind of trouble this is."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, AccessDenied):
        return 401
    if isinstance(error, EntityExists):
        return 409
    if isinstance(error, ConfigurationError):
        return 400
    # The disk is full or failed: the clients' own retries may bridge that.
    return 503


# The service gives pages of at most this many, whatever was asked for.
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
    """Which part of a list is asked for."""

    skip: int
    top: int


def host_name_of(request: Request) -> str | None:
    """The name in the Host header; None when it is no name."""
    match = _HOST.fullmatch(request.headers.get("host", ""))
    return None if match is None else match["name"].lower()


def check_host(request: Request, audience: Audience) -> None:
    """Refuse who was sent here under a name that is not ours."""
    name = host_name_of(request)
    if not audience.known_as(name).answers_to(name):
        raise HttpError(
            421,
            "The Host header is not a name of this namespace. Use the host of its connection "
            "string.",
        )


def version_of(request: Request) -> str:
    """The version of the protocol that the client speaks."""
    version = _one(request, "api-version") or VERSIONS[-1]
    if version not in VERSIONS:
        raise HttpError(
            400, f"The query parameter api-version must be one of {', '.join(VERSIONS)}."
        )
    return version


def page_of(request: Request) -> PageRequest:
    """The page that ``$skip`` and ``$top`` ask for."""
    if request.query_params.get("$filter") is not None:
        raise HttpError(400, "Lists cannot be filtered. Remove $filter.")
    skip = _number(request, "$skip", 0)
    top = _number(request, "$top", PAGE_SIZE_MAX)
    if skip > SKIP_MAX or top < 1:
        raise HttpError(
            400, f"The query parameter $skip must be at most {SKIP_MAX}, and $top at least 1."
        )
    return PageRequest(skip, min(top, PAGE_SIZE_MAX))


async def body_of(request: Request) -> bytes:
    """The body, if it is XML of a bearable size."""
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
    """Stands before an application and lets in whoever asks for one of our names."""

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


# With a ready-made signature the stock client writes this word before it.
_BEARER: Final = "Bearer "
SLOT: Final = "twinbus.slot"
"""The name under which a request's scope has the slot of its connection."""
_SIGNATURE: Final = "SharedAccessSignature "


class TokenAudience(Protocol):
    """What a token is shown to: a namespace, or what is left of one that was stopped."""

    @property
    def audience(self) -> Audience: ...

    def rules_for(self, path: str, /) -> RuleSet | None: ...

    def now(self) -> Instant: ...


def grant_of(request: Request, namespace: TokenAudience) -> AccessGrant:
    """What the request's token grants; raises AccessDenied."""
    shown = request.headers.get("authorization", "")
    if not shown:
        raise AccessDenied(
            "The request has no Authorization header",
            hint="Create the client from a connection string",
        )
    grant = grant_in(shown, namespace, audience_of(request, namespace))
    slot = request.scope.get("state", {}).get(SLOT)
    if slot is not None:
        # Its connection is no stranger's any more (broker/fairness/connection_slots.py).
        slot.authenticate((grant.scope, grant.rule_name))
    return grant


def grant_in(shown: str, namespace: TokenAudience, audience: Audience) -> AccessGrant:
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
    """Raise AccessDenied when the rule, its key or the token ended while a body was read."""
    is_over = grant.expires_s <= namespace.now().wall_ms / 1000
    if is_over or not is_backed(grant, namespace.rules_for):
        raise AccessDenied(
            "The token expired, or its access rule or key was removed, before the request was "
            "complete",
            hint="Send the request again with a valid token",
        )


def audience_of(request: Request, namespace: TokenAudience) -> Audience:
    """The names and the port under which the caller reached the namespace."""
    port = request.scope["server"][1]
    return replace(namespace.audience, port=port).known_as(host_name_of(request))


def may_manage(grant: AccessGrant, segments: tuple[str, ...]) -> bool:
    return Claim.MANAGE in grant.claims and grant.covers(segments)

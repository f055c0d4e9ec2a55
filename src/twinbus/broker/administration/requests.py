"""What a request must be before anybody looks at what it wants.

Rule 1: the Host must be a name of this namespace. A web page that points a name of its own at
        this machine (DNS rebinding) has another one.
Rule 2: bodies come as they are: not compressed, at most 64 KB, declared as XML.
Rule 3: a query parameter that decides something stands there once.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from starlette.requests import ClientDisconnect, Request

from twinbus.broker.access.sas import Audience
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.request_gate import BODY_BYTES_MAX

__all__ = [
    "PageRequest",
    "body_of",
    "check_host",
    "host_name_of",
    "page_of",
    "version_of",
]

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
        raise HttpError(421, "The Host is not a name of this namespace. Use its connection string.")


def version_of(request: Request) -> str:
    """The version of the protocol that the client speaks."""
    version = _one(request, "api-version") or VERSIONS[-1]
    if version not in VERSIONS:
        raise HttpError(400, f"The api-version must be one of {', '.join(VERSIONS)}.")
    return version


def page_of(request: Request) -> PageRequest:
    """The page that ``$skip`` and ``$top`` ask for."""
    if request.query_params.get("$filter") is not None:
        raise HttpError(400, "Lists cannot be filtered here. Leave $filter out.")
    skip = _number(request, "$skip", 0)
    top = _number(request, "$top", PAGE_SIZE_MAX)
    if skip > SKIP_MAX or top < 1:
        raise HttpError(400, f"The query's $skip must be at most {SKIP_MAX}, and $top at least 1.")
    return PageRequest(skip, min(top, PAGE_SIZE_MAX))


async def body_of(request: Request) -> bytes:
    """The body, if it is XML of a bearable size."""
    kind = request.headers.get("content-type", _XML_TYPES[0]).partition(";")[0].strip().lower()
    if kind not in _XML_TYPES:
        raise HttpError(415, f"The body must have the type {_XML_TYPES[0]}.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError(415, "The body must not be compressed. Send it as it is.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                raise HttpError(413, f"The body must have at most {BODY_BYTES_MAX} bytes.")
    except ClientDisconnect:
        raise HttpError(400, "The body ended early. Send it again.") from None
    return bytes(body)


def _number(request: Request, name: str, default: int) -> int:
    text = _one(request, name)
    if text is None:
        return default
    if not _DIGITS.fullmatch(text):
        raise HttpError(400, f"The query's {name} must be a whole number of digits.")
    return int(text)


def _one(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise HttpError(400, f"The query has {name} twice. Say it once.")
    return values[0] if values else None

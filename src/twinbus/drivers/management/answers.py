"""What a refusal of the HTTP interface means, in the words of service_errors.

    401, 403   the token is not good (AuthenticationFailed) or lacks a claim (AccessRefused)
    404, 410   EntityNotFound
    409        EntityExists, or ServerBusy while somebody else changes the entity
    400        MessageRefused: the service does not take the request as it is
    408, 504   OperationTimeout
    429, 503   ServerBusy
    5xx        ServiceInternalError

Rule 1: the service's own sentence is passed on, shortened, and only if nothing in it looks like
        a secret.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from twinbus.drivers.management.exchange import HttpAnswer
from twinbus.errors import EntityExists, TwinbusError
from twinbus.service_errors import (
    AccessRefused,
    AuthenticationFailed,
    EntityNotFound,
    MessageRefused,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

__all__ = ["detail_of", "refusal_of"]

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

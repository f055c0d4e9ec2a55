"""Errors of the service as ours (which condition means what: drivers/error_conditions.py).

Rule 1: a ConnectionLoss is the reason why a link is gone. It creates an error of its own for every
        call that waited, because an error belongs to one call (it turns from transient to final
        there).
Rule 2: the service's own words are quoted, shortened and on one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.amqp.delivery_states import Error
from twinbus.drivers.error_conditions import CONDITIONS
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    EntityNotFound,
    LinkDetached,
    MessageLockLost,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

STATUS_CODES: Final[Mapping[int, type[ServiceError]]] = {
    400: MessageRefused,
    401: AccessRefused,
    403: AccessRefused,
    404: EntityNotFound,
    408: OperationTimeout,
    410: MessageLockLost,
    503: ServerBusy,
}
"""For responses of a node without a condition."""

# Errors about one message: if one ends a link, it is unknown which of many messages caused it.
ABOUT_ONE_MESSAGE: Final = (MessageTooLarge, MessageRefused)

QUOTE_LENGTH_MAX: Final = 300


def quote(text: object) -> str:
    """Text of the service, prepared for our sentence."""
    line = " ".join(str(text).split())
    printable = "".join(each if each.isprintable() else "?" for each in line)
    if len(printable) > QUOTE_LENGTH_MAX:
        printable = printable[:QUOTE_LENGTH_MAX] + "…"
    return printable


def refusal(
    error: Error, *, path: str, otherwise: type[ServiceError] = ServiceInternalError
) -> ServiceError:
    """The error for a condition that the service returned."""
    kind = CONDITIONS.get(str(error.condition), otherwise)
    reason = quote(error.description or error.condition)
    sentence = f"The service refused an operation on {path!r}: {reason}"
    return kind(sentence, path=path, condition=str(error.condition))


def status_refusal(status: int, condition: str, text: object, *, path: str) -> ServiceError:
    """The error for the response of a management node."""
    kind = CONDITIONS.get(condition) or STATUS_CODES.get(status, ServiceInternalError)
    sentence = f"The service refused a request to {path!r} (status {status}): {quote(text)}"
    return kind(sentence, path=path, condition=condition)


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """Why a link, or the whole connection, is gone."""

    kind: type[ServiceError]
    sentence: str
    condition: str = ""
    hint: str = ""
    is_final: bool = False
    """Our own side closed it: a retry is useless."""
    cause: BaseException | None = None

    def error(self, path: str, *, was_sent: bool) -> ServiceError:
        """The error of one call; ``was_sent``: its bytes were sent."""
        made = self.kind(self.sentence, path=path, condition=self.condition, hint=self.hint)
        made.is_ambiguous = was_sent and made.is_ambiguous
        made.__cause__ = self.cause
        return made.mark_final() if self.is_final else made


def detach_loss(error: Error | None, path: str, *, was_open: bool) -> ConnectionLoss:
    """The service detached a link, or refused to attach it.

    A link that was open was authorized: whether it still is, the next link shows with a new token.
    """
    if error is None:
        return ConnectionLoss(LinkDetached, f"The service detached the link to {path!r}")
    condition = str(error.condition)
    kind = CONDITIONS.get(condition, LinkDetached)
    if was_open and kind is AccessRefused:
        kind = LinkDetached
    reason = quote(error.description or condition)
    return ConnectionLoss(kind, f"The service detached the link to {path!r}: {reason}", condition)


def closed_loss(what: str) -> ConnectionLoss:
    """The loss for calls that wait when our own side closes, or come after that."""
    return ConnectionLoss(CommunicationError, f"{what} is closed", is_final=True)

"""What the service says no with, as errors (which condition means what:
drivers/error_conditions.py).

Rule 1: a Loss is why a link is gone. It makes an error of its own for every call that waited,
        because an error belongs to one call (it turns from transient to final there).
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
"""For answers of a node that give no condition."""

# Errors about one message: when a link dies of one, it does not say which of many it was.
ABOUT_ONE_MESSAGE: Final = (MessageTooLarge, MessageRefused)

QUOTE_LENGTH_MAX: Final = 300


def quoted(text: object) -> str:
    """Somebody else's words, fit for our sentence."""
    line = " ".join(str(text).split())
    printable = "".join(each if each.isprintable() else "?" for each in line)
    if len(printable) > QUOTE_LENGTH_MAX:
        printable = printable[:QUOTE_LENGTH_MAX] + "…"
    return printable


def refusal(
    error: Error, *, path: str, otherwise: type[ServiceError] = ServiceInternalError
) -> ServiceError:
    """The error for a condition that the service gave."""
    kind = CONDITIONS.get(str(error.condition), otherwise)
    said = quoted(error.description or error.condition)
    return kind(f"{path!r} answered: {said}", path=path, condition=str(error.condition))


def status_refusal(status: int, condition: str, text: object, *, path: str) -> ServiceError:
    """The error for the answer of a management node."""
    kind = CONDITIONS.get(condition) or STATUS_CODES.get(status, ServiceInternalError)
    return kind(f"{path!r} answered {status}: {quoted(text)}", path=path, condition=condition)


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """Why a link, or the whole connection, is gone."""

    kind: type[ServiceError]
    sentence: str
    condition: str = ""
    hint: str = ""
    is_final: bool = False
    """Our own side closed it: trying again makes no sense."""
    cause: BaseException | None = None

    def error(self, path: str, *, was_sent: bool) -> ServiceError:
        """The error of one call; ``was_sent`` says whether its bytes had left."""
        made = self.kind(self.sentence, path=path, condition=self.condition, hint=self.hint)
        made.is_ambiguous = was_sent and made.is_ambiguous
        made.__cause__ = self.cause
        return made.mark_final() if self.is_final else made


def detached(error: Error | None, path: str, *, was_open: bool) -> ConnectionLoss:
    """The service took a link away, or did not open it.

    One that was open had the right to be: whether we still have it is told by the next link, with
    a new token.
    """
    if error is None:
        return ConnectionLoss(LinkDetached, f"the service detached the link to {path!r}")
    condition = str(error.condition)
    kind = CONDITIONS.get(condition, LinkDetached)
    if was_open and kind is AccessRefused:
        kind = LinkDetached
    said = quoted(error.description or condition)
    return ConnectionLoss(kind, f"the service detached the link to {path!r}: {said}", condition)


def closed_by_us(what: str) -> ConnectionLoss:
    """A call that was waiting when its own side closed, or came after that."""
    return ConnectionLoss(CommunicationError, f"{what} is closed", is_final=True)

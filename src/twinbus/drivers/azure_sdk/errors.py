"""The SDK's errors as ours: one table, by the AMQP condition.

Rule 1: the original is the cause of our error, and keeps the service's own words. Our sentence has
        none of them: text that a service echoes stays out of our logs.
Rule 2: a condition decides; the class of the SDK's error only where it has none, or an artificial
        one.
Rule 3: every failure to authenticate is AuthenticationFailed, whatever the SDK calls it: with a
        custom endpoint it calls it a connection error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AMQPConnectionError, AMQPException
from azure.servicebus._pyamqp.error import AuthenticationException as CbsFailure

from twinbus.drivers.error_conditions import CONDITIONS as WIRE_CONDITIONS
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    MessageLockLost,
    MessageNotFound,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    SessionCannotBeLocked,
    SessionLockLost,
)

__all__ = ["CONDITIONS", "closed_error", "condition_of", "translate_error"]

# The SDK's own, beside those of the wire.
CONDITIONS: Final[Mapping[str, type[ServiceError]]] = {
    **WIRE_CONDITIONS,
    # A link that was lost while a send was pending on it.
    "amqp:unknown-error": LinkDetached,
    "amqp:socket-error": CommunicationError,
}

# For errors without a condition, or with the one that the SDK gives to its own ("client-error").
CLASSES: Final[tuple[tuple[type[BaseException], type[ServiceError]], ...]] = (
    (CbsFailure, AuthenticationFailed),
    (ClientAuthenticationError, AuthenticationFailed),
    (sdk.ServiceBusAuthenticationError, AuthenticationFailed),
    (sdk.ServiceBusAuthorizationError, AccessRefused),
    (sdk.OperationTimeoutError, OperationTimeout),
    (sdk.MessageSizeExceededError, MessageTooLarge),
    (sdk.MessageLockLostError, MessageLockLost),
    (sdk.SessionLockLostError, SessionLockLost),
    (sdk.SessionCannotBeLockedError, SessionCannotBeLocked),
    (sdk.MessageNotFoundError, MessageNotFound),
    (sdk.MessagingEntityNotFoundError, EntityNotFound),
    (sdk.MessagingEntityDisabledError, EntityDisabled),
    (sdk.ServiceBusQuotaExceededError, QuotaExceeded),
    (sdk.ServiceBusServerBusyError, ServerBusy),
    (sdk.ServiceBusConnectionError, CommunicationError),
    (sdk.ServiceBusCommunicationError, CommunicationError),
    (TimeoutError, OperationTimeout),
    (AMQPConnectionError, CommunicationError),
    (OSError, CommunicationError),
    # Arguments that the SDK checks before it uses the network.
    (sdk.MessageAlreadySettled, MessageLockLost),
)

# A detach for one of these reasons is reported as the reason, not as a lost link.
_SPECIFIC_DETACHES: Final = frozenset({EntityNotFound, AccessRefused, EntityDisabled})

_HINTS: Final[Mapping[type[ServiceError], str]] = {
    AuthenticationFailed: "Check the key or the credential, and the clock of this machine",
    AccessRefused: "Give the access rule or the identity the required claim",
    EntityNotFound: "Check the name of the entity, or create it",
    EntityDisabled: "Set the status of the entity to Active",
    QuotaExceeded: "Receive messages from the entity, or increase its maximum size",
    MessageTooLarge: "Reduce the message size",
    ServerBusy: "Try again in 10 seconds",
}


def closed_error(what: str, path: str = "") -> ServiceError:
    """The error for using something that was closed here: it is final, and not ambiguous, because
    nothing was sent."""
    error = CommunicationError(
        f"{what} is closed", path=path, hint="Create a new one", was_sent=False
    )
    return error.mark_final()


def condition_of(error: object) -> str:
    """The AMQP condition of an error of the SDK; empty if it has none."""
    if isinstance(error, sdk.OperationTimeoutError) and error.__cause__ is not None:
        # The SDK wraps it in a new one without the condition.
        error = error.__cause__
    condition = getattr(error, "_condition", None) or getattr(error, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode("ascii", "replace") if isinstance(condition, bytes) else condition or ""


def translate_error(
    error: BaseException,
    *,
    doing: str,
    path: str,
    was_sent: bool = False,
    link_error: BaseException | None = None,
) -> ServiceError:
    """Our error for one of the SDK: ``raise translate_error(error, ...) from error``.

    ``link_error`` is the service's reason for detaching the link, which the SDK does not keep.
    """
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, ServiceError):
        return type(inner)(inner.sentence, path=path, hint=inner.hint)
    condition = condition_of(error)
    kind = _kind(error, inner, condition)
    if kind is LinkDetached and CONDITIONS.get(condition_of(link_error)) in _SPECIFIC_DETACHES:
        condition = condition_of(link_error)
        kind = CONDITIONS[condition]
    reason = condition or type(inner or error).__name__
    facts: dict[str, Any] = {"path": path, "condition": condition, "hint": _HINTS.get(kind, "")}
    if kind is CommunicationError:
        facts["was_sent"] = was_sent
    return kind(f"{doing} {path!r} failed: {reason}", **facts)


def _kind(error: BaseException, inner: BaseException | None, condition: str) -> type[ServiceError]:
    if isinstance(inner, CbsFailure):
        return AuthenticationFailed
    if isinstance(error, AMQPConnectionError) or isinstance(inner, AMQPConnectionError):
        # "Not found" for a whole connection does not mean that the entity does not exist.
        known = CONDITIONS.get(condition)
        return known if known is LinkDetached else CommunicationError
    if condition in CONDITIONS:
        return CONDITIONS[condition]
    for cause in (error, inner):
        for cls, kind in CLASSES:
            if isinstance(cause, cls):
                return kind
    if isinstance(error, sdk.ServiceBusError) and condition:
        return ServiceInternalError
    if isinstance(error, AMQPException):
        return ServiceInternalError
    # "Handler failed": the peer sent something invalid, or the SDK itself failed.
    return CommunicationError if isinstance(error, sdk.ServiceBusError) else MessageRefused

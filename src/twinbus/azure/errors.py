"""Errors as classes of the SDK, so that the ``except`` clauses of an application keep working.

Rule 1: an error of the SDK is raised again unchanged: a paired send to a healthy entity fails as
        an unpaired one would (P0).
Rule 2: an error that only a pair can cause becomes the nearest class of the SDK, with ours as the
        cause. So does the error with which the service detached a link: the SDK reports it as
        unknown, and gets it only from a second attempt.
Rule 3: arguments that no sender accepts (a reserved property name) stay ValueErrors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn

from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.drivers.azure_sdk.errors import condition_of
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    BacklogExhausted,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    FactoryClosed,
    FactoryFaulted,
    LinkDetached,
    MessageNotFound,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    TwinbusError,
)

CLASSES: Final[Mapping[type[TwinbusError], type[ServiceBusError]]] = {
    OperationTimeout: OperationTimeoutError,
    CommunicationError: ServiceBusConnectionError,
    LinkDetached: ServiceBusConnectionError,
    BacklogExhausted: ServiceBusConnectionError,
    FactoryClosed: ServiceBusConnectionError,
    FactoryFaulted: ServiceBusConnectionError,
    ServerBusy: ServiceBusServerBusyError,
    AuthenticationFailed: ServiceBusAuthenticationError,
    AccessRefused: ServiceBusAuthorizationError,
    EntityNotFound: MessagingEntityNotFoundError,
    EntityDisabled: MessagingEntityDisabledError,
    QuotaExceeded: ServiceBusQuotaExceededError,
    MessageTooLarge: MessageSizeExceededError,
    MessageNotFound: MessageNotFoundError,
}


@contextmanager
def sdk_errors() -> Iterator[None]:
    """Raise errors of a pair as errors of the SDK."""
    try:
        yield
    except TwinbusError as error:
        raise_sdk_error(error)


def raise_sdk_error(error: TwinbusError) -> NoReturn:
    """The same for one error, in its ``except`` clause."""
    if isinstance(error, ValueError):
        raise error
    original = error.__cause__
    if isinstance(original, ServiceBusError) and not _is_more_specific(error, original):
        # Remove it from ours: the chain of causes would be a circle.
        error.__cause__ = error.__context__ = None
        raise original from original.__cause__
    raise to_sdk_error(error) from error


def _is_more_specific(error: TwinbusError, original: ServiceBusError) -> bool:
    is_loss = isinstance(error, CommunicationError | LinkDetached)
    return not is_loss and condition_of(original) == "amqp:unknown-error"


def to_sdk_error(error: TwinbusError) -> ServiceBusError:
    """The nearest error class of the SDK."""
    for kind in type(error).__mro__:
        if kind in CLASSES:
            return CLASSES[kind](message=str(error))
    return ServiceBusError(message=str(error))

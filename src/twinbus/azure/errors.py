"""Errors in the words of the SDK, so that an application's ``except`` clauses go on working.

Rule 1: what the SDK raised is raised again as it was: a paired send of a healthy entity fails as
        an unpaired one would (P0).
Rule 2: what only a pair can say becomes the nearest class of the SDK, with ours as the cause. So
        does what the service said when it took a link away: the SDK calls that unknown, and learns
        it from a second attempt.
Rule 3: arguments that nobody could send (a reserved property name) stay ValueErrors.
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
def in_words_of_the_sdk() -> Iterator[None]:
    """Translate what a pair raises."""
    try:
        yield
    except TwinbusError as error:
        raise_in_words_of_the_sdk(error)


def raise_in_words_of_the_sdk(error: TwinbusError) -> NoReturn:
    """The same for one error, while it is handled."""
    if isinstance(error, ValueError):
        raise error
    original = error.__cause__
    if isinstance(original, ServiceBusError) and not _is_known_better(error, original):
        # Ours lets go of it: whoever follows causes would go round in a circle.
        error.__cause__ = error.__context__ = None
        raise original from original.__cause__
    raise translated(error) from error


def _is_known_better(error: TwinbusError, original: ServiceBusError) -> bool:
    is_loss = isinstance(error, CommunicationError | LinkDetached)
    return not is_loss and condition_of(original) == "amqp:unknown-error"


def translated(error: TwinbusError) -> ServiceBusError:
    """The nearest error that an application of the SDK expects."""
    for kind in type(error).__mro__:
        if kind in CLASSES:
            return CLASSES[kind](message=str(error))
    return ServiceBusError(message=str(error))

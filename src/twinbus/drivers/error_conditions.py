"""The error class of each AMQP condition: one table for every driver that uses AMQP."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from twinbus.amqp.errors import Condition
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

__all__ = ["CONDITIONS"]

CONDITIONS: Final[Mapping[str, type[ServiceError]]] = MappingProxyType(
    {
        Condition.INTERNAL_ERROR: ServiceInternalError,
        Condition.OPERATION_CANCELLED: ServiceInternalError,
        Condition.NOT_FOUND: EntityNotFound,
        "amqp:resource-deleted": EntityNotFound,
        Condition.ENTITY_DISABLED: EntityDisabled,
        Condition.UNAUTHORIZED_ACCESS: AccessRefused,
        Condition.AUTH_FAILED: AuthenticationFailed,
        Condition.RESOURCE_LIMIT_EXCEEDED: QuotaExceeded,
        Condition.LINK_MESSAGE_SIZE_EXCEEDED: MessageTooLarge,
        Condition.SERVER_BUSY: ServerBusy,
        Condition.TIMEOUT: OperationTimeout,
        Condition.LINK_DETACH_FORCED: LinkDetached,
        Condition.LINK_STOLEN: LinkDetached,
        Condition.LINK_TRANSFER_LIMIT_EXCEEDED: LinkDetached,
        "com.microsoft:container-close": LinkDetached,
        Condition.CONNECTION_FORCED: CommunicationError,
        Condition.FRAMING_ERROR: CommunicationError,
        Condition.MESSAGE_LOCK_LOST: MessageLockLost,
        Condition.SESSION_LOCK_LOST: SessionLockLost,
        Condition.SESSION_CANNOT_BE_LOCKED: SessionCannotBeLocked,
        Condition.MESSAGE_NOT_FOUND: MessageNotFound,
        Condition.NOT_ALLOWED: MessageRefused,
        Condition.NOT_IMPLEMENTED: MessageRefused,
        Condition.INVALID_FIELD: MessageRefused,
        Condition.DECODE_ERROR: MessageRefused,
        "amqp:precondition-failed": MessageRefused,
        Condition.ARGUMENT_ERROR: MessageRefused,
        Condition.ARGUMENT_OUT_OF_RANGE: MessageRefused,
    }
)
"""Every other condition is ServiceInternalError."""

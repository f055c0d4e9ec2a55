"""The errors of the AMQP layer, as one family.

    AmqpError                 has a condition, a sentence, and optionally an info map
    ├── DecodeError           bytes that are not a valid value
    │   ├── TooManySections   a batch of too many messages
    │   └── CostlyValue       a value with too many elements or keys
    ├── FramingError          bytes that are not a frame
    └── EncodeError           a Python value that has no AMQP type (also a ValueError)

Rule 1: decoders raise DecodeError, the frame buffer raises FramingError, encoders raise
        EncodeError, and nothing else; each has the ``condition`` that is sent to the peer.
Rule 2: a description is written for the peer: one sentence and the next step, never a
        traceback, never many of the peer's own bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Condition(StrEnum):
    """The error conditions that we send, spelled as the Azure SDK compares them."""

    DECODE_ERROR = "amqp:decode-error"
    FRAMING_ERROR = "amqp:connection:framing-error"
    CONNECTION_FORCED = "amqp:connection:forced"

    INTERNAL_ERROR = "amqp:internal-error"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"

    SESSION_HANDLE_IN_USE = "amqp:session:handle-in-use"
    SESSION_UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    SESSION_WINDOW_VIOLATION = "amqp:session:window-violation"

    LINK_DETACH_FORCED = "amqp:link:detach-forced"
    LINK_MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    LINK_STOLEN = "amqp:link:stolen"
    LINK_TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
    AUTH_FAILED = "com.microsoft:auth-failed"
    DEAD_LETTER = "com.microsoft:dead-letter"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    OPERATION_CANCELLED = "com.microsoft:operation-cancelled"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    TIMEOUT = "com.microsoft:timeout"


class AmqpError(Exception):
    """An error that is sent to the peer: ``condition`` and ``description`` of its error field."""

    def __init__(
        self, condition: str, description: str, info: dict[Any, Any] | None = None
    ) -> None:
        self.condition, self.description, self.info = str(condition), description, info
        super().__init__(condition, description, info)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class DecodeError(AmqpError):
    """Bytes that break the AMQP 1.0 type system, or a limit that guards the decoder."""

    def __init__(self, description: str, info: dict[Any, Any] | None = None) -> None:
        super().__init__(Condition.DECODE_ERROR, description, info)


class TooManySections(DecodeError):
    """A body, or a batch, of more sections than a receiver can read in reasonable time."""

    def __init__(self, count_max: int) -> None:
        super().__init__(
            f"A batch may have {count_max} messages, and the body of a message as many sections. "
            "Send several smaller ones."
        )
        # The Azure SDK raises an error for this condition that means that the message is too large.
        self.condition = str(Condition.LINK_MESSAGE_SIZE_EXCEEDED)


class CostlyValue(DecodeError):
    """Valid bytes with so many elements or keys that building them would cost too much."""


class FramingError(AmqpError):
    """Bytes that cannot be split into frames; the connection has to be closed."""

    def __init__(self, description: str, info: dict[Any, Any] | None = None) -> None:
        super().__init__(Condition.FRAMING_ERROR, description, info)


class EncodeError(AmqpError, ValueError):
    """A value that has no AMQP type: an error of the caller, never of the peer."""

    def __init__(self, description: str, info: dict[Any, Any] | None = None) -> None:
        super().__init__(Condition.INTERNAL_ERROR, description, info)

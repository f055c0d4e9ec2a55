"""The fields of a backlog message: reserved properties, hops, time to live, reasons for rejection.

    x-ms-path                       string     the destination of the message
    x-ms-sessionid                  string     group-id of the properties
    x-ms-timetolive                 long, ms   ttl of the header
    x-ms-scheduledenqueuetimeutc    timestamp  annotation x-opt-scheduled-enqueue-time
    x-twinbus-pair                  string     which pair the message belongs to (P21)

The .NET original wrote TimeSpan and DateTimeOffset, which are described longs of 100 ns ticks in
AMQP; both are read here and never written.

Hops: how often a broker forwarded a message into a backlog queue, so that loops of pairs end (Y6).

    a sender  --> backlog queue                  not counted: restored byte for byte
    an entity --forward_to--> backlog queue      x-opt-twinbus-hops, one more each time

A restored message has no destination, so it cannot loop by itself. But a rule's action on a
primary can write ``x-ms-path`` again, and its subscription can forward to a backlog queue of the
opposite pair: then two syphons would move it for ever.

Rule 1: a value is valid or the message is dead-lettered: nothing is corrected or guessed.
Rule 2: an error names the property and the value's type, and never repeats a long value.
Rule 3: only forwarding is counted. Brokers set x-opt-enqueue-sequence-number for it, and ignore
        the value of a sender. All other messages are restored unchanged (P12), and no sender has
        to leave room for a counter (P13).
Rule 4: the counter is an annotation. Brokers pass it on, rule actions cannot change it, and it
        begins again when an application sends a received message: a message that is diverted many
        times in its life is never stopped by an old count.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, Final

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import (
    Byte,
    Described,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.common.entity_path import ENTITY_PATH_LENGTH_MAX
from twinbus.encoding.splicing import pairs_of, value_at
from twinbus.errors import EnvelopeError

__all__ = [
    "HOPS",
    "HOPS_ANNOTATION",
    "HOPS_MAX",
    "OWNER",
    "PATH",
    "RESERVED_NAMES",
    "SCHEDULED",
    "SCHEDULED_ANNOTATION",
    "SESSION_ID",
    "SESSION_ID_CHARACTERS_MAX",
    "TIME_TO_LIVE",
    "TTL_MS_MAX",
    "WALL_MS_MAX",
    "WALL_MS_MIN",
    "Reason",
    "TtlPolicy",
    "hops_pair",
    "malformed",
    "misspelt",
    "no_destination",
    "read_hops",
    "read_owner",
    "read_path",
    "read_scheduled_ms",
    "read_session_id",
    "read_ttl_ms",
]

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"
OWNER: Final = "x-twinbus-pair"
HOPS: Final = "x-opt-twinbus-hops"
"""An annotation, not a property of the envelope."""

RESERVED_NAMES: Final = frozenset((PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, OWNER))
SCHEDULED_ANNOTATION: Final = b"x-opt-scheduled-enqueue-time"

SESSION_ID_CHARACTERS_MAX: Final = 128
# TimeSpan.MaxValue in whole milliseconds, 29,000 years: the maximum of every SDK.
TTL_MS_MAX: Final = 922_337_203_685_477
# The years 1 to 9999, the range of every SDK.
WALL_MS_MIN: Final = -62_135_596_800_000
WALL_MS_MAX: Final = 253_402_300_799_999

_TICKS_PER_MS: Final = 10_000
_EPOCH_TICKS: Final = 621_355_968_000_000_000
"""The Unix epoch, counted from the year 1 as .NET does."""
_TIMESPAN: Final = "com.microsoft:timespan"
_DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
_WHOLE_NUMBERS: Final = frozenset((Long, Int, Short, Byte, ULong, UInt, UShort, UByte))


class Reason(StrEnum):
    """Why a backlog message is dead-lettered: stable names, for people and programs."""

    NO_DESTINATION = "no-destination"
    DESTINATION_NOT_ALLOWED = "destination-not-allowed"
    INVALID_PROPERTY_TYPE = "invalid-property-type"
    INVALID_PROPERTY_VALUE = "invalid-property-value"
    MALFORMED_MESSAGE = "malformed-message"
    EXPIRED = "expired"
    TOO_MANY_HOPS = "too-many-hops"
    LOOKS_LIKE_A_PING = "looks-like-a-ping"


def read_path(value: Any) -> str:
    """The destination, a text of a valid length; whether it is allowed is checked elsewhere."""
    if value is None or value == "":
        raise no_destination()
    _check_text(PATH, value)
    if len(value) > ENTITY_PATH_LENGTH_MAX:
        raise _wrong_value(
            PATH, f"must have at most {ENTITY_PATH_LENGTH_MAX} characters, got {len(value)}"
        )
    path: str = value
    return path


def read_owner(value: Any) -> str:
    """The mark of a pair; empty: none."""
    _check_text(OWNER, value)
    owner: str = value
    return owner


def read_session_id(value: Any) -> str:
    _check_text(SESSION_ID, value)
    if len(value) > SESSION_ID_CHARACTERS_MAX:
        raise _wrong_value(
            SESSION_ID,
            f"must have at most {SESSION_ID_CHARACTERS_MAX} characters, got {len(value)}",
        )
    session_id: str = value
    return session_id


def read_ttl_ms(value: Any) -> int:
    """The time to live in milliseconds, rounded up."""
    if isinstance(value, Described) and value.descriptor == _TIMESPAN:
        _check_ticks(TIME_TO_LIVE, value)
        ticks = int(value.value)
        ttl_ms = -(-ticks // _TICKS_PER_MS) if ticks > 0 else ticks
    elif type(value) in _WHOLE_NUMBERS:
        ttl_ms = int(value)
    else:
        raise _wrong_type(TIME_TO_LIVE, "a whole number of milliseconds or a timespan", value)
    # TimeSpan.MaxValue is 0.5 ms above a whole number of milliseconds.
    if not 0 <= ttl_ms <= TTL_MS_MAX + 1:
        raise _wrong_value(TIME_TO_LIVE, f"must be from 0 to {TTL_MS_MAX} ms, got {ttl_ms} ms")
    return min(ttl_ms, TTL_MS_MAX)


def read_scheduled_ms(value: Any) -> int:
    """The scheduled enqueue time in milliseconds since the Unix epoch."""
    if isinstance(value, Described) and value.descriptor == _DATETIME_OFFSET:
        _check_ticks(SCHEDULED, value)
        at_ms = (int(value.value) - _EPOCH_TICKS) // _TICKS_PER_MS
    elif type(value) is Timestamp:
        at_ms = int(value)
    else:
        raise _wrong_type(SCHEDULED, "a timestamp", value)
    if not WALL_MS_MIN <= at_ms <= WALL_MS_MAX:
        raise _wrong_value(SCHEDULED, f"must be in the years 1 to 9999, got {at_ms} ms since 1970")
    return at_ms


def read_hops(value: Any) -> int:
    """How often the message was forwarded to a backlog queue before."""
    if type(value) not in _WHOLE_NUMBERS:
        raise _wrong_type(HOPS, "a whole number", value)
    if value < 0:
        raise _wrong_value(HOPS, f"must be 0 or more, got {value}")
    return int(value)


def no_destination() -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.NO_DESTINATION,
        description=f"The message has no {PATH}: another application uses this backlog queue.",
    )


def malformed(detail: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.MALFORMED_MESSAGE, description=f"The message cannot be decoded. {detail}"
    )


def misspelt(name: bytes) -> EnvelopeError:
    """For a reserved name in upper case: it is the same name for readers that ignore case."""
    return EnvelopeError(
        reason=Reason.INVALID_PROPERTY_VALUE,
        description=f"The property {name.decode('ascii', 'replace')!a} is a reserved name, which "
        "must be in lower case.",
    )


def _check_text(name: str, value: Any) -> None:
    if type(value) is not str:
        raise _wrong_type(name, "a string", value)


def _check_ticks(name: str, value: Described) -> None:
    if type(value.value) is not Long:
        raise _wrong_type(name, "a described long", value.value)


def _wrong_type(name: str, expected: str, value: Any) -> EnvelopeError:
    found = type(value).__name__
    if isinstance(value, Described):
        kind = value.descriptor if isinstance(value.descriptor, Symbol) else "value"
        found = f"a described {kind[:60]!a}"
    return EnvelopeError(
        reason=Reason.INVALID_PROPERTY_TYPE,
        description=f"The property {name} must be {expected}, got {found}.",
    )


def _wrong_value(name: str, fault: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.INVALID_PROPERTY_VALUE, description=f"The property {name} {fault}."
    )


# More than any intended chain of pairs.
HOPS_MAX: Final = 8

HOPS_ANNOTATION: Final = HOPS.encode()
_FORWARDED: Final = b"x-opt-enqueue-sequence-number"
_HOPS_KEY: Final = encode_value(Symbol(HOPS))


def hops_pair(buf: bytes, start: int, stop: int) -> bytes:
    """The counter for a message with the annotations in ``buf[start:stop]``; mostly nothing.

    Raises EnvelopeError when it was forwarded too often.
    """
    if _FORWARDED not in buf[start:stop]:
        return b""
    values = {
        key: value_at(buf, first, after)
        for key, _, first, after in pairs_of(buf, start, stop)
        if key in (_FORWARDED, HOPS_ANNOTATION)
    }
    if not values.get(_FORWARDED):
        return b""
    hops = read_hops(values[HOPS_ANNOTATION]) if HOPS_ANNOTATION in values else 0
    if hops >= HOPS_MAX:
        raise EnvelopeError(
            reason=Reason.TOO_MANY_HOPS,
            description=f"The message was forwarded to backlog queues {hops} times: the pairs form "
            "a loop.",
        )
    return _HOPS_KEY + encode_value(UByte(hops + 1))


class TtlPolicy(Enum):
    """How the time in the backlog counts for the time to live of a message (Y8)."""

    RESTART = "restart"
    """It does not count: the message gets its whole time to live again, as in the original."""
    ELAPSED = "elapsed"
    """It counts. An expired message is moved with one millisecond left, so that the rules of its
    destination for expired messages apply."""
    DEAD_LETTER = "dead-letter"
    """It counts, and an expired message is moved to the dead-letter queue of the backlog queue."""

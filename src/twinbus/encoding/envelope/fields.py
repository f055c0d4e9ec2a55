"""The fields of a backlog message: ``x-ms-*``, hops, time to live, reasons for rejection.

The values behind the reserved names of a backlog message: how they are written and read.

    x-ms-path                       string     where the message was meant to go
    x-ms-sessionid                  string     group-id of the properties
    x-ms-timetolive                 long, ms   ttl of the header
    x-ms-scheduledenqueuetimeutc    timestamp  annotation x-opt-scheduled-enqueue-time
    x-twinbus-pair                  string     which pair the message belongs to (P21)

The .NET original wrote TimeSpan and DateTimeOffset, which AMQP carries as described longs of
100 ns ticks; both are understood here and never written.

How often a broker forwarded a message into a backlog queue: rings of pairs come to an end (Y6).

    a sender  --> backlog queue                  not counted: home again byte for byte
    an entity --forward_to--> backlog queue      x-opt-twinbus-hops, one more each time

A restored message has no destination, so it cannot go round by itself. But a rule's action on a
primary can write ``x-ms-path`` again, and its subscription forward to a backlog queue of the
opposite pair: then two syphons would carry it round for ever.

What becomes of a message's time to live in the backlog.

Rule 1: a value is right or the message is dead-lettered: nothing is repaired or guessed.
Rule 2: a refusal names the property and what it found, and never repeats a value at length.
Rule 3: only what was forwarded is counted. Brokers tell that by x-opt-enqueue-sequence-number, and
        take the word of nobody else for it. Everything else is brought home unchanged (P12), and
        no sender has to leave room for a counter (P13).
Rule 4: the counter is an annotation. Brokers hand it on, rule actions cannot change it, and
        applications that send a received message anew begin anew: a message that honestly makes
        many detours in its life is never stopped by an old count.
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
"""An annotation, not one of the aliases: see fields.py."""

RESERVED_NAMES: Final = frozenset((PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, OWNER))
SCHEDULED_ANNOTATION: Final = b"x-opt-scheduled-enqueue-time"

SESSION_ID_CHARACTERS_MAX: Final = 128
# TimeSpan.MaxValue in whole milliseconds: what every SDK can say, and 29,000 years.
TTL_MS_MAX: Final = 922_337_203_685_477
# The years 1 to 9999, which is what every SDK can show as a date.
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
    """The destination, a text of a possible length; whether it is allowed is not asked here."""
    if value is None or value == "":
        raise no_destination()
    _check_text(PATH, value)
    if len(value) > ENTITY_PATH_LENGTH_MAX:
        raise _wrong_value(PATH, f"has {len(value)} characters, more than {ENTITY_PATH_LENGTH_MAX}")
    path: str = value
    return path


def read_owner(value: Any) -> str:
    """The mark of a pair; empty: of none."""
    _check_text(OWNER, value)
    owner: str = value
    return owner


def read_session_id(value: Any) -> str:
    _check_text(SESSION_ID, value)
    if len(value) > SESSION_ID_CHARACTERS_MAX:
        raise _wrong_value(
            SESSION_ID, f"has {len(value)} characters, more than {SESSION_ID_CHARACTERS_MAX}"
        )
    session_id: str = value
    return session_id


def read_ttl_ms(value: Any) -> int:
    """The time to live in milliseconds; a part of one counts as a whole one."""
    if isinstance(value, Described) and value.descriptor == _TIMESPAN:
        _check_ticks(TIME_TO_LIVE, value)
        ticks = int(value.value)
        ttl_ms = -(-ticks // _TICKS_PER_MS) if ticks > 0 else ticks
    elif type(value) in _WHOLE_NUMBERS:
        ttl_ms = int(value)
    else:
        raise _wrong_type(TIME_TO_LIVE, "a whole number of milliseconds or a timespan", value)
    # TimeSpan.MaxValue has 0.5 ms more than whole milliseconds can say.
    if not 0 <= ttl_ms <= TTL_MS_MAX + 1:
        raise _wrong_value(TIME_TO_LIVE, f"is {ttl_ms} ms, which no message can live")
    return min(ttl_ms, TTL_MS_MAX)


def read_scheduled_ms(value: Any) -> int:
    """The moment in milliseconds since the Unix epoch."""
    if isinstance(value, Described) and value.descriptor == _DATETIME_OFFSET:
        _check_ticks(SCHEDULED, value)
        at_ms = (int(value.value) - _EPOCH_TICKS) // _TICKS_PER_MS
    elif type(value) is Timestamp:
        at_ms = int(value)
    else:
        raise _wrong_type(SCHEDULED, "a timestamp", value)
    if not WALL_MS_MIN <= at_ms <= WALL_MS_MAX:
        raise _wrong_value(SCHEDULED, f"is {at_ms} ms, outside the years 1 to 9999")
    return at_ms


def read_hops(value: Any) -> int:
    """How often the message was forwarded to a backlog queue before."""
    if type(value) not in _WHOLE_NUMBERS:
        raise _wrong_type(HOPS, "a whole number", value)
    if value < 0:
        raise _wrong_value(HOPS, "is below zero")
    return int(value)


def no_destination() -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.NO_DESTINATION,
        description=f"The message has no {PATH}: somebody else is using this backlog queue.",
    )


def malformed(detail: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.MALFORMED_MESSAGE, description=f"The message cannot be read: {detail}"
    )


def misspelt(name: bytes) -> EnvelopeError:
    """For a reserved name in capitals: readers that ignore case would see it twice."""
    return EnvelopeError(
        reason=Reason.INVALID_PROPERTY_VALUE,
        description=f"The property {name.decode('ascii', 'replace')!a} is a reserved name that is "
        "not spelt as it should be.",
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
        description=f"The property {name} should be {expected} and is {found}.",
    )


def _wrong_value(name: str, fault: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.INVALID_PROPERTY_VALUE, description=f"The property {name} {fault}."
    )


# As many namespaces as nobody has paired in a ring on purpose.
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
            description=f"The message was forwarded to backlog queues {hops} times before: "
            "it goes round in a ring.",
        )
    return _HOPS_KEY + encode_value(UByte(hops + 1))


class TtlPolicy(Enum):
    """What the time in the backlog does to a message's time to live (Y8)."""

    RESTART = "restart"
    """Nothing: the message gets its whole time again, as in the original."""
    ELAPSED = "elapsed"
    """It counts. What has expired goes home with a millisecond left, so that the destination's
    own rules for expired messages apply."""
    DEAD_LETTER = "dead-letter"
    """It counts, and what has expired stays in the backlog queue's dead-letter queue."""

"""Messages of all shapes: drawn from the seed and a value, so that both ends know every field.

Rule 1: a message is a function of the plan and its value. Nobody has to remember what was sent.
Rule 2: values are drawn as they are received: a text body is bytes, a plain number is a long.
Rule 3: a print tells every field that an application can set, with the types; two messages with
        equal prints are equal. What a dead-letter queue adds is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.codec.types import (
    Byte,
    Float32,
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
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections
from twinbus.message import BrokeredMessage
from verification.fault_campaign.plan import Plan

__all__ = ["differences", "message_of", "print_of"]

FIELDS: Final = (
    "body", "message_id", "session_id", "correlation_id", "subject", "to", "reply_to",
    "reply_to_session_id", "content_type", "content_encoding", "partition_key", "priority",
    "time_to_live", "scheduled_enqueue_time_utc", "properties",
)  # fmt: skip
DEAD_LETTER_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription")
BODY_BYTES: Final = (0, 1, 50, 1_000, 4_000)
# Long enough to outlive every jump of a clock; beyond 49 days it travels as two times.
LIVES: Final = (timedelta(days=1), timedelta(days=3, milliseconds=7), timedelta(days=60))
PRINT_CHARACTERS: Final = 16
PRIORITY: Final = 4
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def message_of(plan: Plan, value: str) -> BrokeredMessage:
    """What a sender sends under a value."""
    rng = Random(f"{plan.seed} {value}")

    def sometimes(draw: Callable[[], Any], share: float = 0.3) -> Any:
        return draw() if rng.random() < share else None

    session_id = sometimes(lambda: f"session {rng.randrange(20)}")
    return BrokeredMessage(
        _body(rng, value),
        message_id=value,
        session_id=session_id,
        correlation_id=sometimes(lambda: _id(rng)),
        subject=sometimes(lambda: rng.choice(("order", "a longer subject, with ä and 漢", ""))),
        to=sometimes(lambda: f"to {rng.randrange(9)}"),
        reply_to=sometimes(lambda: f"answers/{rng.randrange(9)}"),
        reply_to_session_id=sometimes(lambda: f"answers of {rng.randrange(9)}"),
        content_type=sometimes(lambda: rng.choice(("application/json", "text/plain"))),
        content_encoding=sometimes(lambda: "gzip", 0.1),
        partition_key=session_id if session_id else sometimes(lambda: f"key {rng.randrange(9)}"),
        priority=sometimes(lambda: rng.randrange(10), 0.1),
        time_to_live=sometimes(lambda: rng.choice(LIVES)),
        scheduled_enqueue_time_utc=sometimes(lambda: _moment(plan, rng), 0.03),
        properties=_properties(rng),
    )


def _body(rng: Random, value: str) -> Any:
    content = rng.randbytes(rng.choice(BODY_BYTES))
    kind = rng.random()
    if kind < 0.85:
        return value.encode() + b" " + content
    if kind < 0.90:
        return DataSections((value.encode(), content, b""))
    if kind < 0.95:
        return AmqpValue(f"{value} as a text")
    return AmqpSequence(([Long(rng.randrange(1 << 40)), value], [True, None]))


def _id(rng: Random) -> Any:
    return rng.choice(
        ("correlated", ULong(rng.randrange(1 << 63)), UUID(int=rng.getrandbits(128)), b"\x00\xff")
    )


def _moment(plan: Plan, rng: Random) -> datetime:
    """Some time in the run, so that some of them are early and others late."""
    at_ms = int((plan.began_s + rng.uniform(0, plan.fault_s)) * 1_000)
    return _EPOCH + timedelta(milliseconds=at_ms)


def _properties(rng: Random) -> dict[str, Any]:
    """Of all types that the official SDK can read, too: a sender that uses it looks at the backlog
    now and then. It has no characters and no decimals."""
    drawn: dict[str, Any] = {
        "text": "grün",
        "empty": "",
        "long": Long(rng.randrange(-(1 << 62), 1 << 62)),
        "int": Int(-rng.randrange(1 << 31)),
        "short": Short(-5),
        "byte": Byte(-128),
        "ubyte": UByte(255),
        "ushort": UShort(65_535),
        "uint": UInt(rng.randrange(1 << 32)),
        "ulong": ULong((1 << 64) - 1),
        "double": rng.random(),
        "float": Float32(0.5),
        "is true": True,
        "is false": False,
        "bytes": rng.randbytes(5),
        "uuid": UUID(int=rng.getrandbits(128)),
        "moment": Timestamp(rng.randrange(1 << 41)),
        "symbol": Symbol("a-symbol"),
        "nothing": None,
    }
    return {name: drawn[name] for name in rng.sample(sorted(drawn), rng.randrange(5))}


# -- prints ---------------------------------------------------------------------------------------


def print_of(message: BrokeredMessage) -> str:
    """Every field in a few characters."""
    told = "\n".join(_told(message).values())
    return hashlib.sha256(told.encode()).hexdigest()[:PRINT_CHARACTERS]


def differences(expected: BrokeredMessage, found: BrokeredMessage) -> list[str]:
    """The fields that are not the same."""
    other = _told(found)
    return [name for name, text in _told(expected).items() if other[name] != text]


def _told(message: BrokeredMessage) -> dict[str, str]:
    # A service that is told no priority says the usual one of AMQP.
    priority = PRIORITY if message.priority is None else message.priority
    told = {name: _exactly(getattr(message, name)) for name in FIELDS}
    return {**told, "priority": _exactly(priority)}


def _exactly(value: Any) -> str:
    """A value with its type; a plain int is a long, as AMQP has it."""
    match value:
        case Mapping():
            own = {name: each for name, each in value.items() if name not in DEAD_LETTER_PROPERTIES}
            return str([(name, _exactly(own[name])) for name in sorted(own)])
        case DataSections() | AmqpSequence():
            return f"{type(value).__name__} {[_exactly(each) for each in value.items]}"
        case AmqpValue():
            return f"AmqpValue {_exactly(value.value)}"
        case list():
            return str([_exactly(each) for each in value])
        case Float32():
            return f"Float32 {float(value)!r}"
        case bool():
            return repr(value)
        case int():
            name = type(value).__name__
            return f"{'Long' if name == 'int' else name} {int(value)}"
        case str():
            return f"{type(value).__name__} {str(value)!r}"
        case _:
            return repr(value)

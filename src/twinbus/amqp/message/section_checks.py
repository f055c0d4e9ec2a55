"""The rules of each section of a message, checked on its bytes.

Rule 1: a check takes the position of a section's value and returns the position after it, or
        raises DecodeError; it builds nothing.
Rule 2: reading past the buffer raises IndexError, which the scan reports; reading past the section
        but inside the buffer does no harm, because the section then does not end at its stop.
Rule 3: keys are compared here, so that no receiver gets a map with a key twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.codec.composites import SPECS
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.fixed_fields import UINT
from twinbus.amqp.codec.primitives import (
    FIXED_WIDTHS,
    check_even,
    check_filled,
    check_key,
    counted8,
    counted32,
    refuse_repeated_key,
    truncated,
    unpack_u32,
)
from twinbus.amqp.codec.skip import SKIPPERS
from twinbus.amqp.errors import Condition, CostlyValue, DecodeError
from twinbus.amqp.limits import (
    ANNOTATION_ELEMENT_COST,
    NESTED_ELEMENT_COST,
    PROPERTY_ELEMENT_COST,
    Budget,
)
from twinbus.amqp.message.properties import PROPERTY_FIELD_COUNT, Properties, Span


@dataclass(frozen=True, slots=True)
class MapRules:
    """The valid keys and values of a section's map."""

    name: str
    cost: int
    """What each key and each value takes from the budget."""
    key_code: int
    """The constructor that nearly all keys have, a short string or symbol."""
    other_key_codes: bytes
    may_nest: bool
    """Whether lists, maps, arrays and described values may be among the values."""
    keys_are: str


ANNOTATIONS: Final = MapRules(
    name="annotations",
    cost=ANNOTATION_ELEMENT_COST,
    key_code=0xA3,
    other_key_codes=b"\xb3\x53\x80\x44",
    may_nest=True,
    keys_are="symbols or ulongs",
)
# Application properties have simple values only: no list, map, array or described value.
_SIMPLE_CODES: Final = frozenset(FIXED_WIDTHS) - {0x45} | set(b"\xa0\xa1\xa3\xb0\xb1\xb3")
APPLICATION_PROPERTIES: Final = MapRules(
    name="application-properties",
    cost=PROPERTY_ELEMENT_COST,
    key_code=0xA1,
    other_key_codes=b"\xb1",
    may_nest=False,
    keys_are="strings",
)

# Values that can be skipped by their constructor alone: any bytes of the width are valid.
_STEPS: Final = {
    code: 1 + width for code, width in FIXED_WIDTHS.items() if code not in (0x45, 0x56, 0x73)
}


def check_map(buf: bytes, pos: int, end: int, rules: MapRules, budget: Budget) -> int:
    """Check a map; its end. Positions only grow, so that a pair beyond the stop is detected at the
    end, if not before."""
    if buf[pos] == 0xC1:
        count, pos, stop = counted8(buf, pos + 1, end, budget)
    elif buf[pos] == 0xD1:
        count, pos, stop = counted32(buf, pos + 1, end, budget)
    else:
        raise DecodeError(f"The {rules.name} are not a map. Encode them as a map.")
    budget.items -= count * rules.cost
    if budget.items < 0:
        raise _too_many_entries(rules, count >> 1)
    budget.levels -= 1
    keys: set[bytes | tuple[bytes]] = set()
    key_code = rules.key_code
    for _ in range(count >> 1):
        if buf[pos] == key_code:
            start = pos + 2
            pos = start + buf[pos + 1]
            key = buf[start:pos]
            if not key.isascii():
                SKIPPERS[key_code](buf, start - 1, stop, budget)
            keys.add(key)
        else:
            unusual_key, pos = _unusual_key(buf, pos, stop, rules, budget)
            keys.add(unusual_key)
        code = buf[pos]
        if code in _STEPS:
            pos += _STEPS[code]
        elif code in _SIMPLE_CODES:
            pos = SKIPPERS[code](buf, pos + 1, stop, budget)
        elif rules.may_nest:
            pos = _nested(buf, pos, stop, budget)
        else:
            raise DecodeError(
                f"The {rules.name} have a list, map, array or described value. "
                "Use simple values, or put it into the body."
            )
    budget.levels += 1
    if pos != stop or 2 * len(keys) != count:
        raise _wrong_map(pos, stop, count)
    return stop


def _nested(buf: bytes, pos: int, stop: int, budget: Budget) -> int:
    """Skip a list, map, array or described value, whose elements count several times."""
    left = budget.items
    budget.items = allowed = left // NESTED_ELEMENT_COST
    pos = SKIPPERS[buf[pos]](buf, pos + 1, stop, budget)
    budget.items = left - (allowed - budget.items) * NESTED_ELEMENT_COST
    return pos


def _too_many_entries(rules: MapRules, count: int) -> DecodeError:
    error = CostlyValue(
        f"The {rules.name} with {count} entries are too many for one message. "
        "Put some of them into the body."
    )
    # The condition of Service Bus for properties that are too large.
    error.condition = str(Condition.ARGUMENT_OUT_OF_RANGE)
    return error


def _wrong_map(pos: int, stop: int, count: int) -> DecodeError:
    try:
        check_even(count)
        check_filled(pos, stop)
        refuse_repeated_key()
    except DecodeError as error:
        return error


def _unusual_key(
    buf: bytes, pos: int, stop: int, rules: MapRules, budget: Budget
) -> tuple[bytes | tuple[bytes], int]:
    """(what is different for each key, position of its value)"""
    if buf[pos] not in rules.other_key_codes:
        raise DecodeError(f"The keys of {rules.name} must be {rules.keys_are}. Use such keys.")
    check_key(buf, pos, stop, budget)
    value, after = decode_value(buf, pos, stop, budget)
    # Short keys are compared as bytes, so a long one is as well. A ulong is equal to neither, and
    # its own hash could be chosen.
    return (value.encode() if isinstance(value, str) else (value.to_bytes(8, "big"),)), after


_MESSAGE_ID_CODES: Final = b"\xa1\x98\xb1\xa0\xb0\x53\x80\x44"
_BINARY_CODES: Final = b"\xa0\xb0"
_STRING_CODES: Final = b"\xa1\xb1"
_SYMBOL_CODES: Final = b"\xa3\xb3"
_TIMESTAMP_CODES: Final = b"\x83"
_PROPERTY_CODES: Final = (
    _MESSAGE_ID_CODES,
    _BINARY_CODES,
    _STRING_CODES,
    _STRING_CODES,
    _STRING_CODES,
    _MESSAGE_ID_CODES,
    _SYMBOL_CODES,
    _SYMBOL_CODES,
    _TIMESTAMP_CODES,
    _TIMESTAMP_CODES,
    _STRING_CODES,
    UINT,
    _STRING_CODES,
)
_NULLS: Final = tuple(b"\x40" * count for count in range(PROPERTY_FIELD_COUNT + 1))


def check_properties(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    code = buf[pos]
    if code == 0xC0:
        count, pos, stop = counted8(buf, pos + 1, end, budget)
    elif code == 0xD0:
        count, pos, stop = counted32(buf, pos + 1, end, budget)
    elif code == 0x45:
        count, pos, stop = 0, pos + 1, pos + 1
    else:
        raise DecodeError("The properties section is not a list. Encode it as a list.")
    if count > PROPERTY_FIELD_COUNT:
        raise DecodeError(f"The properties have {count} fields; AMQP has {PROPERTY_FIELD_COUNT}.")
    _check_property_fields(buf, pos, stop, count, budget)
    return stop


def are_properties(buf: bytes, pos: int, stop: int, count: int) -> bool:
    """Whether ``count`` fields from ``pos`` to ``stop`` are properties; may raise as well."""
    if count > PROPERTY_FIELD_COUNT:
        return False
    _check_property_fields(buf, pos, stop, count, _NO_BUDGET)
    return True


# Properties have no lists, maps or arrays, so that nothing is ever taken from it.
_NO_BUDGET: Final = Budget()


def _check_property_fields(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> None:
    """Positions only grow, so that a field beyond the stop is detected at the end."""
    for index in range(count):
        code = buf[pos]
        if code == 0x40:
            pos += 1
            continue
        if code not in _PROPERTY_CODES[index]:
            raise _wrong_property(index)
        pos = SKIPPERS[code](buf, pos + 1, stop, budget)
        rest = count - index - 1
        if stop - pos == rest and buf.startswith(_NULLS[rest], pos):
            return  # Most messages have an id and then twelve nulls.
    check_filled(pos, stop)


def _wrong_property(index: int) -> DecodeError:
    spec = SPECS[Properties]
    name, kind = spec.field_names[index].replace("_", "-"), spec.kinds[index].label
    return DecodeError(f"The property {name} is not {kind}. Correct its type.")


def data_span(buf: bytes, pos: int, end: int) -> Span:
    """The span of the content of a data section, without its head."""
    code = buf[pos]
    if code == 0xB0 and pos + 4 < end:
        start = pos + 5
        stop = start + unpack_u32(buf, pos + 1)[0]
    elif code == 0xA0 and pos + 1 < end:
        start = pos + 2
        stop = start + buf[pos + 1]
    else:
        raise DecodeError("A data section is not a whole binary. Encode its bytes as a binary.")
    if stop > end:
        raise truncated("a data section")
    return start, stop


def check_sequence(buf: bytes, pos: int) -> None:
    if buf[pos] not in (0x45, 0xC0, 0xD0):
        raise DecodeError("An amqp-sequence section is not a list. Encode it as a list.")


_EMPTY_VALUES: Final = frozenset(
    (b"\x40", b"\xa0\x00", b"\xa1\x00", b"\xb0\x00\x00\x00\x00", b"\xb1\x00\x00\x00\x00")
)


def is_empty_value(buf: bytes, pos: int, after: int) -> bool:
    """Whether an amqp-value is null, or a string or binary without content."""
    return after - pos <= 5 and buf[pos:after] in _EMPTY_VALUES

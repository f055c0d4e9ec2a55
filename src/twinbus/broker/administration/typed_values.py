"""Values with their type: parameters of an expression, properties to compare with.

<KeyValueOfstringanyType>
    <Key>count</Key>
    <Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">2</Value>
</KeyValueOfstringanyType>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID
from xml.etree.ElementTree import Element

from twinbus.amqp.types import Int
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.values import (
    duration_us,
    flag,
    flag_text,
    whole_number,
)
from twinbus.broker.administration.vocabulary import SCHEMA, SCHEMA_PREFIX
from twinbus.broker.administration.xml_reading import children, items, text_of, type_of
from twinbus.broker.administration.xml_writing import element, escaped
from twinbus.broker.entities.filters import PropertyValue
from twinbus.errors import ConfigurationError
from twinbus.iso_duration import format_duration_us

__all__ = ["read_values", "values_text"]

PAIR: Final = "KeyValueOfstringanyType"
_MICROSECOND: Final = timedelta(microseconds=1)


def read_values(parent: Element) -> dict[str, PropertyValue]:
    """The values in a list of pairs."""
    values: dict[str, PropertyValue] = {}
    for pair in items(parent, PAIR):
        found = children(pair, ("Key", "Value"))
        if len(found) != 2:
            raise HttpError(400, f"A {PAIR} must have one Key and one Value.")
        name = text_of(found["Key"])
        if name in values:
            raise HttpError(400, f"The value {name[:60]!a} is there twice. Say it once.")
        values[name] = _read_value(found["Value"], name)
    return values


def values_text(values: Mapping[str, PropertyValue]) -> str:
    """The list of pairs."""
    return "".join(_pair_text(name, value) for name, value in values.items())


def _read_value(value: Element, name: str) -> PropertyValue:
    kind = type_of(value).lower() or "string"
    read = _READERS.get(kind)
    if read is None:
        raise HttpError(400, f"The value {name[:60]!a} must have one of the types {_KNOWN}.")
    text = text_of(value)
    try:
        return read(text if kind == "string" else text.strip(), f"The value {name[:60]!a}")
    except ConfigurationError:
        raise
    except (ArithmeticError, ValueError):
        raise HttpError(
            400, f"The value {name[:60]!a} is no {kind}. Check how it is written."
        ) from None


def _duration(text: str, name: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    return sign * duration_us(text.removeprefix("-"), name) * _MICROSECOND


def _number(text: str, _name: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _duration_text(value: timedelta) -> str:
    total_us = value // _MICROSECOND
    return ("-" if total_us < 0 else "") + format_duration_us(abs(total_us))


_READERS: Final[dict[str, Callable[[str, str], PropertyValue]]] = {
    "string": lambda text, _name: text,
    "boolean": flag,
    "int": lambda text, name: Int(whole_number(text, name)),
    "short": lambda text, name: Int(whole_number(text, name)),
    "long": whole_number,
    "double": _number,
    "float": _number,
    "decimal": _number,
    "datetime": lambda text, _name: datetime.fromisoformat(text),
    "duration": _duration,
    "guid": lambda text, _name: UUID(text),
}
_KNOWN: Final = "string, boolean, int, long, double, dateTime, duration, guid"


def _typed(value: PropertyValue) -> tuple[str, str]:
    """The type's name and the value's text."""
    match value:
        case bool():
            return "boolean", flag_text(value)
        case str():
            return "string", escaped(value)
        case Int():
            return "int", str(int(value))
        case int():
            return "long", str(value)
        case float():
            return "double", repr(value)
        case datetime():
            return "dateTime", value.isoformat()
        case timedelta():
            return "duration", _duration_text(value)
    return "guid", str(value)


def _pair_text(name: str, value: PropertyValue) -> str:
    kind, text = _typed(value)
    return element(
        PAIR,
        f"{element('Key', escaped(name))}"
        f'<Value i:type="{SCHEMA_PREFIX}:{kind}" xmlns:{SCHEMA_PREFIX}="{SCHEMA}">{text}</Value>',
    )

"""Values of AMQP as text and the name of their type, for columns that hold text only.

    null boolean string symbol char uuid        as they are; true and false
    ubyte ushort uint ulong byte short int long decimal digits
    float double                                the shortest digits for the same number
    timestamp                                   2026-11-16T09:00:00.000Z, or milliseconds
    binary                                      base64
    decimal32 decimal64 decimal128              the raw bytes in hexadecimal

Rule 1: ``value_of(*text_and_type(value))`` is the value again, its AMQP type included.
Rule 2: text that is not a value of its type is refused with the name of the property, never sent as
        another value.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from twinbus.encoding.brokered_message import moment_of, ms_of
from twinbus.errors import InvalidMessage

__all__ = ["TYPE_NAMES", "text_and_type", "value_of"]

COMPOUND: Final = "compound"
"""A list or a map, which no SDK can send: it is read, and refused when it is written."""
# The first and the last millisecond with a year of four digits.
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999


def _moment_text(ms: int) -> str:
    if not _MS_MIN <= ms <= _MS_MAX:
        return str(int(ms))
    moment = moment_of(ms)
    assert moment is not None
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _raw_text(value: Any) -> str:
    text: str = value.raw.hex()
    return text


_OUT: Final[dict[type, tuple[str, Callable[[Any], str | None]]]] = {
    type(None): ("null", lambda value: None),
    bool: ("boolean", lambda value: "true" if value else "false"),
    UByte: ("ubyte", str),
    UShort: ("ushort", str),
    UInt: ("uint", str),
    ULong: ("ulong", str),
    Byte: ("byte", str),
    Short: ("short", str),
    Int: ("int", str),
    Long: ("long", str),
    int: ("long", str),
    Float32: ("float", str),
    float: ("double", repr),
    Char: ("char", str),
    str: ("string", str),
    Symbol: ("symbol", str),
    Timestamp: ("timestamp", _moment_text),
    UUID: ("uuid", str),
    bytes: ("binary", lambda value: b64encode(value).decode()),
    Decimal32: ("decimal32", _raw_text),
    Decimal64: ("decimal64", _raw_text),
    Decimal128: ("decimal128", _raw_text),
}


def text_and_type(value: Any) -> tuple[str | None, str]:
    """A simple value as text, and the name of its AMQP type; lists and maps are only shown."""
    if type(value) is str:
        return value, "string"
    name, text_of = _OUT.get(type(value), (COMPOUND, repr))
    return text_of(value), name


# --- and back ----------------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _whole(kind: Callable[[int], Any], bits: int, *, signed: bool) -> Callable[[str], Any]:
    least = -(1 << bits - 1) if signed else 0
    most = least + (1 << bits) - 1

    def parse(text: str) -> Any:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return kind(value)

    return parse


def _char(text: str) -> Char:
    if len(text) != 1:
        raise ValueError
    return Char(text)


def _symbol(text: str) -> Symbol:
    if not text.isascii():
        raise ValueError
    return Symbol(text)


def _timestamp(text: str) -> Timestamp:
    if text.strip().lstrip("-").isdigit():
        value: Timestamp = _ms(text)
        return value
    moment = datetime.fromisoformat(text.strip())
    if moment.utcoffset() is None:  # It would be another time on another machine.
        raise ValueError
    return Timestamp(ms_of(moment))


_ms: Final = _whole(Timestamp, 64, signed=True)


def _raw(kind: Callable[[bytes], Any], size_bytes: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        raw = bytes.fromhex(text)
        if len(raw) != size_bytes:
            raise ValueError
        return kind(raw)

    return parse


_IN: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": _boolean,
    "ubyte": _whole(UByte, 8, signed=False),
    "ushort": _whole(UShort, 16, signed=False),
    "uint": _whole(UInt, 32, signed=False),
    "ulong": _whole(ULong, 64, signed=False),
    "byte": _whole(Byte, 8, signed=True),
    "short": _whole(Short, 16, signed=True),
    "int": _whole(Int, 32, signed=True),
    "long": _whole(Long, 64, signed=True),
    "float": lambda text: Float32(text),
    "double": float,
    "char": _char,
    "string": str,
    "symbol": _symbol,
    "timestamp": _timestamp,
    "uuid": UUID,
    "binary": lambda text: b64decode(text, validate=True),
    "decimal32": _raw(Decimal32, 4),
    "decimal64": _raw(Decimal64, 8),
    "decimal128": _raw(Decimal128, 16),
}

TYPE_NAMES: Final = ("null", *_IN)


def value_of(text: str | None, type_name: str | None, *, where: str) -> Any:
    """The value that the text means; ``where`` names it in an error."""
    if text is None or type_name == "null":
        return None
    if type_name is None or type_name == "string":
        return text
    parse = _IN.get(type_name)
    if parse is None:
        is_shown_only = type_name == COMPOUND
        raise InvalidMessage(
            where,
            f"has the type {type_name[:40]!a}",
            hint="Remove it: application properties of AMQP are simple values"
            if is_shown_only
            else f"Use one of {', '.join(TYPE_NAMES)}",
        )
    try:
        return parse(text)
    except (ValueError, KeyError, OverflowError):
        raise InvalidMessage(
            where,
            f"is not a value of type {type_name}",
            hint="Correct its text, or its type in propertyTypes",
        ) from None

"""The AMQP 1.0 types that Python does not have.

Most AMQP types are Python types; where one Python type stands for several AMQP types a thin
subclass stores which one it is, so that a decoded value is encoded again as the same type.

    null  boolean  string  binary  list  map  uuid        None bool str bytes list dict uuid.UUID
    long  double                                          int float (also: a plain int is a long)
    ubyte ushort uint ulong byte short int long           UByte ... Long, subclasses of int
    timestamp  float  char  symbol                        Timestamp Float32 Char Symbol
    decimal32 decimal64 decimal128                        the raw bytes, in a wrapper
    described value, array                                Described, Array

Rule 1: a subclass equals its plain Python value (``Symbol("a") == "a"``), so lookups work
        with both; check the type where the AMQP type matters.
Rule 2: creating a value checks nothing. The decoder creates valid values only, and the encoder
        checks ranges, so that values are checked once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


class _TypedInt(int):
    """An int whose repr shows its AMQP type; str() is the number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__


class UByte(_TypedInt):
    """8 bits, unsigned."""

    __slots__ = ()


class UShort(_TypedInt):
    """16 bits, unsigned."""

    __slots__ = ()


class UInt(_TypedInt):
    """32 bits, unsigned."""

    __slots__ = ()


class ULong(_TypedInt):
    """64 bits, unsigned."""

    __slots__ = ()


class Byte(_TypedInt):
    """8 bits, signed."""

    __slots__ = ()


class Short(_TypedInt):
    """16 bits, signed."""

    __slots__ = ()


class Int(_TypedInt):
    """32 bits, signed."""

    __slots__ = ()


class Long(_TypedInt):
    """64 bits, signed."""

    __slots__ = ()


class Timestamp(_TypedInt):
    """Milliseconds since the Unix epoch, 64 bits, signed."""

    __slots__ = ()


class Float32(float):
    """A float of 32 bits; a plain Python float is AMQP's double."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float32({float(self)!r})"

    __str__ = float.__repr__


class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Symbol(str):
    """A name from a constrained domain, in ASCII."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


@dataclass(frozen=True, slots=True)
class Decimal32:
    """An IEEE 754 decimal that is passed on and never calculated with (4 bytes)."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Decimal64:
    """An IEEE 754 decimal that is passed on and never calculated with (8 bytes)."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Decimal128:
    """An IEEE 754 decimal that is passed on and never calculated with (16 bytes)."""

    raw: bytes


Descriptor: TypeAlias = ULong | Symbol


@dataclass(frozen=True, slots=True)
class Described:
    """A value with the descriptor that gives it a meaning."""

    descriptor: Descriptor
    value: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type that share one constructor.

    The element constructor is kept, so that an array is encoded again byte for byte.
    """

    constructor: int | None
    """The constructor byte of the elements; None for an empty array that was sent without one."""

    items: tuple[Any, ...]

    descriptor: Descriptor | None = None
    """Set when every element is described by this descriptor."""

    @classmethod
    def of(cls, constructor: int, items: tuple[Any, ...] | list[Any]) -> Array:
        """An array that the Azure SDK can read.

        Its decoder expects no constructor in an empty array; it would read it as the next value.
        """
        return cls(constructor if items else None, tuple(items))

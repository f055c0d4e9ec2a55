"""Maps AMQP composites (described lists of named fields) to dataclasses.

A class declares its fields once, and reading, writing and checking use this declaration:

    @composite(0x1D, "amqp:error:list", "symbol! string fields")
    @dataclass(slots=True)
    class Error: ...

Rule 1: the kinds are in the order of the fields; ``!`` marks a mandatory field. A null or an
        omitted trailing field means the default of the dataclass.
Rule 2: a descriptor is compared whole. A symbol that only begins like a known one is unknown.
Rule 3: an error names the composite and the field.
Rule 4: a field is checked by its constructor before a value is built, and so are the keys of a
        map that must be symbols.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, TypeVar

from twinbus.amqp.codec.decode import KeyRefused, decode_map_items, decode_value
from twinbus.amqp.codec.encode import ENCODERS, append_counted, encode_into
from twinbus.amqp.codec.primitives import check_filled, counted8, counted32, descend, truncated
from twinbus.amqp.codec.skip import skip_descriptor
from twinbus.amqp.codec.types import Array, Symbol, UByte, UInt, ULong, UShort
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.limits import Budget

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class FieldType:
    """The values that one field may have."""

    label: str
    accepts: Callable[[Any], bool]
    encode: Callable[[bytearray, Any], None]
    codes: bytes
    """The constructors that it may begin with."""
    decode: Callable[[bytes, int, int, Budget], tuple[Any, int]] = decode_value


@dataclass(frozen=True, slots=True)
class Spec:
    """The declaration of one composite."""

    cls: type
    name: str
    """For error texts: "open", "sasl-init"."""
    head: bytes
    """Descriptor, encoded."""
    field_names: tuple[str, ...]
    kinds: tuple[FieldType, ...]
    defaults: tuple[Any, ...]
    """MISSING for a mandatory field."""


SPECS: Final[dict[type, Spec]] = {}
_SPECS_BY_DESCRIPTOR: Final[dict[int | str, Spec]] = {}


def composite(code: int, symbol: str, kinds: str) -> Callable[[type[C]], type[C]]:
    """Register a dataclass as the composite with this descriptor."""

    def register(cls: type[C]) -> type[C]:
        words = kinds.split()
        declared = fields(cls)  # type: ignore[arg-type]
        assert len(words) == len(declared), f"{cls.__name__}: one kind for each field"
        spec = Spec(
            cls=cls,
            name=symbol.split(":")[1],
            head=b"\x00\x53" + bytes((code,)),
            field_names=tuple(field.name for field in declared),
            kinds=tuple(KINDS[word.rstrip("!")] for word in words),
            defaults=tuple(
                MISSING if word.endswith("!") else field.default
                for word, field in zip(words, declared, strict=True)
            ),
        )
        SPECS[cls] = _SPECS_BY_DESCRIPTOR[code] = _SPECS_BY_DESCRIPTOR[symbol] = spec
        return cls

    return register


# --- reading -----------------------------------------------------------------------------------


def decode_composite(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
    """The composite that starts with its descriptor at ``pos``, and the position after it."""
    spec, pos = decode_descriptor(buf, pos, end, budget)
    return decode_fields(spec, buf, pos, end, budget)


def decode_descriptor(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Spec, int]:
    """The spec that a descriptor at ``pos`` names, and the position of the field list."""
    if pos >= end or buf[pos] != 0x00:
        raise DecodeError("A described list is expected here. Begin it with a descriptor.")
    skip_descriptor(buf, pos + 1, end, budget)
    descriptor, pos = decode_value(buf, pos + 1, end, budget)
    spec = _SPECS_BY_DESCRIPTOR.get(descriptor)
    if spec is None:
        shown = f"0x{descriptor:x}" if isinstance(descriptor, int) else repr(descriptor[:64])
        raise DecodeError(f"Descriptor {shown} is unknown here. Use a descriptor of AMQP 1.0.")
    return spec, pos


def decode_fields(spec: Spec, buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
    """The composite whose field list starts at ``pos``."""
    count, pos, stop = _field_list(spec, buf, pos, end, budget)
    values = list(spec.defaults)
    descend(budget)
    for index in range(count):
        if pos >= stop:
            raise truncated(f"the fields of {spec.name}")
        if buf[pos] == 0x40:
            pos += 1
            continue
        kind = spec.kinds[index]
        if buf[pos] not in kind.codes:
            raise _wrong_type(spec, index)
        value, pos = kind.decode(buf, pos, stop, budget)
        if not kind.accepts(value):
            raise _wrong_type(spec, index)
        values[index] = value
    check_filled(pos, stop)
    budget.levels += 1
    if MISSING in values:
        missing = _field(spec, values.index(MISSING))
        raise DecodeError(f"{missing} is mandatory and missing. Set it.")
    return spec.cls(*values), stop


def _field_list(spec: Spec, buf: bytes, pos: int, end: int, budget: Budget) -> tuple[int, int, int]:
    code = buf[pos] if pos < end else -1
    if code == 0xC0:
        count, pos, stop = counted8(buf, pos + 1, end, budget)
    elif code == 0xD0:
        count, pos, stop = counted32(buf, pos + 1, end, budget)
    elif code == 0x45:
        count, pos, stop = 0, pos + 1, pos + 1
    else:
        raise DecodeError(f"The {spec.name} is not a list. Encode its fields as a list.")
    if count > len(spec.kinds):
        raise DecodeError(
            f"The {spec.name} has {count} fields; AMQP has {len(spec.kinds)}. Remove the others."
        )
    return count, pos, stop


def _wrong_type(spec: Spec, index: int) -> DecodeError:
    return DecodeError(f"{_field(spec, index)} is not {spec.kinds[index].label}. Correct its type.")


def _field(spec: Spec, index: int) -> str:
    return f"{spec.name}.{spec.field_names[index].replace('_', '-')}"


# --- writing -----------------------------------------------------------------------------------


def encode_composite(out: bytearray, value: Any, *, elide_trailing_nulls: bool = False) -> None:
    """Append a composite; every field is written, unless its trailing nulls may be left out."""
    spec = SPECS[type(value)]
    body = bytearray()
    count = written = kept = 0
    for name, kind, default in zip(spec.field_names, spec.kinds, spec.defaults, strict=True):
        count += 1
        item = getattr(value, name)
        if item is None:
            if default is MISSING:
                raise EncodeError(f"{spec.name}.{name} is mandatory. Set it.")
            body.append(0x40)
            continue
        _encode_field(body, spec, name, kind, item)
        written, kept = count, len(body)
    if elide_trailing_nulls:
        count = written
        del body[kept:]
    out += spec.head
    if count:
        append_counted(out, 0xC0, count, body)
    else:
        out.append(0x45)


def _encode_field(body: bytearray, spec: Spec, name: str, kind: FieldType, item: Any) -> None:
    try:
        kind.encode(body, item)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise EncodeError(f"{spec.name}.{name} cannot be written as {kind.label}.") from error


# --- kinds -------------------------------------------------------------------------------------


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _writer(kind: type, accepted: type) -> Callable[[bytearray, Any], None]:
    """Write any Python value of ``accepted`` as the AMQP type that ``kind`` stands for."""
    encoder = ENCODERS[kind]

    def write(out: bytearray, value: Any) -> None:
        if not isinstance(value, accepted):
            raise TypeError(type(value).__name__)
        encoder(out, value, 0)

    return write


def _simple(label: str, kind: type, accepted: type, codes: bytes) -> FieldType:
    return FieldType(label, _is(kind), _writer(kind, accepted), codes)


def _mode(label: str, value_max: int) -> FieldType:
    def accepts(value: Any) -> bool:
        return type(value) is UByte and value <= value_max

    return FieldType(label, accepts, _writer(UByte, int), b"\x50")


_MAP_CODES: Final = b"\xc1\xd1"
_SYMBOL_CODES: Final = b"\xa3\xb3"
_ARRAY_CODES: Final = b"\xe0\xf0"


def _decode_fields_map(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
    """A map with symbols as keys; None for any other key, which is not built."""
    counted = counted8 if buf[pos] == 0xC1 else counted32
    count, pos, stop = counted(buf, pos + 1, end, budget)
    try:
        return decode_map_items(buf, pos, stop, count, budget, _SYMBOL_CODES), stop
    except KeyRefused:
        return None, stop  # It is not accepted, with an error that names the field.


def _encode_fields_map(out: bytearray, value: dict[Any, Any]) -> None:
    encode_into(out, {Symbol(key): item for key, item in value.items()})


def _is_symbols(value: Any) -> bool:
    if type(value) is Array:
        return value.descriptor is None and value.constructor in (0xA3, 0xB3, None)
    return type(value) is Symbol


def _encode_symbols(out: bytearray, value: Any) -> None:
    encode_into(out, Symbol(value) if isinstance(value, str) else symbol_array(value))


def symbol_array(value: Array | Iterable[str]) -> Array:
    """Several symbols as one field value."""
    if isinstance(value, Array):
        return value
    items = tuple(Symbol(item) for item in value)
    return Array.of(0xA3 if all(len(item) < 256 for item in items) else 0xB3, items)


def composite_kind(label: str, accepts: Callable[[Any], bool]) -> FieldType:
    """A field that holds another composite."""

    def encode(out: bytearray, value: Any) -> None:
        if not accepts(value):
            raise TypeError(label)
        encode_composite(out, value)

    return FieldType(label, accepts, encode, b"\x00", decode_composite)


KINDS: Final[dict[str, FieldType]] = {
    "boolean": _simple("a boolean", bool, bool, b"\x41\x42\x56"),
    "ubyte": _simple("a ubyte", UByte, int, b"\x50"),
    "ushort": _simple("a ushort", UShort, int, b"\x60"),
    "uint": _simple("a uint", UInt, int, b"\x43\x52\x70"),
    "ulong": _simple("a ulong", ULong, int, b"\x44\x53\x80"),
    "string": _simple("a string", str, str, b"\xa1\xb1"),
    "symbol": _simple("a symbol", Symbol, str, _SYMBOL_CODES),
    "binary": _simple("a binary", bytes, bytes, b"\xa0\xb0"),
    "map": _simple("a map", dict, dict, _MAP_CODES),
    "fields": FieldType(
        "a map with symbol keys",
        _is(dict),
        _encode_fields_map,
        _MAP_CODES,
        _decode_fields_map,
    ),
    "symbols": FieldType(
        "a symbol or an array of symbols",
        _is_symbols,
        _encode_symbols,
        _SYMBOL_CODES + _ARRAY_CODES,
    ),
    "snd-mode": _mode("a sender settle mode (0, 1 or 2)", 2),
    "rcv-mode": _mode("a receiver settle mode (0 or 1)", 1),
}
"""By the words that ``composite`` takes; the modules of the composites add their own."""

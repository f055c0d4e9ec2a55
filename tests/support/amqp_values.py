"""Reading single AMQP values in tests."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.codec.decode import Budget, decode_value
from twinbus.amqp.codec.types import Array
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import DEFAULT_LIMITS, AmqpLimits
from twinbus.amqp.performatives import Symbols


def decode_all(buf: bytes, limits: AmqpLimits = DEFAULT_LIMITS) -> Any:
    """The one value that ``buf`` holds; bytes after it are an error."""
    value, pos = decode_value(buf, 0, len(buf), Budget(limits))
    if pos != len(buf):
        raise DecodeError(f"{len(buf) - pos} bytes follow the value. Remove them.")
    return value


def symbols_of(value: Symbols) -> tuple[str, ...]:
    """The symbols of a field of one or many, however they were sent."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return value.items if isinstance(value, Array) else tuple(value)

"""Transfer and disposition: the two most frequent performatives.

Rule 1: the shapes that peers send in practice (a short list of small fields) are read by
        amqp/codec/fixed_fields.py and written from templates; every other shape goes to the general
        decoder.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from twinbus.amqp.codec.composites import SPECS, composite, decode_descriptor, decode_fields
from twinbus.amqp.codec.fixed_fields import (
    BINARY,
    BOOLEAN,
    NOT_PLAIN,
    STATE,
    UINT,
    decode_fixed_fields,
)
from twinbus.amqp.delivery_states import DeliveryState
from twinbus.amqp.errors import DecodeError, EncodeError
from twinbus.amqp.limits import PERFORMATIVE_COUNT_MAX, Budget

SHORT_LIST_BYTES_MAX: Final = 255


@composite(
    0x14,
    "amqp:transfer:list",
    "uint! uint binary uint boolean boolean rcv-mode delivery-state boolean boolean boolean",
)
@dataclass(slots=True)
class Transfer:
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    """None means false on the first frame of a delivery, and no change on a later one."""
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@composite(0x15, "amqp:disposition:list", "boolean! uint! uint boolean delivery-state boolean")
@dataclass(slots=True)
class Disposition:
    role: bool
    first: int
    last: int | None = None
    """None means that first is the only one."""
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


# --- reading -----------------------------------------------------------------------------------

_TRANSFER_CODES: Final = (
    UINT, UINT, BINARY, UINT, BOOLEAN, BOOLEAN, NOT_PLAIN, NOT_PLAIN, BOOLEAN, BOOLEAN, BOOLEAN
)  # fmt: skip
_TRANSFER_DEFAULTS: Final = (None, None, None, None, None, False, None, None, False, False, False)
_DISPOSITION_CODES: Final = (BOOLEAN, UINT, UINT, BOOLEAN, STATE, BOOLEAN)
_DISPOSITION_DEFAULTS: Final = (None, None, None, False, None, False)

TRANSFER_START: Final = b"\x00\x53\x14"
"""How nearly every transfer begins; a peer may encode the descriptor in other ways."""
_DISPOSITION: Final = b"\x00\x53\x15"
_TRANSFER_SHORT: Final = TRANSFER_START + b"\xc0"
_DISPOSITION_SHORT: Final = _DISPOSITION + b"\xc0"


def decode_transfer(
    buf: bytes, pos: int, end: int, budget: Budget | None = None
) -> tuple[Transfer, int]:
    """The transfer whose descriptor starts at ``pos``, and the position of its payload."""
    if buf.startswith(TRANSFER_START, pos, end):
        found = _plain_transfer(buf, pos + 3, end)
        if found is not None:
            return found
        values: list[Any] = list(_TRANSFER_DEFAULTS)
        stop = decode_fixed_fields(buf, pos + 3, end, _TRANSFER_CODES, values)
        if stop and values[0] is not None:
            return Transfer(*values), stop
    return _decode_general(Transfer, buf, pos, end, budget)


_PLAIN_START: Final = struct.Struct(">BBBBIBIBB").unpack_from
_PLAIN_START_BYTES: Final = 15
_SETTLED: Final = {b"\x42": False, b"\x41": True, b"": None}
_FORMATS: Final = {
    b"\x43": 0,
    b"\x70\x00\x00\x00\x00": 0,
    b"\x70\x80\x01\x37\x00": 0x80013700,
}
# What follows the tag: format, settled and more, then nulls, written or omitted.
_PLAIN_ENDS: Final = {
    code + flags + nulls: (number, _SETTLED[flags[:1]], 3 + 1 + len(flags) + len(nulls))
    for code, number in _FORMATS.items()
    for flags in (b"\x42\x42", b"\x41\x42", b"\x42", b"\x41", b"")
    for nulls in ((b"", b"\x40" * 5) if len(flags) == 2 else (b"",))
}


def _plain_transfer(buf: bytes, pos: int, end: int) -> tuple[Transfer, int] | None:
    """One message in one frame with numbers of fixed width, as fast clients write it."""
    if end - pos < _PLAIN_START_BYTES:
        return None
    code, size, count, handle_code, handle, id_code, delivery_id, tag_code, tag_size = _PLAIN_START(
        buf, pos
    )
    if code != 0xC0 or handle_code != 0x70 or id_code != 0x70 or tag_code != 0xA0:
        return None
    tag_end = pos + _PLAIN_START_BYTES + tag_size
    stop = pos + 2 + size
    known = _PLAIN_ENDS.get(buf[tag_end:stop])
    if known is None or stop > end:
        return None
    message_format, settled, field_count = known
    if count != field_count:
        return None
    tag = buf[pos + _PLAIN_START_BYTES : tag_end]
    return Transfer(handle, delivery_id, tag, message_format, settled), stop


def decode_disposition(
    buf: bytes, pos: int, end: int, budget: Budget | None = None
) -> tuple[Disposition, int]:
    """The disposition whose descriptor starts at ``pos``, and the position after it."""
    if buf.startswith(_DISPOSITION, pos, end):
        values: list[Any] = list(_DISPOSITION_DEFAULTS)
        stop = decode_fixed_fields(buf, pos + 3, end, _DISPOSITION_CODES, values)
        if stop and values[0] is not None and values[1] is not None:
            return Disposition(*values), stop
    return _decode_general(Disposition, buf, pos, end, budget)


def _decode_general(
    cls: type, buf: bytes, pos: int, end: int, budget: Budget | None
) -> tuple[Any, int]:
    budget = budget or Budget()
    budget.items = min(budget.items, PERFORMATIVE_COUNT_MAX)
    spec, pos = decode_descriptor(buf, pos, end, budget)
    if spec is not SPECS[cls]:
        raise DecodeError(f"A {SPECS[cls].name} is expected here, got {spec.name}.")
    return decode_fields(spec, buf, pos, end, budget)


# --- writing -----------------------------------------------------------------------------------

_TRANSFER_FIXED: Final = struct.Struct(">4sBBBIBIBB").pack
_TRANSFER_END: Final = struct.Struct(">BIBB").pack
_DISPOSITION_FIXED: Final = struct.Struct(">4sBBBBIBIB").pack
_DISPOSITION_LONG_FIXED: Final = struct.Struct(">4sIIBBIBIB").pack

_DISPOSITION_LONG: Final = b"\x00\x53\x15\xd0"
_NOT_BATCHABLE: Final = b"\x42"
_CODE_OF: Final = (0x42, 0x41)  # by boolean


def encode_transfer(
    handle: int,
    delivery_id: int,
    delivery_tag: bytes,
    message_format: int = 0,
    settled: bool = False,
    more: bool = False,
) -> bytes:
    """A transfer for one frame of a delivery; the payload follows it in the frame."""
    tag_size = len(delivery_tag)
    try:
        return (
            _TRANSFER_FIXED(
                _TRANSFER_SHORT, 20 + tag_size, 6, 0x70, handle, 0x70, delivery_id, 0xA0, tag_size
            )
            + delivery_tag
            + _TRANSFER_END(0x70, message_format, _CODE_OF[settled], _CODE_OF[more])
        )
    except struct.error as error:
        raise EncodeError(
            "A transfer has a number out of range or a tag that is too long."
        ) from error


def encode_disposition(
    role: bool, first: int, last: int, settled: bool, state_bytes: bytes
) -> bytes:
    """A disposition for the deliveries first to last, both included.

    ``state_bytes`` is one of the STATE_ constants, or comes from encode_state(). All six fields
    are written, because the Azure SDK reads them by position.
    """
    size = 14 + len(state_bytes)
    role_code, settled_code = _CODE_OF[role], _CODE_OF[settled]
    try:
        if size <= SHORT_LIST_BYTES_MAX:
            head = _DISPOSITION_FIXED(
                _DISPOSITION_SHORT, size, 6, role_code, 0x70, first, 0x70, last, settled_code
            )
        else:
            head = _DISPOSITION_LONG_FIXED(
                _DISPOSITION_LONG, size + 3, 6, role_code, 0x70, first, 0x70, last, settled_code
            )
    except struct.error as error:
        raise EncodeError("A disposition has a delivery-id out of range.") from error
    return head + state_bytes + _NOT_BATCHABLE

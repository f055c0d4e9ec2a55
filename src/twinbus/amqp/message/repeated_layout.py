"""A fast path for a sender whose messages have the same layout.

The messages of most senders differ in their id and body only. After one such message was checked,
the next is recognised by its other bytes, and only what differs is checked: the id must be ASCII
and the body must end where the message does.

    head .. 0xa1 length | id    | rest of the properties, data section .. | length | body
    equal                 ASCII   equal                                     fits

The length of a body has one byte (0xa0) or four (0xb0), as its sender chose.

Rule 1: what is accepted here would pass scan_message() as a plain message (see is_plain).
Rule 2: False means that scan_message() decides.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec.primitives import unpack_u32
from twinbus.amqp.message.sections import is_plain

_ID_AT: Final = {0xC0: 8, 0xD0: 14}
"""Where the id begins: section head, list head, constructor and length of a short string."""
_DATA_HEAD_BYTES: Final = 4
_LENGTH_BYTES: Final = {0xA0: 1, 0xB0: 4}
"""By the constructor of the data section, the last byte of its head."""


class RepeatedLayout:
    """Stores the layout of the last plain message of one sender."""

    __slots__ = (
        "_body_at",
        "_head",
        "_id_at",
        "_length_at",
        "_properties_bytes_max",
        "_reserved",
        "_tail",
        "_tail_at",
    )

    def __init__(self, properties_bytes_max: int, reserved: bytes | None = None) -> None:
        """A message whose properties contain the ``reserved`` bytes is not plain."""
        self._properties_bytes_max = properties_bytes_max
        self._reserved = reserved
        self._head = b""
        self._tail = b""
        self._id_at = self._tail_at = self._length_at = self._body_at = 0

    def accepts(self, buf: bytes, start: int, end: int) -> bool:
        """Whether the message is valid and has nothing but short properties and data."""
        body_at = start + self._body_at
        tail_at = start + self._tail_at
        if (
            self._head
            and buf.startswith(self._head, start)
            and buf.startswith(self._tail, tail_at)
            # No length is negative: a message that ends before its body does not fit.
            and int.from_bytes(buf[start + self._length_at : body_at]) == end - body_at
            and buf[start + self._id_at : tail_at].isascii()
        ):
            return True
        if not is_plain(buf, start, end, self._properties_bytes_max):
            return False
        if self._reserved is not None and self._reserved in buf[start : _data_of(buf, start)]:
            return False
        self._learn(buf, start)
        return True

    def _learn(self, buf: bytes, start: int) -> None:
        """Store the layout of a plain message whose id is a short string."""
        id_at = _ID_AT[buf[start + 3]]
        if buf[start + id_at - 2] != 0xA1:
            return
        tail_at = id_at + buf[start + id_at - 1]
        length_at = _data_of(buf, start) + _DATA_HEAD_BYTES - start
        self._head = buf[start : start + id_at]
        self._tail = buf[start + tail_at : start + length_at]
        self._id_at, self._tail_at, self._length_at = id_at, tail_at, length_at
        self._body_at = length_at + _LENGTH_BYTES[self._tail[-1]]


def _data_of(buf: bytes, start: int) -> int:
    """Where the data section of a plain message begins."""
    if buf[start + 3] == 0xC0:
        return start + 5 + buf[start + 4]
    return start + 8 + int(unpack_u32(buf, start + 4)[0])

"""Recognising the messages of a sender that sends the same kind again and again.

Most senders' messages differ in their id and body only. Once one such message was checked, the
next is recognised by its other bytes, and only what differs is looked at: the id must be ASCII
and the body must end where the message does.

    head .. 0xa1 length | id    | rest of the properties, data section .. 0xb0 | length | body
    equal                 ASCII   equal                                          fits

Rule 1: what is accepted here would pass scan_message() as a plain message (see is_plain).
Rule 2: False decides nothing.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.scan import is_plain
from twinbus.amqp.wire import unpack_u32

_ID_AT: Final = {0xC0: 8, 0xD0: 14}
"""Where the id begins: section head, list head, constructor and length of a short string."""
_DATA_HEAD: Final = b"\x00\x53\x75\xb0"


class PlainMessages:
    """Knows the last plain message of one sender."""

    __slots__ = ("_head", "_id_at", "_length_at", "_properties_bytes_max", "_tail", "_tail_at")

    def __init__(self, properties_bytes_max: int) -> None:
        self._properties_bytes_max = properties_bytes_max
        self._head = b""
        self._tail = b""
        self._id_at = self._tail_at = self._length_at = 0

    def accepts(self, buf: bytes, start: int, end: int) -> bool:
        """Whether the message is valid and has nothing but short properties and data."""
        length_at = start + self._length_at
        tail_at = start + self._tail_at
        if (
            self._head
            and end - length_at >= 4
            and buf.startswith(self._head, start)
            and buf.startswith(self._tail, tail_at)
            and unpack_u32(buf, length_at)[0] == end - length_at - 4
            and buf[start + self._id_at : tail_at].isascii()
        ):
            return True
        if not is_plain(buf, start, end, self._properties_bytes_max):
            return False
        self._learn(buf, start)
        return True

    def _learn(self, buf: bytes, start: int) -> None:
        """Take the shape of a plain message whose id is a short string and whose body is long."""
        id_at = _ID_AT[buf[start + 3]]
        if buf[start + id_at - 2] != 0xA1:
            return
        tail_at = id_at + buf[start + id_at - 1]
        body_at = _body_of(buf, start)
        if not buf.startswith(_DATA_HEAD, body_at):
            return
        self._head = buf[start : start + id_at]
        self._id_at, self._tail_at = id_at, tail_at
        self._length_at = body_at - start + len(_DATA_HEAD)
        self._tail = buf[start + tail_at : start + self._length_at]


def _body_of(buf: bytes, start: int) -> int:
    """Where the data section of a plain message begins."""
    if buf[start + 3] == 0xC0:
        return start + 5 + buf[start + 4]
    return start + 8 + int(unpack_u32(buf, start + 4)[0])

"""Splits a byte stream into AMQP frames, and encodes frames.

    0        4     5      6         8        doff*4              size
    | size   | doff | type | channel | (ext) | performative | payload |

Rule 1: the size of a frame is checked as soon as its head has arrived, before another byte of it
        is kept. 0 is too small, like any size below that of a head.
Rule 2: a frame is a window (buf, pos, end) on the received bytes; a frame that arrived whole is
        not copied.
Rule 3: the cost is proportional to the bytes, whether thousands of frames arrive in one chunk or
        one frame arrives byte by byte: pieces are joined once, when their frame is whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from twinbus.amqp.errors import EncodeError, FramingError

PROTOCOL_AMQP: Final = b"AMQP\x00\x01\x00\x00"
PROTOCOL_SASL: Final = b"AMQP\x03\x01\x00\x00"

FRAME_AMQP: Final = 0
FRAME_SASL: Final = 1

HEAD_BYTES: Final = 8
_HEAD: Final = struct.Struct(">IBBH")

HEARTBEAT: Final = _HEAD.pack(HEAD_BYTES, 2, FRAME_AMQP, 0)
"""An empty frame, which idle peers send."""


@dataclass(slots=True)
class Frame:
    """One frame. Its body is ``buf[pos:end]``; an empty body is a heartbeat."""

    type: int
    channel: int
    buf: bytes
    pos: int
    end: int

    @property
    def is_empty(self) -> bool:
        return self.pos == self.end


class FrameBuffer:
    """Received bytes, added by feed(); returns the protocol header and the frames, in order."""

    __slots__ = ("_chunk", "_need", "_pos", "_tail", "frame_size_bytes_max")

    def __init__(self, frame_size_bytes_max: int) -> None:
        self.frame_size_bytes_max = frame_size_bytes_max
        """May be changed between frames, for example once a peer has authenticated."""
        self._chunk = b""  # received bytes that are being split, from _pos on
        self._pos = 0
        self._tail = bytearray()  # what was received after _chunk
        self._need = HEAD_BYTES  # bytes from _pos on that are needed for the next result

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and not returned yet."""
        return len(self._chunk) - self._pos + len(self._tail)

    def feed(self, data: bytes) -> None:
        if self._pos == len(self._chunk) and not self._tail:
            self._chunk, self._pos = data, 0
        else:
            self._tail += data

    def clear(self) -> None:
        """Release all bytes."""
        self._chunk, self._pos, self._need = b"", 0, HEAD_BYTES
        self._tail = bytearray()

    def next_header(self) -> bytes | None:
        """The 8 bytes of a protocol header, unchecked, or None until they have arrived."""
        if not self._reach(HEAD_BYTES):
            return None
        start = self._pos
        self._pos = start + HEAD_BYTES
        return self._chunk[start : self._pos]

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until it has arrived; FramingError if it is invalid."""
        if len(self._chunk) - self._pos < self._need and not self._reach(self._need):
            if self._pos == len(self._chunk):
                # An idle connection does not keep its last bytes.
                self._chunk, self._pos = b"", 0
            return None
        start = self._pos
        size, doff, kind, channel = _HEAD.unpack_from(self._chunk, start)
        if size > self.frame_size_bytes_max or doff < 2 or doff * 4 > size or kind > FRAME_SASL:
            raise _framing_error(size, doff, kind, self.frame_size_bytes_max)
        if len(self._chunk) - start < size and not self._reach(size):
            self._need = size
            return None
        start = self._pos
        self._need = HEAD_BYTES
        self._pos = end = start + size
        return Frame(kind, channel, self._chunk, start + doff * 4, end)

    def window(self) -> tuple[bytes, int]:
        """The received bytes and the position of the next frame in them, for transfer_runs.py."""
        return self._chunk, self._pos

    def advance(self, pos: int) -> None:
        """The whole frames up to ``pos`` of window() were taken."""
        self._pos = pos
        self._need = HEAD_BYTES

    def _reach(self, count: int) -> bool:
        """Have ``count`` bytes from _pos on in _chunk; False if they have not arrived yet."""
        have = len(self._chunk) - self._pos
        if have >= count:
            return True
        if have + len(self._tail) < count:
            return False
        self._chunk = b"".join((self._chunk[self._pos :], self._tail))
        self._pos = 0
        self._tail = bytearray()
        return True


def _framing_error(size: int, doff: int, kind: int, size_max: int) -> FramingError:
    if size > size_max:
        return FramingError(f"A frame may have at most {size_max} bytes, got {size}. Split it.")
    if size < HEAD_BYTES:
        return FramingError(f"A frame has at least {HEAD_BYTES} bytes, got {size}.")
    if doff < 2 or doff * 4 > size:
        return FramingError(f"A frame of {size} bytes has its data offset at {doff * 4} bytes.")
    return FramingError(f"Frame type {kind} is neither AMQP (0) nor SASL (1).")


def encode_frame(
    channel: int, performative: bytes, payload: bytes = b"", frame_type: int = FRAME_AMQP
) -> bytes:
    """One frame. The caller has split the payload to fit the peer's max-frame-size."""
    size = HEAD_BYTES + len(performative) + len(payload)
    try:
        return _HEAD.pack(size, 2, frame_type, channel) + performative + payload
    except struct.error as error:
        raise EncodeError(f"Channel {channel} or a frame of {size} bytes is too large.") from error

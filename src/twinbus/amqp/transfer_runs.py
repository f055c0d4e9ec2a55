"""Runs of transfers: a fast path that compares the similar frames of a busy sender.

A sender that pipelines single messages writes frames that differ in four places only: the size of
the frame, the delivery id, the tag and the payload. After two such frames were decoded, the next
ones are recognised by their other bytes, at a fraction of the cost.

    size | head ... 0x70 | id | tag head | tag | tail | payload
           equal           +1   equal            equal

Rule 1: a run never raises an error. The first frame that differs in any way, or has not arrived
        whole, ends it, and is decoded like every other frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.primitives import unpack_u32
from twinbus.amqp.events import DeliveriesReceived, Event
from twinbus.amqp.frames import HEAD_BYTES, Frame, FrameBuffer
from twinbus.amqp.limits import UINT_MAX, AmqpLimits
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.transfers import Transfer

if TYPE_CHECKING:
    from twinbus.amqp.session import Session


# Frames of one run: a sixth of a millisecond, after which other connections can be served.
RUN_COUNT_MAX: Final = 64

_LIST_HEADS: Final = {0xC0: 3, 0xD0: 9}
_HANDLE_SIZES: Final = {0x43: 1, 0x52: 2, 0x70: 5}


@dataclass(slots=True)
class TransferShape:
    """Where the parts of a link's transfer frames are, and the bytes of the equal parts."""

    link: ReceiverLink
    head: bytes
    id_at: int
    tag_head: bytes
    tail: bytes
    tail_at: int
    payload_at: int
    message_format: int
    settled: bool


def read_shape(
    frame: Frame, stop: int, link: ReceiverLink, transfer: Transfer
) -> TransferShape | None:
    """The shape of a frame whose performative ends at ``stop``; None unless it is a whole message
    with a delivery id of four bytes and a short tag.
    """
    if transfer.more or transfer.aborted or transfer.state is not None or transfer.resume:
        return None
    buf, pos, end = frame.buf, frame.pos, frame.end
    at = pos + 3 + _LIST_HEADS.get(buf[pos + 3], 0)
    at += _HANDLE_SIZES.get(buf[at], 0)
    if buf[at] != 0x70 or buf[at + 5] != 0xA0:
        return None
    start = pos - HEAD_BYTES
    if start + unpack_u32(buf, start)[0] != end:
        # An extended header is between the head and the performative.
        return None
    tail_at = at + 7 + buf[at + 6]
    return TransferShape(
        link,
        buf[start + 4 : at + 1],
        at + 1 - start,
        buf[at + 5 : at + 7],
        buf[tail_at:stop],
        tail_at - start,
        stop - start,
        transfer.message_format or 0,
        bool(transfer.settled),
    )


def take_run(
    buf: bytes, pos: int, shape: TransferShape, delivery_id: int, count_max: int, size_max: int
) -> tuple[list[bytes], list[bytes], int]:
    """The payloads and tags of the frames from ``pos`` on that fit the shape, and where they end.

    Tags are returned only for links that keep them: they are lock tokens.
    """
    payloads: list[bytes] = []
    tags: list[bytes] = []
    keeps_tags = shape.link.keeps_tags
    append, startswith = payloads.append, buf.startswith
    head, tag_head, tail = shape.head, shape.tag_head, shape.tail
    id_at, tail_at, payload_at = shape.id_at, shape.tail_at, shape.payload_at
    tag_at = id_at + 4
    end = len(buf)
    while count_max and end - pos >= payload_at:
        size = unpack_u32(buf, pos)[0]
        stop = pos + size
        if (
            stop > end
            or not payload_at <= size <= size_max
            or not startswith(head, pos + 4)
            or unpack_u32(buf, pos + id_at)[0] != delivery_id
            or not startswith(tag_head, pos + tag_at)
            or not startswith(tail, pos + tail_at)
        ):
            break
        append(buf[pos + payload_at : stop])
        if keeps_tags:
            tags.append(buf[pos + tag_at + 2 : pos + tail_at])
        delivery_id = (delivery_id + 1) & UINT_MAX
        pos = stop
        count_max -= 1
    return payloads, tags, pos


class TransferRunReader:
    """Reads runs from a connection's frames, for the link that last sent one."""

    def __init__(self, frames: FrameBuffer, limits: AmqpLimits) -> None:
        self._frames = frames
        self.limits = limits
        self._shape: TransferShape | None = None

    def learn(self, session: Session, transfer: Transfer, frame: Frame, position: int) -> None:
        """Store the shape of a link's transfers when one follows another."""
        link = session.links.get(transfer.handle)
        if isinstance(link, ReceiverLink) and link.next_run_id == transfer.delivery_id:
            self._shape = read_shape(frame, position, link, transfer)

    def take(self, events: list[Event]) -> bool:
        """Take the received frames that have the stored shape; whether there were any."""
        shape = self._shape
        if shape is None:
            return False
        link, session = shape.link, shape.link.session
        first_id = link.next_run_id
        if first_id is None or session.is_ended:
            self._shape = None
            return False
        buf, pos = self._frames.window()
        size_max = min(
            self.limits.frame_size_bytes_max, shape.payload_at + link.message_size_bytes_max
        )
        count_max = min(RUN_COUNT_MAX, session.run_room())
        payloads, tags, pos = take_run(buf, pos, shape, first_id, count_max, size_max)
        if not payloads:
            return False
        self._frames.advance(pos)
        run = DeliveriesReceived(
            link, first_id, shape.message_format, payloads, shape.settled, tags
        )
        session.receive_run(run, events)
        return True

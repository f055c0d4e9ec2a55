"""Cutting a stream into frames."""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp.errors import EncodeError, FramingError
from twinbus.amqp.frames import (
    HEARTBEAT,
    PROTOCOL_AMQP,
    PROTOCOL_SASL,
    FrameBuffer,
    encode_frame,
)

FRAME_SIZE_BYTES_MAX = 1_048_576


def body_of(buffer: FrameBuffer) -> bytes | None:
    frame = buffer.next_frame()
    return None if frame is None else frame.buf[frame.pos : frame.end]


def all_bodies(buffer: FrameBuffer) -> list[bytes]:
    bodies = []
    while (body := body_of(buffer)) is not None:
        bodies.append(body)
    return bodies


def test_a_protocol_header_and_the_frames_after_it_come_from_one_chunk() -> None:
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(PROTOCOL_SASL + encode_frame(0, b"init", frame_type=1) + PROTOCOL_AMQP)

    assert buffer.next_header() == PROTOCOL_SASL
    frame = buffer.next_frame()
    assert frame is not None
    assert (frame.type, frame.channel, frame.is_empty) == (1, 0, False)
    assert buffer.next_header() == PROTOCOL_AMQP
    assert buffer.next_frame() is None
    assert buffer.buffered_bytes == 0


def test_a_frame_tells_its_channel_and_its_payload_is_part_of_its_body() -> None:
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(encode_frame(513, b"performative", b"payload"))

    frame = buffer.next_frame()

    assert frame is not None
    assert frame.channel == 513
    assert frame.buf[frame.pos : frame.end] == b"performativepayload"


def test_an_empty_frame_is_a_heartbeat() -> None:
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(HEARTBEAT)

    frame = buffer.next_frame()

    assert frame is not None
    assert frame.is_empty


def test_an_extended_header_is_stepped_over() -> None:
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(bytes.fromhex("0000000f03000001") + b"ext!" + b"abc")

    assert body_of(buffer) == b"abc"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.booleans(),
)
def test_frames_come_out_whole_however_the_stream_is_sliced(
    bodies: list[bytes], sizes: list[int], eager: bool
) -> None:
    # Given some frames, cut into pieces that know nothing of frames
    stream = b"".join(encode_frame(0, body) for body in bodies)
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    received: list[bytes] = []
    pos = index = 0

    # When the pieces are fed, and frames taken after each piece or only at the end
    while pos < len(stream):
        size = sizes[index % len(sizes)]
        buffer.feed(stream[pos : pos + size])
        pos, index = pos + size, index + 1
        if eager:
            received += all_bodies(buffer)
    received += all_bodies(buffer)

    # Then every frame is there, in order
    assert received == bodies
    assert buffer.buffered_bytes == 0


NOT_A_FRAME = {
    **{f"57 size {size}": (f"{size:08x}02000000", "at least 8 bytes") for size in range(8)},
    "57 data offset 0": ("0000000800000000", "data offset at 0"),
    "57 data offset 1": ("0000000801000000", "data offset at 4"),
    "57 data offset after the frame": ("0000000803000000", "data offset at 12"),
    "57 data offset 255": ("00000010ff000000", "data offset at 1020"),
    "57 type 2": ("0000000802020000", "type 2"),
    "58 size 0xffffffff": ("ffffffff02000000", "at most 1048576"),
    "58 one byte over the limit": ("0010000102000000", "at most 1048576"),
    "55 HTTP": (b"GET / HT".hex(), "at most 1048576"),
}


@pytest.mark.parametrize(("sent", "told"), NOT_A_FRAME.values(), ids=NOT_A_FRAME.keys())
def test_what_cannot_be_a_frame_is_refused_by_its_head_alone(sent: str, told: str) -> None:
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(bytes.fromhex(sent))

    with pytest.raises(FramingError, match=told) as caught:
        buffer.next_frame()

    assert caught.value.condition == "amqp:connection:framing-error"


def test_a_frame_of_exactly_the_limit_is_accepted() -> None:
    """Case 58."""
    buffer = FrameBuffer(512)
    buffer.feed(encode_frame(0, b"x" * 504))

    assert body_of(buffer) == b"x" * 504


def test_the_limit_can_be_changed_between_frames() -> None:
    buffer = FrameBuffer(16)
    buffer.feed(encode_frame(0, b"small") + encode_frame(0, b"larger than that"))
    assert body_of(buffer) == b"small"

    buffer.frame_size_bytes_max = 64

    assert body_of(buffer) == b"larger than that"


def test_a_declared_size_reserves_no_memory() -> None:
    """Case 58: a thousand peers that declare 1 MiB and send nothing cost nothing.

    Memory is counted for the whole process, in which other tests have threads: hence the margin.
    """
    tracemalloc.start()
    buffers = [FrameBuffer(FRAME_SIZE_BYTES_MAX) for _ in range(1_000)]
    for buffer in buffers:
        buffer.feed(bytes.fromhex("0010000002000000"))
        assert buffer.next_frame() is None
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 10_000_000


def cpu_seconds_of_dribble(size: int) -> float:
    """Feed one frame of this size byte by byte, asking for it after every byte."""
    stream = encode_frame(0, b"x" * (size - 8))
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    started = time.thread_time()
    for pos in range(size - 1):
        buffer.feed(stream[pos : pos + 1])
        assert buffer.next_frame() is None
    buffer.feed(stream[-1:])
    assert buffer.next_frame() is not None
    return time.thread_time() - started


def test_a_frame_that_dribbles_in_costs_in_proportion_to_its_bytes() -> None:
    """Eight times the bytes cost about eight times as much; a copy for each piece would cost 64."""
    small = min(cpu_seconds_of_dribble(16_384) for _ in range(3))
    large = min(cpu_seconds_of_dribble(131_072) for _ in range(3))

    assert large < 24 * small


def cpu_seconds_of_chunk(frame_count: int) -> float:
    chunk = encode_frame(0, b"x" * 24) * frame_count
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    started = time.thread_time()
    buffer.feed(chunk)
    assert sum(1 for _ in all_bodies(buffer)) == frame_count
    return time.thread_time() - started


def test_many_frames_in_one_chunk_cost_in_proportion_to_their_number() -> None:
    small = min(cpu_seconds_of_chunk(4_000) for _ in range(3))
    large = min(cpu_seconds_of_chunk(32_000) for _ in range(3))

    assert large < 24 * small


def test_a_whole_frame_is_a_window_on_the_bytes_that_were_fed() -> None:
    chunk = encode_frame(0, b"first") + encode_frame(0, b"second")
    buffer = FrameBuffer(FRAME_SIZE_BYTES_MAX)
    buffer.feed(chunk)

    first, second = buffer.next_frame(), buffer.next_frame()

    assert first is not None and first.buf is chunk
    assert second is not None and second.buf is chunk


def test_random_bytes_are_frames_or_a_framing_error_and_nothing_else() -> None:
    random = Random(3)
    for _ in range(20_000):
        buffer = FrameBuffer(512)
        head = bytes((0, 0, random.randrange(3), random.randrange(256), random.randrange(6)))
        buffer.feed(head + random.randbytes(random.randrange(40)))
        try:
            while (frame := buffer.next_frame()) is not None:
                assert frame.pos <= frame.end <= len(frame.buf)
        except FramingError:
            pass


def test_a_channel_that_has_no_number_is_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        encode_frame(65_536, b"")

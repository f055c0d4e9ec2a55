"""The weather of a line, seen from both of its ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import pytest

from verification.fault_campaign.proxy import BOTH, CLEAR, Direction, Line, Weather

PATIENCE_S = 10.0
QUIET_S = 0.3
"""Long enough to see that nothing comes."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Station:
    """A server that repeats what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.sizes: list[int] = []
        self.connections: list[asyncio.StreamWriter] = []
        self.lost = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.heard += data
                self.sizes.append(len(data))
                writer.write(data)
        self.lost.set()
        writer.close()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.connections:
            writer.transport.abort()


@pytest.fixture
async def station() -> AsyncIterator[Station]:
    station = Station()
    yield station
    station.close()


@pytest.fixture
async def line(station: Station) -> AsyncIterator[Line]:
    port = await station.open()
    async with Line(listen=("127.0.0.1", 0), target=("127.0.0.1", port), rng=Random(1)) as line:
        yield line


@pytest.fixture
async def ends(line: Line) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    yield reader, writer
    writer.transport.abort()


async def echoed(ends: Ends, data: bytes) -> bytes:
    ends[1].write(data)
    return await asyncio.wait_for(ends[0].readexactly(len(data)), PATIENCE_S)


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), QUIET_S)
    except TimeoutError:
        return True
    return False


async def test_in_clear_weather_everything_passes_unchanged(ends: Ends) -> None:
    data = Random(2).randbytes(1 << 20)
    assert await echoed(ends, data) == data


async def test_latency_delays_and_jitter_does_not_reorder(line: Line, ends: Ends) -> None:
    line.set(Weather(latency_s=0.1, jitter_s=0.05))
    began_s = time.monotonic()
    data = b"".join(number.to_bytes(4, "big") for number in range(1_000))
    for start in range(0, len(data), 400):
        ends[1].write(data[start : start + 400])
        await asyncio.sleep(0.001)
    assert await asyncio.wait_for(ends[0].readexactly(len(data)), PATIENCE_S) == data
    assert time.monotonic() - began_s >= 0.2, "there and back"


async def test_a_narrow_line_takes_its_time(line: Line, ends: Ends) -> None:
    line.set(Weather(bytes_per_s=10_000))
    began_s = time.monotonic()
    await echoed(ends, b"x" * 2_000)
    assert time.monotonic() - began_s >= 0.2


async def test_a_slicer_makes_many_packets_of_one(line: Line, station: Station, ends: Ends) -> None:
    line.set(Weather(slice_bytes=1))
    assert await echoed(ends, b"abcdefgh") == b"abcdefgh"
    assert len(station.sizes) > 1, "TCP may join some, not all"


@pytest.mark.parametrize("direction", Direction)
async def test_a_black_hole_has_a_direction_and_gives_back_what_it_swallowed(
    line: Line, station: Station, ends: Ends, direction: Direction
) -> None:
    await echoed(ends, b"before")
    line.set(Weather(black_holes=frozenset({direction})))
    ends[1].write(b"during")
    assert await is_silent(ends[0])
    assert (b"during" in station.heard) is (direction is Direction.DOWN)
    line.set(CLEAR)
    assert await asyncio.wait_for(ends[0].readexactly(6), PATIENCE_S) == b"during"


async def test_nobody_gets_through_a_black_hole(line: Line, station: Station) -> None:
    line.set(Weather(black_holes=BOTH))
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    writer.write(b"hello")
    assert await is_silent(reader)
    assert station.connections == []
    line.set(CLEAR)
    assert await asyncio.wait_for(reader.readexactly(5), PATIENCE_S) == b"hello"
    writer.transport.abort()


async def test_a_reset_is_heard_at_both_ends(line: Line, station: Station, ends: Ends) -> None:
    await echoed(ends, b"x")
    line.reset_all()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(ends[0].readexactly(1), PATIENCE_S)
    await asyncio.wait_for(station.lost.wait(), PATIENCE_S)


async def test_a_half_open_connection_is_dead_and_its_client_does_not_know(
    line: Line, station: Station, ends: Ends
) -> None:
    await echoed(ends, b"x")
    line.set(Weather(is_half_open=True))
    await asyncio.wait_for(station.lost.wait(), PATIENCE_S)
    ends[1].write(b"lost")
    assert await is_silent(ends[0])
    line.set(CLEAR)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(ends[0].readexactly(1), PATIENCE_S)
    assert bytes(station.heard) == b"x"


async def test_a_line_that_refuses_lets_nobody_in(line: Line, station: Station) -> None:
    line.set(Weather(refuses=True))
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
    writer.transport.abort()
    assert station.connections == []


@pytest.mark.parametrize("limit", [0, 1, 5, 16])
async def test_a_cut_comes_after_exactly_so_many_bytes(
    line: Line, station: Station, ends: Ends, limit: int
) -> None:
    line.set(Weather(cut_after_bytes=limit, black_holes=frozenset({Direction.DOWN})))
    ends[1].write(b"0123456789abcdef!")
    await asyncio.wait_for(station.lost.wait(), PATIENCE_S)
    assert len(station.heard) <= limit, "a reset may overtake what it follows"
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(ends[0].readexactly(99), PATIENCE_S)


async def test_an_end_that_closes_is_heard_after_all_it_said(
    line: Line, station: Station, ends: Ends
) -> None:
    ends[1].write(b"goodbye")
    ends[1].write_eof()
    assert await asyncio.wait_for(ends[0].read(), PATIENCE_S) == b"goodbye"
    await asyncio.wait_for(station.lost.wait(), PATIENCE_S)


async def test_a_broker_that_is_not_there_is_a_reset(station: Station) -> None:
    port = await station.open()
    station.close()
    async with Line(listen=("127.0.0.1", 0), target=("127.0.0.1", port)) as line:
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
        writer.transport.abort()

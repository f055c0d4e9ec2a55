"""A TCP proxy with weather: one for every line between a client and a broker.

    client --[Way: up]--> Line --[Way: down]<-- broker

Rule 1: bytes are never changed, reordered or left out: a network loses packets, not bytes. What a
        black hole swallows arrives when it ends, if the connection still lives, as with TCP.
Rule 2: a connection that is cut is reset, so that both ends hear of it at once; in a half-open
        one the client hears nothing until the weather changes.
Rule 3: weather may change at any moment, for connections that exist and for new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

READ_BYTES_MAX: Final = 64 << 10
# Chunks that are on their way; behind them the reader waits, which is TCP's own back-pressure.
CHUNKS_ON_THE_WAY_MAX: Final = 64
# A narrow line passes what this much time is worth, then waits.
NARROW_STEP_S: Final = 0.02
# Close with a reset instead of an orderly end.
LINGER_RESET: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    UP = "up"
    """From the client to the broker."""
    DOWN = "down"


BOTH: Final = frozenset(Direction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a line is like. The usual values are a clear sky."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    slice_bytes: int | None = None
    """Pass at most so many bytes at once; 1 is the hardest for a parser."""
    black_holes: frozenset[Direction] = frozenset()
    """Nothing passes there until the weather changes."""
    is_half_open: bool = False
    """The broker's side of every connection is closed and the client's is left hanging."""
    refuses: bool = False
    """New connections are reset at once."""
    cut_after_bytes: int | None = None
    """A connection is reset once so many bytes have passed, both ways together."""


CLEAR: Final = Weather()


class Line:
    """The proxy of one line. Listens from ``open`` to ``close``."""

    def __init__(
        self,
        *,
        listen: tuple[str, int],
        target: tuple[str, int],
        rng: Random | None = None,
        climate: Weather = CLEAR,
    ) -> None:
        self._listen = listen
        self._target = target
        self.rng = rng or Random()
        self.climate = climate
        """What the line is like when nothing is wrong with it."""
        self.weather = climate
        self.changed = asyncio.Event()
        """Set, and replaced, when the weather changes."""
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "the line is not open"
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self) -> Line:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Line:
        return await self.open()

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def set(self, weather: Weather) -> None:
        """From now on it is like this."""
        was_half_open, self.weather = self.weather.is_half_open, weather
        for connection in list(self.connections):
            connection.passed_bytes = 0
            if weather.is_half_open:
                connection.forget_broker()
            elif was_half_open:
                connection.reset()  # The client finds out what it has been talking to.
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def reset_all(self) -> None:
        """Cut every connection, both ends with a TCP reset."""
        for connection in list(self.connections):
            connection.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection = _Connection(self, reader, writer)
        self.connections.add(connection)
        try:
            if self.weather.refuses:
                raise ConnectionResetError("nobody is let in")
            await connection.run(self._target)
        except (OSError, asyncio.CancelledError):
            connection.reset()  # Either end went away, or the line is closed.
        finally:
            self.connections.discard(connection)


class _Connection:
    """One client's connection, and the broker's end of it once that is open."""

    def __init__(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._line = line
        self._client = (reader, writer)
        self._broker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.passed_bytes = 0

    async def run(self, target: tuple[str, int]) -> None:
        """Until both ends have closed; raises when one of them was cut off."""
        while self._line.weather.black_holes:
            await self._line.changed.wait()  # No answer to the first packet either.
        try:
            if not self._line.weather.is_half_open:
                await self._talk(target)
        except OSError:
            if not self._line.weather.is_half_open:
                raise
        while self._line.weather.is_half_open:
            await self._line.changed.wait()
        for writer in (self._client[1], *(self._broker or ())[1:]):
            writer.close()

    async def _talk(self, target: tuple[str, int]) -> None:
        self._broker = await asyncio.open_connection(*target)
        ways = (
            _Way(self._line, self, Direction.UP, self._client[0], self._broker[1]),
            _Way(self._line, self, Direction.DOWN, self._broker[0], self._client[1]),
        )
        tasks = [asyncio.ensure_future(way.run()) for way in ways]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def forget_broker(self) -> None:
        """End the broker's side; the client is told nothing."""
        if self._broker is not None:
            _reset(self._broker[1])

    def reset(self) -> None:
        self.forget_broker()
        _reset(self._client[1])

    def count(self, size_bytes: int) -> int:
        """How many of so many bytes may still pass."""
        limit = self._line.weather.cut_after_bytes
        if limit is None:
            return size_bytes
        allowed = max(0, min(size_bytes, limit - self.passed_bytes))
        self.passed_bytes += size_bytes
        return allowed


class _Way:
    """One direction of one connection: what is read leaves when the weather lets it."""

    def __init__(
        self,
        line: Line,
        connection: _Connection,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._line, self._connection, self._direction = line, connection, direction
        self._reader, self._writer = reader, writer
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_ON_THE_WAY_MAX)
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._write()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        due_s = 0.0
        data = b"-"
        while data:
            try:
                data = await self._reader.read(READ_BYTES_MAX)
            except OSError:
                data = b""
            weather = self._line.weather
            late_s = weather.latency_s + self._line.rng.uniform(0, weather.jitter_s)
            due_s = max(due_s, self._loop.time() + late_s)  # Jitter never overtakes.
            await self._chunks.put((due_s, data))

    async def _write(self) -> None:
        while True:
            due_s, data = await self._chunks.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            await self._until_it_passes()
            if not data:
                return self._end()
            for piece in self._pieces(data):
                await self._pass(piece)

    def _end(self) -> None:
        """One end has said that it is done: the other hears so, unless nobody is to tell it."""
        if self._line.weather.is_half_open:
            raise ConnectionResetError("nobody is told")
        self._writer.write_eof()

    async def _until_it_passes(self) -> None:
        while self._direction in self._line.weather.black_holes:
            await self._line.changed.wait()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        weather, size = self._line.weather, len(data)
        if weather.bytes_per_s is not None:
            size = max(1, int(weather.bytes_per_s * NARROW_STEP_S))
        size = min(size, weather.slice_bytes or size)
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def _pass(self, piece: bytes) -> None:
        rate = self._line.weather.bytes_per_s
        if rate is not None:
            await asyncio.sleep(len(piece) / rate)
        await self._until_it_passes()
        allowed = self._connection.count(len(piece))
        self._writer.write(piece[:allowed])
        await self._writer.drain()
        if allowed < len(piece):
            raise ConnectionResetError("the line was cut")
        if self._line.weather.slice_bytes is not None:
            await asyncio.sleep(0)  # A packet of its own.


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    writer.transport.abort()

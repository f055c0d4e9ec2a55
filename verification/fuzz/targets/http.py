"""Requests to the two HTTP applications, through everything that stands before them.

An input is a stream of requests behind one byte: which application, and in how many pieces it
comes. Where a request says TOKEN_PLACE, it shows a valid token with the claim Manage; a stream
without one is a stranger's. Each callback of the event loop is one call, and so is each piece.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.fairness.connection_slots import ConnectionSlots
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.common.connection_string import parse_connection_string
from twinbus.common.sas_token import make_token
from verification.fuzz import mutation, texts
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import STRANGERS_SIZE_MAX, BaseTarget

# Entities pile up; after so many inputs the broker is replaced by a new one.
INPUTS_PER_BROKER: Final = 300
ANSWER_S_MAX: Final = 1.0
PIECES: Final = (1, 2, 7)


class MeasuredEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, each callback measured under the name of its function."""

    meter = Meter()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._measured, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._measured, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._measured, callback, *args, context=context)

    def _measured(self, callback: Callable[..., Any], *args: Any) -> None:
        name = _name_of(callback)
        if name.startswith(HttpTarget.__name__):
            callback(*args)  # The harness itself; what it calls is measured there.
        else:
            self.meter.call(name, callback, *args)


def _name_of(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", "task"))
    callback = getattr(callback, "func", callback)
    return str(getattr(callback, "__qualname__", type(callback).__name__))


class Wire(asyncio.Transport):
    """A caller's connection that swallows what it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.written_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Heard."""

    def pause_reading(self) -> None:
        """Everything is here already."""

    resume_reading = pause_reading

    def close(self) -> None:
        self.is_closed = True

    abort = close


class HttpTarget(BaseTarget):
    name = "http"

    def __init__(self) -> None:
        self._loop = MeasuredEventLoop()
        self._broker: Broker | None = None
        self._namespace: RunningNamespace | None = None
        self._servings: list[tuple[Callable[..., Any], ConnectionSlots]] = []
        self._token = b""
        self._input_count = 0

    def generate(self, random: Random, size: int) -> bytes:
        size = min(size, random.choice((size, STRANGERS_SIZE_MAX)))
        count = random.choice((1, 1, 1, 3))
        requests = [texts.http_request(random, size // count) for _ in range(count)]
        return bytes((random.randrange(6),)) + b"".join(requests)

    def mutate(self, random: Random, data: bytes, other: bytes) -> bytes:
        return data[:1] + mutation.mutate(random, data[1:], other[1:])

    def is_stranger(self, data: bytes) -> bool:
        return texts.TOKEN_PLACE not in data

    def execute(self, data: bytes, meter: Meter) -> None:
        first = data[0] if data else 0
        self._loop.meter = Meter()
        self._loop.run_until_complete(self._prepare())
        said = data[1:].replace(texts.TOKEN_PLACE, self._token)
        pieces = PIECES[(first >> 1) % len(PIECES)]
        self._loop.meter = meter
        meter.begin()
        try:
            self._loop.run_until_complete(self._talk(first & 1, said, pieces))
        finally:
            self._loop.meter = Meter()

    async def _talk(self, which: int, said: bytes, pieces: int) -> None:
        meter, wire = self._loop.meter, Wire()
        serving, slots = self._servings[which]
        protocol = serving(slots.admit("127.0.0.1", wire.abort))
        protocol.connection_made(wire)
        step = max(1, len(said) // pieces)
        for start in range(0, len(said), step):
            if wire.is_closed:
                break
            meter.call("data_received", protocol.data_received, said[start : start + step])
            await asyncio.sleep(0)
        await _until_answered(protocol, wire)
        protocol.connection_lost(None)
        await asyncio.sleep(0)

    async def _prepare(self) -> None:
        """Have a broker with both applications, not too full."""
        self._input_count += 1
        if self._input_count % INPUTS_PER_BROKER and self._is_serving():
            return
        if self._broker is not None:
            await self._broker.close()
        self._broker = broker = Broker(BrokerOptions())
        self._namespace = running = await broker.add_namespace(
            NamespaceSpec("fuzz", queues=("orders",), topics=("events",))
        )
        administration = await broker.open_administration()
        assert administration is not None
        self._servings = [
            (await listeners.acceptor.http.serving(), listeners.acceptor.slots)
            for listeners in (running.listeners, administration)
        ]
        parsed = parse_connection_string(running.connection_string)
        self._token = make_token(
            resource="http://localhost/",
            rule_name=parsed.shared_access_key_name,
            key=parsed.shared_access_key,
            expires_s=int(time.time()) + 86_000,
        ).encode()
        # Whatever is imported or compiled at the first request is no cost of an input.
        for which in (0, 1):
            for request in (b"GET /$Resources/queues", b"GET /namespaces/fuzz/queues"):
                said = request + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n\r\n"
                await self._talk(which, said % self._token, 1)

    def _is_serving(self) -> bool:
        """A request with the claim Manage may have stopped the namespace."""
        if self._broker is None or self._namespace is None:
            return False
        return "fuzz" in self._broker.namespaces and self._namespace.failure is None

    def close(self) -> None:
        if self._broker is not None:
            self._loop.run_until_complete(self._broker.close())
        self._loop.close()


async def _until_answered(protocol: Any, wire: Wire) -> None:
    """Wait for the application; what takes no CPU holds nobody."""
    stop_s = time.monotonic() + ANSWER_S_MAX
    turns = 0
    while not wire.is_closed and time.monotonic() < stop_s:
        cycle = protocol.cycle
        if cycle is None or cycle.response_complete:
            return
        turns += 1
        await asyncio.sleep(0 if turns < 20 else 0.001)


def make() -> HttpTarget:
    return HttpTarget()

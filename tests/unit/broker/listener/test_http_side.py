"""HTTP behind a door, with an application of the test's own: who lets whom wait, and for how long.

On uvloop, as users run it, and on asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.unit.broker.listener.test_waiting import PATIENCE_S, TOLERANCE_S, Tell, eventually
from tests.unit.broker.listener.test_waiting import tell as tell
from twinbus.broker.fairness.connection_slots import ConnectionSlots
from twinbus.broker.http import protocol
from twinbus.broker.http.server import HttpServer
from twinbus.broker.listener.certificates import CertificateStore
from twinbus.broker.listener.listeners import ConnectionAcceptor, Listener, bind

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

Application = Callable[[Any, Any, Any], Any]


@asynccontextmanager
async def serving(application: Application, offences: list[str]) -> AsyncIterator[Listener]:
    def note(what: str, address: str) -> None:
        assert address == "127.0.0.1"
        offences.append(what)

    def note_mistake(error: Exception, address: str, is_stranger: bool) -> None:
        assert address == "127.0.0.1" and is_stranger
        offences.append(f"mistake: {error}")

    http = HttpServer(
        lambda: application,
        request_timeout_s=PATIENCE_S,
        log_violation=note,
        note_mistake=note_mistake,
    )
    acceptor = ConnectionAcceptor(
        tls=CertificateStore(None),
        http=http,
        amqp=None,
        slots=ConnectionSlots(strangers_max=10, connections_max=10),
        log_violation=note,
        handshake_timeout_s=PATIENCE_S,
    )
    door = Listener(acceptor, await bind("127.0.0.1", 0))
    try:
        yield door
        await eventually(lambda: acceptor.connection_count == 0)
    finally:
        door.close()
        await acceptor.close()


def answering(*sizes_bytes: int, delay_s: float = 0.0) -> Application:
    """An application whose answers have a body in parts of those sizes."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await asyncio.sleep(delay_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for size_bytes in sizes_bytes[:-1]:
            part = {"type": "http.response.body", "body": bytes(size_bytes), "more_body": True}
            await send(part)
        await send({"type": "http.response.body", "body": bytes(sizes_bytes[-1])})

    return application


async def deaf(door: Listener, said: bytes) -> socket.socket:
    """A caller that asks and does not read."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    caller.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(caller, ("127.0.0.1", door.port))
    await loop.sock_sendall(caller, said)
    return caller


def test_an_answer_that_nobody_reads_ends_the_connection(tell: Tell) -> None:
    """M6: otherwise it would be kept for ever."""
    offences: list[str] = []

    async def story() -> None:
        async with serving(answering(*[1 << 20] * 64), offences) as door:
            caller = await deaf(door, REQUEST)
            await eventually(lambda: offences == ["an HTTP response was not read in time"])
            caller.close()

    tell(story)


@pytest.mark.parametrize("said", [REQUEST, LAST_REQUEST])
def test_a_connection_that_closes_does_not_wait_for_its_last_bytes_to_be_read(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """M6: they may be too few for the limit above, which begins with a full buffer."""
    monkeypatch.setattr(protocol, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(protocol.DeadlineHttpProtocol, "_response_not_read", lambda _self: None)

    async def story() -> None:
        async with serving(answering(16 << 20), []) as door:
            caller = await deaf(door, said)
            await eventually(lambda: door._acceptor.connection_count == 1)
            await eventually(lambda: door._acceptor.connection_count == 0)
            caller.close()

    tell(story)


def test_an_application_may_take_its_time(tell: Tell) -> None:
    """M10: a request that is here in whole has no deadline of ours."""
    offences: list[str] = []

    async def story() -> None:
        async with serving(answering(1 << 17, delay_s=2.5 * PATIENCE_S), offences) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(LAST_REQUEST)
            said = await asyncio.wait_for(reader.read(), TOLERANCE_S)
            assert said.startswith(b"HTTP/1.1 200") and len(said) > 1 << 16
            writer.close()
        assert offences == []

    tell(story)


def test_each_request_on_a_connection_has_its_own_deadline(tell: Tell) -> None:
    """M10: a connection that is used well may last."""
    offences: list[str] = []

    async def story() -> None:
        async with serving(answering(1), offences) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            began = time.monotonic()
            while time.monotonic() - began < 3 * PATIENCE_S:
                for part in (REQUEST[:20], REQUEST[20:]):
                    writer.write(part)
                    await asyncio.sleep(PATIENCE_S / 4)
                assert await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), TOLERANCE_S)
            writer.write(b"GET / HT")
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), TOLERANCE_S) == b""
            writer.close()
        assert offences == ["an HTTP request was not complete in time"]

    tell(story)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_mistake_in_the_application_is_noted_and_answered(
    tell: Tell, caplog: pytest.LogCaptureFixture, has_begun: bool
) -> None:
    """M13: uvicorn's own log would have a traceback for every request."""
    offences: list[str] = []

    async def broken(_scope: Any, _receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("secret detail")

    async def story() -> None:
        async with serving(broken, offences) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(LAST_REQUEST)
            said = await asyncio.wait_for(reader.read(), TOLERANCE_S)
            assert has_begun or (said.startswith(b"HTTP/1.1 500") and b"log of the broker" in said)
            assert b"secret detail" not in said
            writer.close()
        assert offences == ["mistake: 'secret detail'"]

    tell(story)
    assert "Traceback" not in caplog.text
    # One that began and did not end is uvicorn's to log, in one line.
    assert has_begun or "ASGI" not in caplog.text

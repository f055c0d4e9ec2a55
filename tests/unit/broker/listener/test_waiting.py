"""Who comes to a door and takes its time there: when it is sent away, and that nothing is left.

The broker runs in this process, with short limits in place of the seconds of a real one, once on
uvloop, as users run it, and once on asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.adversarial.redialling import OPENED
from tests.adversarial.test_tls import tls_hello
from tests.support.wire_client import connected as wire_connected
from twinbus.amqp.frames import PROTOCOL_SASL
from twinbus.amqp.limits import AmqpLimits
from twinbus.broker.access.sas import make_token
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.fairness.connection_slots import Slot
from twinbus.broker.faults import Fault
from twinbus.broker.http.protocol import DeadlineHttpProtocol
from twinbus.broker.listener import listeners, tarpit
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.broker.server.connection import ClientConnection
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import ConfigurationError, PortTaken

PATIENCE_S = 0.4
# Between the limit and this the peer must be gone, also on a busy machine.
TOLERANCE_S = 8.0

Story = Callable[[], Awaitable[None]]
Tell = Callable[[Story], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def tell(request: pytest.FixtureRequest) -> Tell:
    """Runs a story on a loop of one kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(story: Story) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(story(), 60))

    return run


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Broker, RunningNamespace]]:
    options.setdefault("limits", AmqpLimits(handshake_timeout_s=PATIENCE_S))
    async with Broker(BrokerOptions(**options)) as broker:
        yield broker, await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def secured(broker: Broker, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = await asyncio.to_thread(
        lambda: ssl.create_default_context(cafile=str(broker.tls.ca_path))
    )
    return await asyncio.open_connection("localhost", port, ssl=context)


async def until_closed(reader: asyncio.StreamReader) -> tuple[bytes, float]:
    began = time.monotonic()
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        said = await asyncio.wait_for(reader.read(), PATIENCE_S + TOLERANCE_S)
    return said, time.monotonic() - began


async def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TOLERANCE_S
    while not condition():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


def socket_count() -> int:
    """Open sockets of this process; uvloop also keeps a file in reserve, from its first one on."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x16", id="the first byte of TLS"),
        pytest.param(tls_hello()[:-1], id="almost a hello"),
        pytest.param(tls_hello(), id="a hello and no more"),
        pytest.param(b"G", id="the first byte of HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n", id="half a head"),
        pytest.param(
            b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n<", id="half a body"
        ),
        pytest.param(PROTOCOL_SASL[:3], id="half a header of AMQP"),
    ],
)
def test_who_does_not_go_on_is_sent_away_in_time(tell: Tell, said: bytes) -> None:
    """M6: whatever was begun, and nothing is left of it."""

    async def story() -> None:
        async with serving() as (broker, namespace):
            await broker.tls.context()
            before = socket_count()
            async with connected(namespace.port) as (reader, writer):
                writer.write(said)
                _said, seconds = await until_closed(reader)
                assert seconds >= PATIENCE_S * 0.8
            await eventually(lambda: namespace.connection_count == 0)
            await eventually(lambda: socket_count() <= before)

    tell(story)


@pytest.mark.parametrize(
    "said", [tls_hello(), b"GET / HTTP/1.1\r\nHost: localhost\r\n"], ids=["TLS", "HTTP"]
)
def test_a_slow_loris_does_not_buy_time_byte_by_byte(tell: Tell, said: bytes) -> None:
    """M6: the limit is for the whole, not for the next byte."""

    async def dribble(writer: asyncio.StreamWriter) -> None:
        for byte in said * 3:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0.02)

    async def story() -> None:
        async with serving() as (_broker, namespace), connected(namespace.port) as (reader, writer):
            dribbling = asyncio.create_task(dribble(writer))
            _said, seconds = await until_closed(reader)
            assert seconds >= PATIENCE_S * 0.8
            dribbling.cancel()

    tell(story)


def test_who_says_nothing_inside_tls_is_sent_away(tell: Tell) -> None:
    """M6: a handshake is not the end of the wait."""

    async def story() -> None:
        async with serving() as (broker, namespace):
            reader, writer = await secured(broker, namespace.port)
            _said, seconds = await until_closed(reader)
            assert seconds < PATIENCE_S + TOLERANCE_S
            writer.close()
            await eventually(lambda: namespace.connection_count == 0)

    tell(story)


STRANGERS = [
    pytest.param(b"", id="nothing"),
    pytest.param(tls_hello()[:50], id="in a TLS handshake"),
    pytest.param(b"GET / HT", id="in a request"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="refused, kept alive"),
    pytest.param(PROTOCOL_SASL, id="in SASL"),
]


@pytest.mark.parametrize("said", STRANGERS)
def test_a_stranger_makes_room_for_a_newer_one(tell: Tell, said: bytes) -> None:
    """M13: whatever it speaks; the one that has waited longest goes first."""

    async def story() -> None:
        async with serving(limits=AmqpLimits(), strangers_max=2) as (broker, namespace):
            await broker.tls.context()
            slots = namespace.listeners.acceptor.slots
            before = socket_count()
            async with connected(namespace.port) as (oldest, first):
                first.write(said)
                await eventually(lambda: namespace.connection_count == 1)
                await asyncio.sleep(0.1)
                for _ in range(2):
                    newer = await asyncio.open_connection("127.0.0.1", namespace.port)
                    newer[1].write(PROTOCOL_SASL)
                    assert await asyncio.wait_for(newer[0].readexactly(8), TOLERANCE_S)
                    newer[1].close()
                    await eventually(lambda: slots.stranger_count == 1)
                kept = [await asyncio.open_connection("127.0.0.1", namespace.port)]
                kept.append(await asyncio.open_connection("127.0.0.1", namespace.port))
                _said, seconds = await until_closed(oldest)
                assert seconds < TOLERANCE_S
                for _reader, writer in kept:
                    writer.close()
            await eventually(lambda: namespace.connection_count == 0)
            await eventually(lambda: slots.stranger_count == 0)
            await eventually(lambda: socket_count() <= before)

    tell(story)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(tls_hello()[:50], id="in a TLS handshake"),
        pytest.param(b"GET / HT", id="in a request"),
        pytest.param(OPENED, id="opened"),
        pytest.param(None, id="opened in TLS"),
    ],
)
def test_in_a_flood_a_stranger_is_evicted_and_not_closed(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """M13: nothing is left of it but its descriptor, and that for a while."""
    monkeypatch.setattr(tarpit, "FREE_PER_S", 0)
    monkeypatch.setattr(tarpit, "HOLD_S", 0.5)

    async def story() -> None:
        async with serving(limits=AmqpLimits(), strangers_max=1, tarpit_max=5) as (
            broker,
            namespace,
        ):
            await broker.tls.context()
            acceptor = namespace.listeners.acceptor
            await acceptor.http.serving()
            before = socket_count()
            if said is None:
                reader, writer = await secured(broker, namespace.port)
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
            writer.write(OPENED if said is None else said)
            await asyncio.sleep(0.1)
            async with connected(namespace.port):
                began_s = time.monotonic()
                await eventually(lambda: len(acceptor.tarpit) == 1)
                assert (namespace.connection_count, acceptor.slots.stranger_count) == (1, 1)
                await until_closed(reader)
                assert 0.4 < time.monotonic() - began_s < TOLERANCE_S
            writer.close()
            await eventually(lambda: namespace.connection_count == 0)
            await eventually(lambda: socket_count() <= before)

    tell(story)


STRANGE = (
    listeners.PendingConnection,
    listeners.TlsPendingConnection,
    ClientConnection,
    DeadlineHttpProtocol,
    Slot,
)


@pytest.mark.parametrize("said", [*STRANGERS, pytest.param(OPENED, id="opened")])
@pytest.mark.parametrize("is_evicted", [False, True], ids=["left", "evicted"])
def test_a_stranger_that_is_gone_is_not_left_to_the_collector(
    said: bytes, is_evicted: bool
) -> None:
    """M13: 5,000 evicted in a second would be 60 MB until it runs, and it may not run for hours."""

    async def story() -> None:
        async with serving(limits=AmqpLimits(), strangers_max=2) as (broker, namespace):
            await broker.tls.context()
            await namespace.listeners.acceptor.http.serving()
            gc.collect()
            gc.disable()
            async with AsyncExitStack() as held:
                for _ in range(10):
                    async with AsyncExitStack() as stack:
                        _reader, writer = await stack.enter_async_context(connected(namespace.port))
                        writer.write(said)
                        await asyncio.sleep(0.02)
                        if is_evicted:
                            held.push_async_exit(stack.pop_all())
            await eventually(lambda: namespace.connection_count == 0)
            await asyncio.sleep(0.05)
            left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, STRANGE)]
            assert left == []

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(story(), 60))
    finally:
        gc.enable()


@pytest.mark.parametrize("is_secure", [False, True])
def test_who_has_shown_a_token_keeps_its_connection(tell: Tell, is_secure: bool) -> None:
    """M13: strangers take nothing from it, over AMQP or HTTP, and it takes no stranger's slot."""

    async def story() -> None:
        async with serving(limits=AmqpLimits(), strangers_max=1) as (broker, namespace):
            slots = namespace.listeners.acceptor.slots
            token = make_token(
                resource=f"sb://localhost:{namespace.port}/",
                rule_name="RootManageSharedAccessKey",
                key=parse_connection_string(namespace.connection_string).shared_access_key or "",
                expires_s=int(time.time()) + 60,
            )
            reader, writer = (
                await secured(broker, namespace.port)
                if is_secure
                else await asyncio.open_connection("127.0.0.1", namespace.port)
            )
            request = f"GET /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
            writer.write(request.encode())
            said = await asyncio.wait_for(reader.readuntil(b"</entry>"), TOLERANCE_S)
            assert said.startswith(b"HTTP/1.1 200")
            context = None
            if is_secure:
                context = ssl.create_default_context(cafile=str(broker.tls.ca_path))
            client = await asyncio.to_thread(wire_connected, namespace.port, token, context=context)
            assert (slots.authenticated_count, slots.stranger_count) == (2, 0)
            for _ in range(10):
                async with connected(namespace.port) as (_reader, stranger):
                    stranger.write(PROTOCOL_SASL)
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(client.attach_sender, "orders")
            writer.write(request.encode())
            said = await asyncio.wait_for(reader.readuntil(b"</entry>"), TOLERANCE_S)
            assert said.startswith(b"HTTP/1.1 200")
            writer.close()
            client.close()
            await eventually(lambda: slots.authenticated_count == 0)

    tell(story)


def test_a_peer_inside_tls_is_told_goodbye(tell: Tell) -> None:
    """M8: the broker stops; what it has to say arrives, and the end is a clean one."""

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (broker, namespace):
            reader, writer = await secured(broker, namespace.port)
            writer.write(PROTOCOL_SASL)
            assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S) == PROTOCOL_SASL
        # No exception: a TLS stream that is cut off would raise one.
        await asyncio.wait_for(reader.read(), TOLERANCE_S)
        writer.close()

    tell(story)


def test_last_words_reach_a_peer_inside_tls(tell: Tell) -> None:
    """M6: a peer that is wrong hears so before the connection ends."""

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (broker, namespace):
            reader, writer = await secured(broker, namespace.port)
            writer.write(b"this is not AMQP" + bytes(60_000))
            said = await asyncio.wait_for(reader.read(), TOLERANCE_S)
            assert said == PROTOCOL_SASL
            writer.close()
            await eventually(lambda: namespace.connection_count == 0)

    tell(story)


@pytest.mark.parametrize("is_secure", [False, True])
def test_nothing_of_a_door_is_in_the_way_of_a_peer(tell: Tell, is_secure: bool) -> None:
    """M10: the transport hands what it reads to the peer itself."""

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (broker, namespace):
            if is_secure:
                reader, writer = await secured(broker, namespace.port)
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
            writer.write(PROTOCOL_SASL)
            assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S)
            (peer,) = namespace.access.peers
            assert peer._transport.get_protocol() is peer
            assert not namespace.listeners.acceptor.waiting
            writer.close()

    tell(story)


def test_a_peer_that_has_left_can_be_cut_off(tell: Tell) -> None:
    """M8: asyncio's TLS forgets its protocol when it is closed twice; the broker closes anyway."""

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (broker, namespace):
            reader, writer = await secured(broker, namespace.port)
            writer.write(PROTOCOL_SASL)
            assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S)
            (peer,) = namespace.access.peers
            peer.leave()
            peer.leave()
            peer.abort()
            writer.close()

    tell(story)


def test_closing_the_broker_leaves_nobody_at_the_door(tell: Tell) -> None:
    """M8: neither those who wait nor those in a handshake nor those who speak HTTP."""

    async def story() -> None:
        before = socket_count()
        talks = []
        async with serving(limits=AmqpLimits()) as (broker, namespace):
            await broker.tls.context()
            for said in (b"", tls_hello()[:99], b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                talk = await asyncio.open_connection("127.0.0.1", namespace.port)
                talk[1].write(said)
                talks.append(talk)
            assert await asyncio.wait_for(talks[2][0].readexactly(8), TOLERANCE_S) == b"HTTP/1.1"
            await eventually(lambda: namespace.connection_count == 3)
        for reader, writer in talks:
            await until_closed(reader)
            writer.close()
        await eventually(lambda: socket_count() <= before + 3)

    tell(story)


def test_closing_the_broker_leaves_nobody_in_a_black_hole(tell: Tell) -> None:
    """M8: the fault ends with its namespace; who it kept waiting is not let in any more."""

    async def story() -> None:
        before = socket_count()
        async with serving(limits=AmqpLimits()) as (_broker, namespace):
            fault = namespace.faults.add(Fault("cannot-contact", how="black-hole"))
            reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
            await eventually(lambda: namespace.faults.get(fault)["hit_count"] == 1)
        assert not namespace.listeners.acceptor.waiting
        await until_closed(reader)
        writer.close()
        await eventually(lambda: socket_count() <= before)

    tell(story)


def test_a_black_hole_holds_no_more_than_the_pool_of_strangers(tell: Tell) -> None:
    """M13, F5: the oldest connection in it makes room, like every other without a token."""

    async def story() -> None:
        async with serving(limits=AmqpLimits(), strangers_max=2) as (_broker, namespace):
            slots = namespace.listeners.acceptor.slots
            before = socket_count()
            fault = namespace.faults.add(Fault("cannot-contact", how="black-hole"))
            talks = []
            for number in range(1, 6):
                talks.append(await asyncio.open_connection("127.0.0.1", namespace.port))
                talks[-1][1].write(PROTOCOL_SASL)
                await eventually(lambda: namespace.faults.get(fault)["hit_count"] == len(talks))
                assert slots.stranger_count == min(number, 2)
            for reader, _writer in talks[:3]:
                assert (await until_closed(reader))[0] == b""
            # When the fault ends, those that are left are served, each with one slot.
            namespace.faults.clear(fault)
            for reader, _writer in talks[3:]:
                assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S) == PROTOCOL_SASL
            assert (slots.stranger_count, slots.evicted_count) == (2, 3)
            for _reader, writer in talks:
                writer.close()
            await eventually(lambda: slots.stranger_count == 0)
            await eventually(lambda: socket_count() <= before)

    tell(story)


def test_who_is_sent_away_in_the_moment_of_entering_is_gone(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: a task that is cancelled before its first step closes nothing by itself."""

    class Hasty(listeners.PendingConnection):
        def _peek(self) -> None:
            super()._peek()
            self.drop()

    monkeypatch.setattr(listeners, "PendingConnection", Hasty)

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (_broker, namespace):
            before = socket_count()
            async with connected(namespace.port) as (reader, writer):
                writer.write(PROTOCOL_SASL)
                assert await until_closed(reader)
            await eventually(lambda: socket_count() <= before)

    tell(story)


def test_shut_doors_open_again_on_the_same_ports(tell: Tell) -> None:
    """M9: who is inside stays, nobody comes in meanwhile."""

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (_broker, namespace):
            inside = await asyncio.open_connection("127.0.0.1", namespace.port)
            inside[1].write(PROTOCOL_SASL)
            assert await asyncio.wait_for(inside[0].readexactly(8), TOLERANCE_S)
            namespace.listeners.close_listeners()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", namespace.port)
            await namespace.listeners.open()
            assert namespace.listeners.port == namespace.port
            assert namespace.connection_count == 1
            async with connected(namespace.port) as (reader, writer):
                writer.write(PROTOCOL_SASL)
                assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S)
            inside[1].close()

    tell(story)


def test_without_a_descriptor_left_a_door_rests_and_goes_on(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """M6: connections wait in the kernel meanwhile; the loop does not spin."""
    monkeypatch.setattr(listeners, "PAUSE_S", 0.2)
    refusals = [OSError(24, "Too many open files")] * 3

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if refusals:
                raise refusals.pop()
            return super().accept()

    monkeypatch.setattr(listeners.socket, "socket", Listener)

    async def story() -> None:
        async with serving(limits=AmqpLimits()) as (_broker, namespace):
            began = time.monotonic()
            async with connected(namespace.port) as (reader, writer):
                writer.write(PROTOCOL_SASL)
                assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S)
            assert time.monotonic() - began >= 0.5
        assert caplog.text.count("no file descriptor is left") == 3

    tell(story)


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_every_address_of_a_host_has_the_same_port(tell: Tell, host: str) -> None:
    """M9: IPv4 and IPv6 lead to one namespace."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")

    async def story() -> None:
        async with serving(limits=AmqpLimits(), host=host) as (_broker, namespace):
            reader, writer = await asyncio.open_connection(host, namespace.port)
            writer.write(PROTOCOL_SASL)
            assert await asyncio.wait_for(reader.readexactly(8), TOLERANCE_S)
            writer.close()

    tell(story)


def test_with_tls_only_plain_text_is_refused_everywhere(tell: Tell, tmp_path: Path) -> None:
    """M6: on the namespace's port and on the administration's."""

    async def story() -> None:
        async with serving(
            limits=AmqpLimits(), tls_only=True, data_directory=tmp_path / "data"
        ) as (broker, namespace):
            administration = await broker.open_administration()
            assert administration is not None
            request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            for port, said in (
                (namespace.port, PROTOCOL_SASL),
                (namespace.port, request),
                (administration.port, request),
            ):
                async with connected(port) as (reader, writer):
                    writer.write(said)
                    assert (await until_closed(reader))[0] == b""
                reader, writer = await secured(broker, port)
                writer.write(said)
                assert await asyncio.wait_for(reader.readexactly(4), TOLERANCE_S) in (
                    b"AMQP",
                    b"HTTP",
                )
                writer.close()

    tell(story)


async def test_a_port_that_is_taken_is_told_apart_from_one_that_cannot_be_had() -> None:
    """M10: the one could have been used, the other is a wrong value."""
    (first,) = await listeners.bind("127.0.0.1", 0)
    with first, pytest.raises(PortTaken, match="is in use"):
        await listeners.bind("127.0.0.1", first.getsockname()[1])
    with pytest.raises(ConfigurationError, match="cannot be opened") as refused:
        await listeners.bind("198.51.100.7", 0)  # For documents; no machine has it
    assert not isinstance(refused.value, PortTaken)

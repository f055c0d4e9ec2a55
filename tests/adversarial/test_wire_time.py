"""Peers that take their time, and the moment at which the broker has waited long enough.

Cases 55 (slow loris) and 74 (silence), and the limits beside them. The broker runs in this
process, with short limits in place of the seconds and minutes of a real one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adversarial.raw_peer import RawPeer, Stage, Verdict, sender
from tests.support.amqp.in_memory import BEGIN, GREETING, HANDSHAKE, frame, frames_in
from twinbus.amqp.frames import HEARTBEAT, PROTOCOL_SASL
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.performatives import Accepted, Attach, Begin, Close, Disposition, Open
from twinbus.broker.access.sas import make_token
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.broker.server import connection as peer_module
from twinbus.common.connection_string import parse_connection_string

PATIENCE_S = 0.3
# Between the limit and this the peer must be gone, also on a busy machine.
TOLERANCE_S = 3.0

OPEN = frame(Open(container_id="slow"))


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[RunningNamespace]:
    """A broker in this process with one queue."""
    async with Broker(BrokerOptions(**options)) as broker:
        yield await broker.add_namespace(NamespaceSpec("demo", queues=("queue",)))


@asynccontextmanager
async def talking(namespace: RunningNamespace) -> AsyncIterator[Talk]:
    reader, writer = await asyncio.open_connection("127.0.0.1", namespace.port)
    try:
        yield Talk(reader, writer)
    finally:
        writer.close()


class Talk:
    """One plain connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def until_begun(self) -> None:
        """The connection is alive: the broker answers a begin."""
        said = b""
        while not any(isinstance(each, Begin) for _channel, each, _payload in frames_in(said)):
            more = await asyncio.wait_for(self.reader.read(4_096), TOLERANCE_S)
            assert more, "the broker closed the connection"
            said += more

    async def until_closed(self) -> tuple[bytes, float]:
        """Everything the broker said until it closed, and how long that took."""
        began = time.monotonic()
        try:
            said = await asyncio.wait_for(self.reader.read(), PATIENCE_S + TOLERANCE_S)
        except ConnectionError:
            said = b""
        return said, time.monotonic() - began


def condition_in(said: bytes) -> str:
    close = frames_in(said)[-1][1]
    assert isinstance(close, Close) and close.error is not None
    return str(close.error.condition)


STAGES = {
    "case-55-nothing": b"",
    "case-55-one-byte": b"A",
    "case-55-half-a-header": PROTOCOL_SASL[:5],
    "case-55-a-header": PROTOCOL_SASL,
    "case-55-sasl-done": GREETING,
    "case-55-amqp-header": HANDSHAKE,
    "case-55-half-an-open": HANDSHAKE + OPEN[:-1],
}


@pytest.mark.parametrize("said", STAGES.values(), ids=STAGES.keys())
async def test_a_peer_that_stops_in_its_handshake_is_dropped(said: bytes) -> None:
    limits = AmqpLimits(handshake_timeout_s=PATIENCE_S)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        talk.say(said)
        _said, seconds = await talk.until_closed()

    assert seconds >= PATIENCE_S * 0.8


async def test_case_55_a_slow_loris_is_dropped_although_it_goes_on() -> None:
    """One byte now and then does not buy more time."""
    limits = AmqpLimits(handshake_timeout_s=PATIENCE_S)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        dribbling = asyncio.create_task(dribble(talk, HANDSHAKE + OPEN))
        _said, seconds = await talk.until_closed()
        dribbling.cancel()

    assert seconds >= PATIENCE_S * 0.8


async def dribble(talk: Talk, data: bytes) -> None:
    for byte in data:
        talk.say(bytes((byte,)))
        await asyncio.sleep(0.05)


async def test_case_55_a_slow_peer_that_is_done_in_time_stays() -> None:
    """The token has a limit of its own, which begins with the open."""
    limits = AmqpLimits(handshake_timeout_s=PATIENCE_S, token_timeout_s=30)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        for part in (HANDSHAKE[:4], HANDSHAKE[4:], OPEN):
            talk.say(part)
            await asyncio.sleep(PATIENCE_S / 10)
        await asyncio.sleep(PATIENCE_S * 1.5)
        talk.say(frame(BEGIN))
        await talk.until_begun()


async def test_case_50_a_peer_that_shows_no_token_is_closed() -> None:
    """M6: otherwise anybody could take all the connections there are."""
    limits = AmqpLimits(token_timeout_s=PATIENCE_S)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        talk.say(HANDSHAKE + OPEN + frame(BEGIN))
        said, seconds = await talk.until_closed()

    assert condition_in(said) == "amqp:unauthorized-access"
    assert seconds >= PATIENCE_S * 0.8


async def test_a_peer_with_a_token_is_not_closed() -> None:
    limits = AmqpLimits(token_timeout_s=PATIENCE_S)
    async with serving(limits=limits) as namespace:
        talk = await asyncio.to_thread(authorized, namespace)
        await asyncio.sleep(PATIENCE_S * 1.5)
        talk.say(frame(BEGIN, 1))
        await asyncio.to_thread(talk.wait_for, Begin)
        talk.close()


def one_too_many(namespace: RunningNamespace) -> Verdict:
    """What a client hears instead of the answer to its token."""
    with RawPeer(namespace.port, token_of(namespace)).to(Stage.BEGUN) as raw:
        raw.ask_for_token_answer()
        return raw.verdict()


def authorized(namespace: RunningNamespace) -> RawPeer:
    return RawPeer(namespace.port, token_of(namespace)).to(Stage.AUTHORIZED)


def token_of(namespace: RunningNamespace) -> str:
    parsed = parse_connection_string(namespace.connection_string)
    return make_token(
        resource=f"sb://localhost:{namespace.port}/",
        rule_name=parsed.shared_access_key_name or "",
        key=parsed.shared_access_key or "",
        expires_s=int(time.time()) + 600,
    )


# -- case 74: silence -----------------------------------------------------------------------------


async def test_case_74_a_silent_peer_is_closed() -> None:
    """After twice what our open told it."""
    limits = AmqpLimits(idle_timeout_s=PATIENCE_S / 2)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        talk.say(HANDSHAKE + OPEN)
        said, seconds = await talk.until_closed()

    assert condition_in(said) == "amqp:resource-limit-exceeded"
    assert seconds >= PATIENCE_S * 0.8


async def test_case_74_heartbeats_keep_a_connection() -> None:
    limits = AmqpLimits(idle_timeout_s=PATIENCE_S)
    async with serving(limits=limits) as namespace, talking(namespace) as talk:
        talk.say(HANDSHAKE + OPEN)
        for _ in range(16):
            await asyncio.sleep(PATIENCE_S / 4)
            talk.say(HEARTBEAT)
        talk.say(frame(BEGIN))
        await talk.until_begun()


# -- the end of a connection ----------------------------------------------------------------------


async def test_a_peer_that_does_not_read_its_close_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guard G7: last words wait for a moment, not for ever."""
    monkeypatch.setattr(peer_module, "LINGER_S", PATIENCE_S)
    async with serving() as namespace, talking(namespace) as talk:
        talk.say(HANDSHAKE + OPEN + b"\x00\x00\x00\x00\x00\x00\x00\x00")
        await eventually(lambda: namespace.connection_count == 1)
        await eventually(lambda: namespace.connection_count == 0)


async def test_last_words_reach_a_peer_that_went_on_talking() -> None:
    """To close a socket with unread bytes takes back what was written: the broker waits."""
    async with serving() as namespace:
        for _ in range(20):
            async with talking(namespace) as talk:
                talk.say(HANDSHAKE + OPEN + frame(Close()) + bytes(60_000))
                said, _seconds = await talk.until_closed()
                assert [type(each) for _channel, each, _payload in frames_in(said)][-1] is Close


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TOLERANCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_case_168_one_authorized_connection_too_many_hears_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """M13: those with a token are counted by themselves, and strangers do not count among them."""
    async with serving(connections_max=2) as namespace:
        first = await asyncio.to_thread(authorized, namespace)
        second = await asyncio.to_thread(authorized, namespace)
        crowd = [await asyncio.open_connection("127.0.0.1", namespace.port) for _ in range(5)]
        await eventually(lambda: namespace.connection_count == 7)
        refused = await asyncio.to_thread(one_too_many, namespace)
        assert repr(refused) == "close(amqp:resource-limit-exceeded)"
        assert [record.message for record in caplog.records] == [
            "Namespace demo: too many connections"
        ]
        # A slot that becomes free can be taken again.
        first.close()
        await eventually(lambda: namespace.connection_count == 6)
        third = await asyncio.to_thread(authorized, namespace)
        for _reader, writer in crowd:
            writer.close()
        second.close()
        third.close()


async def test_a_mistake_of_ours_costs_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer hears an internal error and no more; the log has the rest."""

    def broken(*_arguments: object) -> None:
        raise KeyError("secret detail")

    caplog.set_level(logging.ERROR)
    async with serving() as namespace:
        innocent = await asyncio.to_thread(authorized, namespace)
        unlucky = await asyncio.to_thread(authorized, namespace)
        monkeypatch.setattr(peer_module, "settle", broken)
        unlucky.say(frame(Disposition(True, 0, 0, True, Accepted())))
        verdict = await asyncio.to_thread(unlucky.verdict)
        assert repr(verdict) == "close(amqp:internal-error)"
        assert b"secret detail" not in unlucky.heard
        assert "secret detail" in caplog.text

        innocent.say(sender("queue", 5))
        attach = await asyncio.to_thread(innocent.wait_for, Attach)
        assert attach.target is not None
        innocent.close()
        unlucky.close()

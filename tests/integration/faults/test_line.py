"""A bad line: bytes are late or wait, in order, and are never lost or changed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.integration.faults.switchboard import PATIENCE_S, Switchboard
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.connection import ConnectionState
from twinbus.broker.faults import Fault
from twinbus.broker.faults.degraded_connection import WAITING_BYTES_MAX, DegradedConnection, Pipe
from twinbus.broker.faults.registry import ActiveFault


def slow(latency_ms: float, jitter_ms: float = 0, bytes_per_s: float | None = None) -> ActiveFault:
    fault = Fault(
        "cannot-contact",
        how="slow",
        latency_ms=latency_ms,
        jitter_ms=jitter_ms,
        bytes_per_s=bytes_per_s,
        seed=1,
    )
    return ActiveFault(fault, 0.0)


class Pipework:
    """A pipe whose timers the test fires."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.timers: list[Callable[[], None]] = []
        self.pipe = Pipe(self._later, self.out.append, lambda: None)

    def _later(self, _delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append(action)

    def fire(self) -> None:
        while self.timers:
            self.timers.pop(0)()


def test_jitter_never_changes_the_order() -> None:
    """F5: a slow line is slow, and nothing else."""
    work, chance = Pipework(), Random(3)
    sent = [chance.randbytes(8) for _ in range(50)]
    faults = [slow(50, jitter_ms=50)]
    for n, data in enumerate(sent):
        work.pipe.push(data, n * 0.001, faults)
    work.fire()
    assert work.out == sent
    assert work.pipe.byte_count == 0


def test_a_dead_pipe_keeps_everything_until_it_heals() -> None:
    """F5: what was written into a black hole comes out when it is gone."""
    work = Pipework()
    work.pipe.is_dead = True
    for data in (b"one", b"two"):
        work.pipe.push(data, 0.0, [])
    work.fire()
    assert work.out == []
    work.pipe.empty()
    assert work.out == [b"one", b"two"]


def test_few_bytes_a_second_take_their_time() -> None:
    work = Pipework()
    work.pipe.push(b"x" * 100, 0.0, [slow(0, bytes_per_s=100)])
    work.pipe.pump(0.99)
    assert work.out == []
    work.pipe.pump(1.0)
    assert work.out == [b"x" * 100]


class Gate:
    def __init__(self) -> None:
        self.reasons = 0

    def stop(self, reason: int) -> None:
        self.reasons |= reason

    def go_on(self, reason: int) -> None:
        self.reasons &= ~reason


class FakePeer:
    """As much of a peer as a line knows."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.written: list[bytes] = []
        self.pauses: list[str] = []
        self.input = Gate()
        self.connection = type("Connection", (), {"phase": ConnectionState.RUNNING})()
        self.transport = type(
            "Transport",
            (),
            {"write": lambda _self, data: self.written.append(data), "is_closing": lambda _: False},
        )()
        loop = asyncio.get_running_loop()
        board = type("Board", (), {"later": staticmethod(loop.call_later)})()
        self.namespace = type("Namespace", (), {"faults": board})()
        self.line: Any = None

    def data_received(self, data: bytes) -> None:
        if self.line is not None and self.line.holds(data):
            return
        self.read.append(data)

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")


async def test_what_arrives_later_does_not_overtake_what_is_still_under_way() -> None:
    """F5: one fault ends, another begins, and the bytes stay in order."""
    peer = FakePeer()
    peer.line = line = DegradedConnection(peer)  # type: ignore[arg-type]
    line.apply([slow(30)])
    peer.data_received(b"first")
    hole = ActiveFault(Fault("cannot-contact", how="half-open", seed=1), 0.0)
    line.apply([hole])
    peer.data_received(b"second")
    assert peer.read == []
    deadline_s = time.monotonic() + 10
    while len(peer.read) < 2 and time.monotonic() < deadline_s:
        await asyncio.sleep(0.01)
    assert peer.read == [b"first", b"second"]


async def test_a_full_line_stops_the_peer_and_an_empty_one_lets_it_go_on() -> None:
    """F5: what waits is bounded."""
    peer = FakePeer()
    peer.line = line = DegradedConnection(peer)  # type: ignore[arg-type]
    line.apply([ActiveFault(Fault("cannot-contact", how="black-hole", seed=1), 0.0)])
    assert peer.input.reasons
    line.write(b"x" * WAITING_BYTES_MAX)
    line.write(b"x")
    assert (peer.pauses, peer.written) == (["pause"], [])
    peer.line = None
    line.restore()
    assert peer.pauses == ["pause", "resume"]
    assert sum(map(len, peer.written)) == WAITING_BYTES_MAX + 1
    assert not peer.input.reasons


def test_a_black_hole_swallows_a_tls_handshake_and_gives_it_back(
    broker: BrokerProcess, faults: Switchboard
) -> None:
    """F5: silent from the first byte on, before anybody knows what a client speaks."""
    context = ssl.create_default_context(cafile=broker.ca_path)
    with faults.on("cannot-contact", how="black-hole"):
        raw = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)
        quiet = context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
        with pytest.raises(TimeoutError):
            quiet.do_handshake()
        quiet.close()
        patient = socket.create_connection(("127.0.0.1", broker.port), timeout=20)
        patient.sendall(b"AMQP\x03\x01\x00\x00")
    assert patient.recv(8) == b"AMQP\x03\x01\x00\x00"
    patient.close()


def test_a_refused_connection_is_refused_by_the_operating_system(
    broker: BrokerProcess, faults: Switchboard
) -> None:
    """F5: nobody listens, and then the same port is open again."""
    with faults.on("cannot-contact", how="refuse"), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=20)
    socket.create_connection(("127.0.0.1", broker.port), timeout=20).close()

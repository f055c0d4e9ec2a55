"""Evicted connections that stay open while a flood lasts: how many, and for how long."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from twinbus.broker.listener import tarpit
from twinbus.broker.listener.tarpit import Tarpit


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarpit, "HOLD_S", 0.3)
    monkeypatch.setattr(tarpit, "TICK_S", 0.01)
    monkeypatch.setattr(tarpit, "RELEASES_PER_S", 1_000)


def evicted(pit: Tarpit, idle_s: float = 1.0, said: bytes = b"") -> socket.socket:
    """The peer's side of a connection that was evicted."""
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    pit.keep(ours, idle_s)
    ours.close()
    theirs.setblocking(False)
    return theirs


def is_open(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) != b""
    except BlockingIOError:
        return True


async def begin_flood(pit: Tarpit) -> None:
    """Not at the end of a second, where the count begins anew."""
    while asyncio.get_running_loop().time() % 1 > 0.5:
        await asyncio.sleep(0.05)
    for _ in range(tarpit.FREE_PER_S):
        with evicted(pit) as peer:
            assert not is_open(peer)


async def test_without_a_flood_an_evicted_connection_is_closed() -> None:
    """M13: a client that is evicted hears of it at once, and dials again."""
    pit = Tarpit(10)
    await begin_flood(pit)
    assert len(pit) == 0


async def test_in_a_flood_it_stays_open_for_a_while() -> None:
    """M13: it is not dialled anew, and does not wait before new clients."""
    pit = Tarpit(10)
    await begin_flood(pit)
    with evicted(pit) as peer:
        began_s = asyncio.get_running_loop().time()
        assert is_open(peer) and len(pit) == 1
        while is_open(peer):
            await asyncio.sleep(0.01)
        assert 0.25 < asyncio.get_running_loop().time() - began_s < 5
    assert len(pit) == 0


async def test_what_could_be_a_client_that_goes_on_is_closed() -> None:
    """M13: it has taken a step just now, or has said what was not read yet."""
    pit = Tarpit(10)
    await begin_flood(pit)
    for peer in (evicted(pit, idle_s=0.01), evicted(pit, said=b"AMQP")):
        with peer, pytest.raises(ConnectionError):
            peer.sendall(b"more")
    assert len(pit) == 0


async def test_the_oldest_makes_room() -> None:
    """M13: descriptors are bounded."""
    pit = Tarpit(3)
    await begin_flood(pit)
    peers = [evicted(pit) for _ in range(5)]
    assert [is_open(peer) for peer in peers] == [False, False, True, True, True]
    assert pit.clear() and not pit.clear()
    assert not any(map(is_open, peers))
    for peer in peers:
        peer.close()


async def test_they_are_closed_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: those who dial anew do not come all at once."""
    monkeypatch.setattr(tarpit, "HOLD_S", 0.0)
    monkeypatch.setattr(tarpit, "TICK_S", 0.1)
    monkeypatch.setattr(tarpit, "RELEASES_PER_S", 20)
    pit = Tarpit(10)
    await begin_flood(pit)
    peers = [evicted(pit) for _ in range(10)]
    await asyncio.sleep(0.15)
    assert len(pit) == 8
    for peer in peers:
        peer.close()
    pit.clear()


async def test_without_room_nothing_is_kept() -> None:
    """M13: a broker inside of an application keeps no descriptors."""
    pit = Tarpit(0)
    await begin_flood(pit)
    with evicted(pit) as peer:
        assert not is_open(peer)


async def test_without_a_descriptor_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: nothing fails for want of one."""
    pit = Tarpit(10)
    await begin_flood(pit)

    def none_left(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    with evicted(pit) as peer:
        assert not is_open(peer)
    assert len(pit) == 0

"""Evicted connections that stay open for a while, without service, during a flood.

A client that reconnects at once makes a new connection for each one that is evicted. All of them
wait in the listener's queue, which is first in, first out, and every new client waits behind them:
three seconds with 5,000 such connections. A connection that is kept open is not replaced.

    evicted --few in a second, or not idle--> closed
       |
       +--- many ---> kept, with nothing but its descriptor --HOLD_S, and RELEASES_PER_S--> closed

Rule 1: a kept connection has a file descriptor and no other state. Nothing is read from it and
        nothing is written to it.
Rule 2: what could be a working client is closed at once, so that it can reconnect: the first
        evictions of a second (without a flood nothing is kept), a connection that made progress a
        moment ago, and one with bytes that wait to be read or for their turn.
Rule 3: descriptors are bounded by the capacity. The oldest is closed for a newer one.
Rule 4: they are closed slowly, so that clients do not all reconnect at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from typing import Final

__all__ = ["Tarpit", "has_unread"]

# Evictions in a second that do not count as a flood.
FREE_PER_S: Final = 32
# Half of what a handshake may take.
HOLD_S: Final = 5.0
RELEASES_PER_S: Final = 1_000
# A client makes its next step as soon as it has our response, which takes a turn or two. In a
# flood of thousands in a second a connection that waits is evicted after a tenth of a second.
IDLE_S_MIN: Final = 0.05
TICK_S: Final = 0.1
# Received bytes that the kernel keeps for a connection: the minimum.
RECEIVE_BUFFER_BYTES: Final = 4_096


class Tarpit:
    """The kept connections of one set of listeners."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: deque[tuple[float, int]] = deque()
        """When each was added, and its descriptor; the oldest first."""
        self._second = 0
        self._count = 0
        self._tick: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, connection: socket.socket, idle_s: float) -> None:
        """The connection is about to be closed by its owner; in a flood it stays open here.

        ``idle_s`` is the time since the last step of its handshake.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if not self.capacity or not self._is_flood(now_s) or idle_s < IDLE_S_MIN:
            return
        if has_unread(connection):
            return
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            descriptor = os.dup(connection.fileno())
        except OSError:
            return  # It is closed already, or there is no descriptor for it.
        while len(self._kept) >= self.capacity:
            self._release()
        self._kept.append((now_s, descriptor))
        if self._tick is None:
            self._tick = loop.call_later(TICK_S, self._on_tick)

    def _is_flood(self, now_s: float) -> bool:
        if int(now_s) != self._second:
            self._second, self._count = int(now_s), 0
        self._count += 1
        return self._count > FREE_PER_S

    def _on_tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick = None
        before_s = loop.time() - HOLD_S
        for _ in range(int(RELEASES_PER_S * TICK_S)):
            if not self._kept or self._kept[0][0] > before_s:
                break
            self._release()
        if self._kept:
            self._tick = loop.call_later(TICK_S, self._on_tick)

    def _release(self) -> None:
        os.close(self._kept.popleft()[1])

    def clear(self) -> bool:
        """Close all of them; returns whether there were any."""
        had_any = bool(self._kept)
        while self._kept:
            self._release()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        return had_any


def has_unread(connection: socket.socket) -> bool:
    """Whether bytes have arrived that were not read yet."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False  # There are none, or the connection is closed.

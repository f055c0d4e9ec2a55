"""The wire between one peer and its socket, while it is a bad one.

A healthy peer has no line: it reads from and writes to its transport.

Rule 1: bytes are late or wait, in order; none is ever dropped or changed. When the line heals,
        what waited goes on, as TCP would send it again after a network came back.
Rule 2: what waits is bounded: a line that is full stops the peer like a socket that is full.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.connection import ConnectionState
from twinbus.broker.faults.registry import ActiveFault
from twinbus.broker.read_gate import FROZEN

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

WAITING_BYTES_MAX: Final = 1 << 20
# struct linger: on, for zero seconds. Closing then sends a reset instead of a goodbye.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Pipe:
    """One direction: bytes come out in order, each when its time has come."""

    def __init__(
        self,
        later: Callable[..., Any],
        sink: Callable[[bytes], None],
        relieved: Callable[[], None],
    ) -> None:
        self._later = later
        self._sink = sink
        self._relieved = relieved
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_at_s = 0.0
        self._is_scheduled = False
        self.byte_count = 0
        self.is_dead = False

    def push(self, data: bytes, now_s: float, faults: list[ActiveFault]) -> None:
        """Take bytes that set out now over a line with those faults."""
        due_s = now_s
        for active in faults:
            due_s += active.latency_s()
            if active.fault.bytes_per_s is not None:
                self._free_at_s = max(self._free_at_s, now_s) + len(data) / active.fault.bytes_per_s
                due_s = max(due_s, self._free_at_s)
        if self._waiting:
            due_s = max(due_s, self._waiting[-1][0])
        self._waiting.append((due_s, data))
        self.byte_count += len(data)
        self.pump(now_s)

    def pump(self, now_s: float) -> None:
        """Let out what is due; come back for the rest."""
        while self._waiting and not self.is_dead and self._waiting[0][0] <= now_s:
            _due_s, data = self._waiting.popleft()
            self.byte_count -= len(data)
            self._sink(data)
            self._relieved()
        if self._waiting and not self.is_dead and not self._is_scheduled:
            self._is_scheduled = True
            self._later(max(0.0, self._waiting[0][0] - now_s), self._wake)

    def _wake(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            self.pump(self._waiting[0][0])

    def empty(self) -> None:
        """Let everything out at once."""
        self.is_dead = False
        self.pump(float("inf"))


class DegradedConnection:
    """Both directions of one connection."""

    def __init__(self, peer: ClientConnection) -> None:
        self._peer = peer
        self._registry = peer.namespace.faults
        self._slow: list[ActiveFault] = []
        self._inward = Pipe(self._registry.later, self._arrive, self._balance)
        self._outward = Pipe(self._registry.later, self._leave, self._balance)
        self._is_passing = False
        self._has_paused = False
        self.is_frozen = False
        """A direction is dead: neither silence nor a late handshake is the client's fault."""

    def tune(self, faults: list[ActiveFault]) -> None:
        """From now on the line has these faults."""
        hows = {(each.fault.how, each.fault.direction) for each in faults}
        is_hole = any(how == "black-hole" for how, _direction in hows)
        is_deaf = is_hole or ("half-open", "from-client") in hows
        self._outward.is_dead = is_hole or ("half-open", "to-client") in hows
        self.is_frozen = is_deaf or self._outward.is_dead
        self._slow = [each for each in faults if each.fault.how == "slow"]
        if is_deaf:
            self._peer.input.stop(FROZEN)
        else:
            self._peer.input.go_on(FROZEN)
        self._outward.pump(self._now_s())

    def heal(self) -> None:
        """The line is good again; the peer uses its transport itself from now on."""
        self._inward.empty()
        self._outward.empty()
        self._peer.input.go_on(FROZEN)
        self._balance()

    # -- inward ---------------------------------------------------------------------------

    def holds(self, data: bytes) -> bool:
        """Whether the line keeps what arrived; the peer gets it later through _arrive()."""
        if self._is_passing or not (self._slow or self._inward.byte_count):
            # What came before may still be on its way: nothing overtakes it.
            return False
        self._inward.push(data, self._now_s(), self._slow)
        self._balance()
        return True

    def _arrive(self, data: bytes) -> None:
        if not self._is_connected:
            return
        self._is_passing = True
        try:
            self._peer.data_received(data)
        finally:
            self._is_passing = False

    # -- outward --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._outward.push(data, self._now_s(), self._slow)
        if self._peer.connection.phase is ConnectionState.CLOSED and not self._outward.is_dead:
            # The socket is closed behind the last words; they must not come too late for it.
            self._outward.empty()
        self._balance()

    def _leave(self, data: bytes) -> None:
        if self._is_connected and self._peer.transport is not None:
            self._peer.transport.write(data)

    @property
    def _is_connected(self) -> bool:
        transport = self._peer.transport
        return transport is not None and not transport.is_closing()

    def _balance(self) -> None:
        """A full line stops the peer, an empty one lets it go on."""
        is_full = self._outward.byte_count + self._inward.byte_count > WAITING_BYTES_MAX
        if is_full is not self._has_paused:
            self._has_paused = is_full
            if is_full:
                self._peer.pause_writing()
            else:
                self._peer.resume_writing()

    def _now_s(self) -> float:
        # The loop's clock: a test that moves the broker's clock does not make a wire faster.
        return asyncio.get_running_loop().time()


def hang_up(peer: ClientConnection) -> None:
    """Cut a connection as a broken network does, without a word."""
    if peer.transport is not None:
        reset(peer.transport)


def reset(transport: Any) -> None:
    """Close a connection with a TCP reset, whatever was still to be said."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        reset_on_close(raw)
    transport.abort()


def reset_on_close(connection: Any) -> None:
    """Let a socket end with a reset."""
    with suppress(OSError, ValueError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

"""One connection while a fault makes its network slow or frozen.

A connection without a fault has no DegradedConnection: it uses its transport directly.

Rule 1: bytes are delayed, in order; none is ever dropped or changed. When the fault ends, the
        delayed bytes are passed on, as TCP would retransmit them after an outage of the network.
Rule 2: the delayed bytes are bounded: when there are too many, the connection is paused, as with a
        full socket buffer.
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
# struct linger: on, for zero seconds. Closing then sends a reset instead of a FIN.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Pipe:
    """One direction: bytes are passed on in order, each when it is due."""

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
        """Accept bytes that are sent now over a connection with those faults."""
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
        """Pass on what is due, and schedule the rest."""
        while self._waiting and not self.is_dead and self._waiting[0][0] <= now_s:
            _due_s, data = self._waiting.popleft()
            self.byte_count -= len(data)
            self._sink(data)
            self._relieved()
        if self._waiting and not self.is_dead and not self._is_scheduled:
            self._is_scheduled = True
            self._later(max(0.0, self._waiting[0][0] - now_s), self._on_due)

    def _on_due(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            self.pump(self._waiting[0][0])

    def empty(self) -> None:
        """Pass everything on at once."""
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
        """A direction is dead: silence or a late handshake is not held against the client."""

    def apply(self, faults: list[ActiveFault]) -> None:
        """From now on the connection has these faults."""
        hows = {(each.fault.how, each.fault.direction) for each in faults}
        is_black_hole = any(how == "black-hole" for how, _direction in hows)
        is_inward_dead = is_black_hole or ("half-open", "from-client") in hows
        self._outward.is_dead = is_black_hole or ("half-open", "to-client") in hows
        self.is_frozen = is_inward_dead or self._outward.is_dead
        self._slow = [each for each in faults if each.fault.how == "slow"]
        if is_inward_dead:
            self._peer.input.stop(FROZEN)
        else:
            self._peer.input.go_on(FROZEN)
        self._outward.pump(self._now_s())

    def restore(self) -> None:
        """The faults have ended; from now on the connection uses its transport directly."""
        self._inward.empty()
        self._outward.empty()
        self._peer.input.go_on(FROZEN)
        self._balance()

    # -- inward ---------------------------------------------------------------------------

    def holds(self, data: bytes) -> bool:
        """Whether received bytes are delayed; the connection gets them later from _arrive()."""
        if self._is_passing or not (self._slow or self._inward.byte_count):
            # Earlier bytes may still be delayed: nothing overtakes them.
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
            # The socket is closed after the last frame, which must not be delayed beyond that.
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
        """Pause the connection while too many bytes are delayed, and resume it after that."""
        is_full = self._outward.byte_count + self._inward.byte_count > WAITING_BYTES_MAX
        if is_full is not self._has_paused:
            self._has_paused = is_full
            if is_full:
                self._peer.pause_writing()
            else:
                self._peer.resume_writing()

    def _now_s(self) -> float:
        # The loop's clock: a test that moves the broker's clock does not make a network faster.
        return asyncio.get_running_loop().time()


def reset_connection(peer: ClientConnection) -> None:
    """Reset a connection without a close frame, as a broken network does."""
    if peer.transport is not None:
        reset(peer.transport)


def reset(transport: Any) -> None:
    """Close a connection with a TCP reset; bytes that were not sent are lost."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        reset_on_close(raw)
    transport.abort()


def reset_on_close(connection: Any) -> None:
    """Have a socket close with a reset."""
    with suppress(OSError, ValueError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

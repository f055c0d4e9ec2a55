"""The event loop's time, shared by connections: a turn for each, in the order of fair_queue.py.

    input --> no flow waits, time is left --> processed at once
              otherwise -------------------> queue --> a turn, in a later iteration of the loop

Rule 1: in one iteration of the loop, connections are processed for ITERATION_S, then sockets and
        commits have their turn; so a connection that was idle waits no longer than that, however
        many others wait.
Rule 2: while no flow waits, this costs two reads of a clock for each read of a connection.
Rule 3: a key that has its share of the pending bytes waits until some are on disk, its connections
        in the same fair order.
Rule 4: in this order the bytes of a turn count as time, the more of them wait for the disk. If only
        time counted, a connection with many small requests would wait until each of those with
        large messages, whose turns are rare and short, had used as much of it: for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from twinbus.broker.fairness.fair_queue import FairQueue, Flow
from twinbus.broker.fairness.shares import NO_TOKEN


class Loop(Protocol):
    """What a namespace needs of an event loop; a simulation passes its own."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...

    def create_future(self) -> asyncio.Future[Any]: ...


# One read can bring thousands of frames of 5 to 100 microseconds each. After this time others
# have their turn. An ordinary read of single messages is done within it.
TURN_S = 0.003
# After this much processing the loop polls its sockets again.
ITERATION_S = 0.003
# The maximum for several turns in one iteration: the last of them is shorter.
ITERATION_S_MAX = 0.0035
# The cost of a byte when the maximum of pending bytes is reached: a turn stores 64 KB, so
# a connection that stores less than others of its key precedes them, whatever its requests cost.
SCARCE_BYTE_S = TURN_S / (64 << 10)
# The time of connections without a token counts this much more: one whole turn of one of them,
# which is shorter than others', ends the iteration.
STRANGERS_TIME_COUNTS = 6


class Turns:
    """The turns of a broker's connections. All methods run on the loop's thread."""

    def __init__(self, loop: Loop, iteration_s: float = ITERATION_S) -> None:
        self._loop = loop
        self._iteration_s = iteration_s
        self._queue = FairQueue(TURN_S)
        self._is_scheduled = False
        self._spent_s = 0.0
        self.turn_s = TURN_S
        """How long the turn may be that begins now."""

    def join(self, key: Hashable = NO_TOKEN) -> PeerTurns:
        """Register a connection."""
        return PeerTurns(self, self._queue.join(_nothing, key))

    # -- the queue ------------------------------------------------------------------------

    def wait(self, flow: Flow) -> None:
        self._queue.push(flow)
        self._schedule()

    def leave(self, flow: Flow) -> None:
        self._queue.leave(flow)

    def move(self, flow: Flow, key: Hashable, may_go: Callable[[], bool]) -> None:
        self._queue.move(flow, key, may_go)

    def is_free(self) -> bool:
        """Whether input can be processed at once: no flow waits, and this iteration has time."""
        return self._spent_s < self._iteration_s and not self._queue.has_ready

    def spent(self, flow: Flow, seconds: float, own_cost_s: float) -> None:
        # A longer time is mostly not the connection's: the process had to wait for a CPU.
        seconds = min(seconds, 2 * TURN_S)
        is_stranger = flow.group.key is NO_TOKEN
        self._spent_s += seconds * STRANGERS_TIME_COUNTS if is_stranger else seconds
        self._queue.charge(flow, seconds, own_cost_s)

    def release(self) -> None:
        """Bytes are on disk: keys that waited for that may continue."""
        if self._queue.release():
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        queue = self._queue
        while self._spent_s < self._iteration_s and (flow := queue.pop()) is not None:
            group = flow.group  # It may send a token in its turn, and then has another group.
            self.turn_s = min(TURN_S, ITERATION_S_MAX - self._spent_s)
            flow.take_turn()
            queue.served(group)
        self.turn_s = TURN_S
        if queue.has_ready:
            self._schedule()


class PeerTurns:
    """The turns of one connection."""

    def __init__(self, turns: Turns, flow: Flow) -> None:
        self._turns = turns
        self._flow = flow
        self._is_gone = False

    def use_key(self, key: Hashable, may_go: Callable[[], bool]) -> None:
        """The connection has sent a token of this key; ``may_go`` is whether it may have turns."""
        self._turns.move(self._flow, key, may_go)

    def leave(self) -> None:
        """The connection is closed."""
        self._is_gone = True
        self._turns.leave(self._flow)

    @property
    def is_free(self) -> bool:
        """Whether the connection's input can be processed without waiting."""
        return self._turns.is_free() and self._flow.group.may_go()

    @property
    def turn_s(self) -> float:
        """How long the turn may be that begins now."""
        return self._turns.turn_s

    def call_soon(self, take_turn: Callable[[], None]) -> None:
        """Wait for a turn."""
        if not self._is_gone:
            self._flow.take_turn = take_turn
            self._turns.wait(self._flow)

    def spent(self, seconds: float, scarce_bytes: float = 0.0) -> None:
        """Charge the time of a turn, and its bytes that wait for the disk (rule 4)."""
        if not self._is_gone:
            self._turns.spent(self._flow, seconds, scarce_bytes * SCARCE_BYTE_S)


def _nothing() -> None:
    """The flow has not asked for a turn yet."""

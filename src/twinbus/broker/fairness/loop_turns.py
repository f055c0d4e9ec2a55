"""The loop's time, shared among connections: a turn for each, in the order of fair_queue.py.

    bytes come --> nobody waits, time is left --> the peer works at once
                   otherwise ------------------> queue --> a turn, in a later iteration of the loop

Rule 1: in one iteration of the loop peers work for ITERATION_S, then sockets and commits have their
        turn; so whoever has been quiet waits for that, however many others wait.
Rule 2: as long as nobody waits, a peer pays for this with two looks at a clock for each read.
Rule 3: a key that has its share of the pending bytes waits until some are on disk, its peers in the
        same fair order.
Rule 4: in that order the bytes of a turn count as time, the more of them wait for the disk. If time
        alone counted, a connection with many small requests would wait until each of those with
        large messages, whose turns are rare and short, had had as much of it: for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from twinbus.broker.fairness.fair_queue import FairQueue, Flow
from twinbus.broker.fairness.shares import ANYBODY


class Loop(Protocol):
    """What a namespace needs of an event loop; a simulation brings its own."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...

    def create_future(self) -> asyncio.Future[Any]: ...


# One read can bring thousands of frames of 5 to 100 microseconds each. After this time others
# have their turn. An ordinary read of single messages is done within it.
TURN_S = 0.003
# After so much work of peers the loop looks at its sockets again.
ITERATION_S = 0.003
# What several turns in one iteration may take together: the last of them is shorter.
ITERATION_S_MAX = 0.0035
# What a byte costs when there is room for no more of them before the disk: a turn stores 64 KB, so
# a connection that stores less than its siblings is ahead of them whatever its requests take.
SCARCE_BYTE_S = TURN_S / (64 << 10)
# The time of strangers counts for so much more there: one whole turn of one of them, which is
# shorter than others', ends the iteration.
STRANGERS_TIME_COUNTS = 6


class Turns:
    """Gives the connections of a broker their turns. All methods run on the loop's thread."""

    def __init__(self, loop: Loop, iteration_s: float = ITERATION_S) -> None:
        self._loop = loop
        self._iteration_s = iteration_s
        self._queue = FairQueue(TURN_S)
        self._is_scheduled = False
        self._spent_s = 0.0
        self.turn_s = TURN_S
        """How long the turn may be that begins now."""

    def join(self, key: Hashable = ANYBODY) -> PeerTurns:
        """A connection that will want turns."""
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
        """Whether a peer may work at once: nobody waits and this iteration has time left."""
        return self._spent_s < self._iteration_s and not self._queue.has_ready

    def spent(self, flow: Flow, seconds: float, own_cost_s: float) -> None:
        # What is longer was mostly the machine's doing: a process that had to wait.
        seconds = min(seconds, 2 * TURN_S)
        is_stranger = flow.group.key is ANYBODY
        self._spent_s += seconds * STRANGERS_TIME_COUNTS if is_stranger else seconds
        self._queue.charge(flow, seconds, own_cost_s)

    def release(self) -> None:
        """Bytes are on disk: keys that waited for that may go on."""
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
            group = flow.group  # It may show a token in its turn, and then has another one.
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
        """The connection has shown a token of that key, which has turns only when it may go."""
        self._turns.move(self._flow, key, may_go)

    def leave(self) -> None:
        """The connection is gone."""
        self._is_gone = True
        self._turns.leave(self._flow)

    @property
    def is_free(self) -> bool:
        """Whether the connection need not wait for its turn."""
        return self._turns.is_free() and self._flow.group.may_go()

    @property
    def turn_s(self) -> float:
        """How long the turn may be that begins now."""
        return self._turns.turn_s

    def call_soon(self, take_turn: Callable[[], None]) -> None:
        """Have the turn when it is time."""
        if not self._is_gone:
            self._flow.take_turn = take_turn
            self._turns.wait(self._flow)

    def spent(self, seconds: float, scarce_bytes: float = 0.0) -> None:
        """A turn took so long, and so much of what its key's connections wait for (rule 4)."""
        if not self._is_gone:
            self._turns.spent(self._flow, seconds, scarce_bytes * SCARCE_BYTE_S)


def _nothing() -> None:
    """Nobody has asked for a turn yet."""

"""The bytes that the broker keeps in memory for slow connections.

    input    an incomplete frame or delivery                    BufferedInput
    output   what the client has not read                       BufferedOutput
    replies  replies that wait for credit on their link         BufferedOutput, too

Each connection has its own limits, and there are thousands of connections; so all of them share
a capacity as well, by key and connection (shares.py).

Rule 1: while the capacity is used up, connections of a key above its share are not read from if
        their input is incomplete, and not written to unless they read; those of other keys are not
        affected.
Rule 2: a connection that waits for input capacity for INPUT_WAIT_S is closed, or at once if twice
        the capacity is used: the capacity is used by its own key, and may never become free.
Rule 3: for a connection that completes its frames and reads its output, the cost is a comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from twinbus.broker.fairness.shares import Holder, SharedCapacity
from twinbus.broker.read_gate import ROOM, ReadGate

# For each namespace. A frame has up to 1 MiB: 96 clients can have an incomplete one.
INPUT_BYTES_MAX: Final = 96 << 20
OUTPUT_BYTES_MAX: Final = 96 << 20
# Less than this is not counted, for one connection.
INPUT_BYTES_COUNTED: Final = 16 << 10
OUTPUT_BYTES_COUNTED: Final = 64 << 10
# Output that waits for one connection; above it, its receivers get no more messages.
OUTPUT_BYTES_HIGH: Final = 1 << 20
# Replies of one connection that wait for credit.
REPLIES_BYTES_HIGH: Final = 4 << 20
INPUT_WAIT_S: Final = 3.0


class Timers(Protocol):
    def call_later(
        self, delay: float, callback: Callable[[], object], /
    ) -> asyncio.TimerHandle: ...


class BufferedInput:
    """The incomplete input of one connection."""

    __slots__ = ("_gate", "_give_up", "_shared", "_timer", "_timers", "holder")

    def __init__(
        self,
        shared: SharedCapacity,
        gate: ReadGate,
        timers: Timers,
        give_up: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._gate = gate
        self._timers = timers
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None
        self.holder: Holder = shared.join()

    def holds(self, size: int) -> None:
        """Set how many bytes are buffered, because the input is incomplete."""
        if size < INPUT_BYTES_COUNTED:
            size = 0
        more = size - self.holder.used
        if more > 0:
            self._shared.take(self.holder, more)
            if not self._shared.has_room(self.holder.account):
                self._wait()
        elif more < 0:
            self._shared.give_back(self.holder, -more)
            self._resume_others()

    def _wait(self) -> None:
        if self._shared.used > 2 * self._shared.capacity:
            self._give_up()
            return
        self._gate.stop(ROOM)
        self._shared.waiting[self._go_on] = None
        if self._timer is None:
            self._timer = self._timers.call_later(INPUT_WAIT_S, self._give_up)

    def _go_on(self) -> None:
        self._stop_timer()
        self._gate.go_on(ROOM)

    def _resume_others(self) -> None:
        """Resume as many connections as there is capacity for frames, in their order."""
        shared = self._shared
        left = (shared.capacity - shared.used) >> 20
        while shared.waiting and left > 0:
            go_on = next(iter(shared.waiting))
            del shared.waiting[go_on]
            go_on()
            left -= 1

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The connection is closed."""
        self._stop_timer()
        self._shared.waiting.pop(self._go_on, None)
        self._shared.give_back(self.holder, self.holder.used)
        self._shared.leave(self.holder)
        self._resume_others()


class BufferedOutput:
    """What a client has not read yet: in the transport, and for links without credit."""

    __slots__ = ("_is_closed", "_shared", "_written", "holder", "replies")

    def __init__(self, shared: SharedCapacity) -> None:
        self._shared = shared
        self._is_closed = False
        self._written = 0
        self.replies = 0
        """Bytes of replies that wait for credit."""
        self.holder: Holder = shared.join()

    def wrote(self, size: int) -> bool:
        """Set how many bytes wait in the transport; returns whether more may be written."""
        more = size - self._written
        self._written = size
        if more > 0:
            self._shared.take(self.holder, more)
        else:
            self._shared.give_back(self.holder, -more)
        return not size or (size < OUTPUT_BYTES_HIGH and self.has_room)

    @property
    def has_room(self) -> bool:
        """Whether its key may buffer more bytes."""
        return self._shared.has_room(self.holder.account)

    def keeps_reply(self, size: int) -> None:
        if not self._is_closed:
            self.replies += size
            self._shared.take(self.holder, size)

    def sends_reply(self, size: int) -> None:
        if not self._is_closed:
            self.replies -= size
            self._shared.give_back(self.holder, size)

    @property
    def may_keep_replies(self) -> bool:
        """Whether another reply may wait for credit."""
        return self.replies < REPLIES_BYTES_HIGH and self.has_room

    def close(self) -> None:
        """The connection is closed."""
        self._shared.give_back(self.holder, self.holder.used)
        self._written = self.replies = 0
        self._is_closed = True
        self._shared.leave(self.holder)

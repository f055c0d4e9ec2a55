"""Which connection has the next turn: start-time fair queueing, by key and then by connection.

Every waiting flow has a start tag: the time at which its last turn would have ended if all had had
the same pace; the lowest is served first. The clock of a level is the tag that was served last.
A flow that was idle starts one turn before the clock and no earlier: so it is next, however many
others wait, until it has used that time; it cannot save up more.

    keys:         root 7.1 | orders/sender 9.4 ...        <- the lowest first
    connections:             a 3.0 | b 3.2 | c 3.2 ...    <- then the lowest of that key

Rule 1: while two keys wait, the time they get differs by no more than two turns of each, in
        proportion to their weights; likewise two connections of a key, where the use of a scarcer
        resource counts as time, too.
Rule 2: a flow is in the queue at most once.
Rule 3: this file reads no clock. The cost of a turn is passed as a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from heapq import heappop, heappush

from twinbus.broker.fairness.shares import KEY_WEIGHT, NO_TOKEN, NO_TOKEN_WEIGHT

__all__ = ["FairQueue", "Flow", "FlowGroup"]


def _always() -> bool:
    return True


class FlowGroup:
    """The connections of one key."""

    __slots__ = (
        "clock",
        "finish",
        "flow_count",
        "is_listed",
        "key",
        "may_go",
        "start",
        "waiting",
        "weight",
    )

    def __init__(self, key: Hashable, weight: float, may_go: Callable[[], bool]) -> None:
        self.key = key
        self.weight = weight
        self.may_go = may_go
        """Whether any of them may have a turn now."""
        self.clock = 0.0
        self.start = 0.0
        self.finish = -math.inf
        self.flow_count = 0
        self.is_listed = False
        self.waiting: list[tuple[float, int, Flow]] = []


class Flow:
    """One connection."""

    __slots__ = ("finish", "group", "is_waiting", "start", "take_turn")

    def __init__(self, group: FlowGroup, take_turn: Callable[[], None]) -> None:
        self.group = group
        self.take_turn = take_turn
        self.start = 0.0
        self.finish = -math.inf
        self.is_waiting = False


class FairQueue:
    """Flows that wait for their turn."""

    def __init__(self, credit: float) -> None:
        """``credit`` is the advantage of a flow that was idle: the length of a turn."""
        self._credit = credit
        self._groups: dict[Hashable, FlowGroup] = {}
        self._waiting: list[tuple[float, int, FlowGroup]] = []
        self._held: dict[FlowGroup, None] = {}
        self._clock = 0.0
        self._count = 0

    # -- flows ----------------------------------------------------------------------------

    def join(
        self,
        take_turn: Callable[[], None],
        key: Hashable = NO_TOKEN,
        may_go: Callable[[], bool] = _always,
    ) -> Flow:
        return Flow(self._group(key, may_go), take_turn)

    def move(self, flow: Flow, key: Hashable, may_go: Callable[[], bool] = _always) -> None:
        """The connection has sent a token of this key."""
        if flow.group.key == key:
            return
        was_waiting = flow.is_waiting
        self.leave(flow)
        flow.group = self._group(key, may_go)
        flow.finish = -math.inf
        if was_waiting:
            self.push(flow)

    def leave(self, flow: Flow) -> None:
        """The connection is closed."""
        group = flow.group
        if flow.is_waiting:
            flow.is_waiting = False
            group.waiting = [entry for entry in group.waiting if entry[2] is not flow]
            group.waiting.sort()  # A sorted list is a heap.
        group.flow_count -= 1
        if not group.flow_count:
            self._groups.pop(group.key, None)

    def _group(self, key: Hashable, may_go: Callable[[], bool]) -> FlowGroup:
        group = self._groups.get(key)
        if group is None:
            weight = NO_TOKEN_WEIGHT if key is NO_TOKEN else KEY_WEIGHT
            group = self._groups[key] = FlowGroup(key, weight, may_go)
        group.flow_count += 1
        return group

    # -- waiting --------------------------------------------------------------------------

    def push(self, flow: Flow) -> None:
        """The flow has work to do."""
        if flow.is_waiting:
            return
        flow.is_waiting = True
        group = flow.group
        flow.start = max(group.clock - self._credit, flow.finish)
        self._count += 1
        heappush(group.waiting, (flow.start, self._count, flow))
        if not group.is_listed and group not in self._held:
            self._list(group)

    def _list(self, group: FlowGroup) -> None:
        group.is_listed = True
        group.start = max(self._clock - self._credit, group.finish)
        self._count += 1
        heappush(self._waiting, (group.start, self._count, group))

    def pop(self) -> Flow | None:
        """The flow that has the next turn; None if no waiting flow may have one.

        A group that may not have a turn is held until release().
        """
        while self._waiting:
            group = heappop(self._waiting)[2]
            group.is_listed = False
            if not group.waiting:
                continue
            if not group.may_go():
                self._held[group] = None
                continue
            self._clock = max(self._clock, group.start)
            flow = heappop(group.waiting)[2]
            group.clock = max(group.clock, flow.start)
            flow.is_waiting = False
            return flow
        return None

    def release(self) -> bool:
        """Check held groups again; returns whether any group is waiting."""
        if not self._held:
            return False
        held, self._held = self._held, {}
        for group in held:
            if group.waiting and not group.is_listed:
                self._list(group)
        return bool(self._waiting)

    @property
    def has_ready(self) -> bool:
        """Whether a flow waits in a group that is not held."""
        return bool(self._waiting)

    # -- costs ----------------------------------------------------------------------------

    def charge(self, flow: Flow, cost: float, own_cost: float = 0.0) -> None:
        """The flow has had a turn, from the queue or at once.

        ``own_cost`` counts between the connections of its key, and not between keys.
        """
        group, credit = flow.group, self._credit
        start = max(group.clock - credit, flow.finish)
        group.clock = max(group.clock, start)
        flow.finish = start + cost + own_cost
        start = max(self._clock - credit, group.finish)
        self._clock = max(self._clock, start)
        group.finish = start + cost / group.weight

    def served(self, group: FlowGroup) -> None:
        """The turn from pop() has ended; other flows of the group may wait."""
        if group.waiting and not group.is_listed and group not in self._held:
            self._list(group)

"""Bugs of how the broker shares what its clients have in common."""

from __future__ import annotations

import pytest

from twinbus.broker.fairness.fair_queue import FairQueue, Flow
from twinbus.broker.fairness.shares import Account, Holder, SharedCapacity


def give_everything_to_the_loudest(patch: pytest.MonkeyPatch) -> None:
    """What is used up is used up, whoever did it."""

    def has_room(self: SharedCapacity, _account: Account) -> bool:
        return self.used < self.capacity

    def may_take(self: SharedCapacity, _holder: Holder) -> bool:
        return self.used < self.capacity

    patch.setattr(SharedCapacity, "has_room", has_room)
    patch.setattr(SharedCapacity, "may_take", may_take)


def serve_whoever_came_first(patch: pytest.MonkeyPatch) -> None:
    """Turns are given in the order in which they were asked for."""
    join = FairQueue.join

    def one_group(self: FairQueue, take_turn: object, *_key: object) -> Flow:
        return join(self, take_turn)  # type: ignore[arg-type]

    def free(_self: FairQueue, _flow: Flow, _cost: float, _own_cost: float = 0.0) -> None:
        """Nothing is charged, so nobody is ahead of others."""

    patch.setattr(FairQueue, "join", one_group)
    patch.setattr(FairQueue, "move", lambda *_args: None)
    patch.setattr(FairQueue, "charge", free)

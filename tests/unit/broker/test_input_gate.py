"""When a peer is read from and when its work goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twinbus.broker.read_gate import ASKING, LEAVING, OUTPUT, STORING, ReadGate


class Transport:
    """Remembers whether it is read from."""

    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        assert self.is_reading, "paused twice"
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading, "resumed twice"
        self.is_reading = True

    def is_closing(self) -> bool:
        return False


class Gate:
    """A gate, its transport, and how often work was taken up."""

    def __init__(self) -> None:
        self.transport: Any = Transport()
        self.turns = 0
        self.gate = ReadGate(asyncio.get_running_loop(), self._work)
        self.gate.opened(self.transport)

    def _work(self) -> None:
        self.turns += 1
        self.gate.turn_ended(is_done=self.turns >= 3)


async def test_a_peer_is_read_from_when_no_reason_is_left() -> None:
    each = Gate()
    each.gate.stop(STORING)
    each.gate.stop(OUTPUT)
    each.gate.stop(STORING)
    assert not each.transport.is_reading

    each.gate.go_on(STORING)
    assert not each.transport.is_reading
    each.gate.go_on(ASKING)
    assert not each.transport.is_reading
    each.gate.go_on(OUTPUT)
    assert each.transport.is_reading


async def test_work_that_is_left_goes_on_in_later_turns_and_nothing_is_read_meanwhile() -> None:
    each = Gate()
    each.gate.turn_ended(is_done=False)
    assert not each.transport.is_reading and each.turns == 0

    for turns in (1, 2, 3):
        await asyncio.sleep(0)
        assert each.turns == turns
        assert each.transport.is_reading is (turns == 3)
    await asyncio.sleep(0)
    assert each.turns == 3


@pytest.mark.parametrize("reason", [STORING, OUTPUT, ASKING])
async def test_work_that_is_left_waits_until_the_reason_is_gone(reason: int) -> None:
    each = Gate()
    each.gate.turn_ended(is_done=False)
    each.gate.stop(reason)
    for _ in range(3):
        await asyncio.sleep(0)
    assert each.turns == 0

    each.gate.go_on(reason)
    await asyncio.sleep(0)
    assert each.turns == 1


async def test_a_broker_that_leaves_takes_up_nothing_more() -> None:
    each = Gate()
    each.gate.turn_ended(is_done=False)
    each.gate.stop(STORING)
    each.gate.stop(LEAVING)
    each.gate.go_on(STORING)
    await asyncio.sleep(0)

    assert each.turns == 0 and not each.transport.is_reading


async def test_what_a_closed_peer_sends_is_thrown_away() -> None:
    each = Gate()
    each.gate.turn_ended(is_done=False)
    each.gate.stop(OUTPUT)
    each.gate.throw_away()
    await asyncio.sleep(0)

    assert each.transport.is_reading and each.gate.reasons == 0

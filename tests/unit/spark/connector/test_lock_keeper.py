"""Locks renewed and batches settled, with receivers that fail as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from twinbus.common.clock import AdjustableClock, Instant
from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import CommunicationError, EntityNotFound, OperationTimeout
from twinbus.spark.connector import lock_keeper
from twinbus.spark.connector.lock_keeper import LockKeeper
from twinbus.spark.connector.lock_ledger import Lock, LockLedger

ORDER = "1/0"
TICK_S = 0.002


class FakeReceiver:
    """Notes what it is asked for; ``answers`` are raised, or waited for, in their order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.renewals: list[int] = []
        self.completions: list[list[int]] = []
        self.given_back: list[int] = []
        self.answers: list[Exception | asyncio.Event | None] = []

    async def _answer(self) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            await answer.wait()

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        self.renewals.append(len(messages))
        await self._answer()
        return []

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        await self._answer()
        self.completions.append([each.sequence_number for each in messages])
        return []

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        await self._answer()
        self.given_back += [each.sequence_number for each in messages]
        return []


class Scene:
    """A keeper of some queues, and a clock that a test moves."""

    def __init__(self, *paths: str) -> None:
        self.clock = AdjustableClock(Instant(100.0, 0), is_manual=True)
        self.holding = LockLedger()
        self.receivers = {path: FakeReceiver(path) for path in paths}
        self.keeper = LockKeeper(
            cast(dict[str, Receiver], self.receivers), self.holding, self.clock
        )

    def hold(self, path: str, count: int, order_id: str = ORDER, *, is_sealed: bool = True) -> None:
        """An order of the first batch that has so many messages, read to its end or not."""
        self.holding.plan(order_id, 1)
        self.holding.begin(order_id, "reader", 100)
        locks = [Lock(path, number, number.to_bytes(16, "big")) for number in range(count)]
        self.holding.report(order_id, "reader", locks, lock_s=60, now_s=100)
        if is_sealed:
            self.holding.finish(order_id, "reader")

    async def later(self, seconds: float) -> None:
        """Move the clock, and let whatever is due happen."""
        self.clock.advance(seconds)
        await asyncio.sleep(10 * TICK_S)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(TICK_S)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_keeper, "RENEW_TICK_S", TICK_S)


async def test_a_failed_renewal_is_tried_again_before_the_locks_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2: also after an error that nobody expected; an outage is told once, and its end."""
    scene = Scene("orders")
    scene.hold("orders", 3)
    scene.receivers["orders"].answers = [
        *(CommunicationError("away"), ZeroDivisionError("secret"), OperationTimeout("slow"))
    ]
    scene.keeper.start()
    renewals = scene.receivers["orders"].renewals
    for count, seconds in enumerate((30, 1, 1, 1), start=1):
        await scene.later(seconds)
        await scene.until(lambda so_far=count: len(renewals) == so_far)
    await scene.later(20)
    assert renewals == [3, 3, 3, 3]
    await scene.later(10)
    await scene.until(lambda: len(renewals) == 5)
    failed, recovered = (each.getMessage() for each in caplog.records)
    assert failed.startswith("3 locks of messages of 'orders'") and "Away" in failed
    assert "'orders' works again" in recovered
    assert "secret" not in caplog.text
    await scene.keeper.close()


async def test_a_renewal_waits_neither_for_a_settlement_nor_for_another_queue() -> None:
    """S2: a service that is slow with one thing costs no lock of another."""
    scene = Scene("orders", "news")
    scene.hold("orders", 4_500)
    scene.hold("news", 2, "1/1", is_sealed=False)
    never = asyncio.Event()
    scene.receivers["orders"].answers = [never] * 5
    scene.keeper.start()
    settling = asyncio.create_task(scene.keeper.settle(1))
    await scene.until(lambda: scene.receivers["news"].given_back == [0, 1])
    scene.hold("news", 2, "2/0")
    await scene.later(30)
    await scene.until(lambda: all(each.renewals for each in scene.receivers.values()))
    # Four slices are being settled; the others are renewed meanwhile, which hangs as well.
    assert scene.receivers["orders"].renewals == [500]
    assert scene.receivers["news"].renewals == [2]
    never.set()
    ending = await settling
    assert (ending.owed, ending.settled, ending.unread) == (0, {"orders"}, {"news": 2})
    await scene.keeper.close()


async def test_a_settlement_that_fails_keeps_what_was_settled_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2: slices; a service that stops to answer does not make all of it begin again."""
    scene = Scene("orders")
    scene.hold("orders", 2_500)
    receiver = scene.receivers["orders"]
    receiver.answers = [None, OperationTimeout("no answer")]

    ending = await scene.keeper.settle(1)

    assert ending.owed == 1_000
    assert scene.holding.counts.settled == 1_500
    assert "1000 messages of 'orders'" in caplog.text and "No answer" in caplog.text
    scene.clock.advance(2)
    assert (await scene.keeper.settle(1)).owed == 0
    assert sorted(number for part in receiver.completions for number in part) == [*range(2_500)]
    assert scene.holding.counts.settled == 2_500
    assert scene.holding.written(9) == {}


async def test_a_queue_that_cannot_be_settled_is_left_alone_for_longer_and_longer() -> None:
    """S2: each try may take 15 s, in which no other queue is read; its locks are renewed."""
    scene = Scene("orders", "news")
    scene.hold("orders", 3)
    scene.hold("orders", 1, "1/1")
    receiver = scene.receivers["orders"]
    receiver.answers = [OperationTimeout("no answer") for _ in range(5)]
    for pause_s in (2, 4):
        assert (await scene.keeper.settle(1)).owed == 4
        tries = len(receiver.answers)
        scene.hold("news", 2, "2/0")
        ending = await scene.keeper.settle(1)
        assert (ending.owed, ending.settled) == (4, {"news"})
        assert len(receiver.answers) == tries
        scene.clock.advance(pause_s * 0.75)
    assert sum(len(each.locks) for each in scene.holding.due(130)) == 4
    # Behind the last batch there is nobody who would have to wait.
    assert (await scene.keeper.settle(1, is_last=True)).owed == 3
    assert (await scene.keeper.settle(1, is_last=True)).owed == 0
    scene.hold("orders", 3)
    assert (await scene.keeper.settle(1)).settled == {"orders"}


async def test_what_can_never_be_settled_is_raised_and_the_others_are() -> None:
    scene = Scene("orders", "news")
    scene.hold("orders", 2)
    scene.hold("news", 2, "1/1")
    scene.receivers["orders"].answers = [EntityNotFound("no 'orders'")]

    with pytest.raises(EntityNotFound):
        await scene.keeper.settle(1)

    assert scene.receivers["news"].completions == [[0, 1]]


async def test_a_cancelled_settlement_forgets_nothing() -> None:
    scene = Scene("orders")
    scene.hold("orders", 3)
    scene.receivers["orders"].answers = [asyncio.Event()]
    settling = asyncio.create_task(scene.keeper.settle(1))
    while scene.receivers["orders"].answers:
        await asyncio.sleep(TICK_S)
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)

    assert (await scene.keeper.settle(1)).owed == 0
    assert scene.holding.counts.settled == 3


@pytest.mark.parametrize("steps", range(6))
async def test_a_settlement_that_is_cancelled_at_any_step_forgets_nothing(steps: int) -> None:
    """Y1: also before the service was asked."""
    scene = Scene("orders")
    scene.hold("orders", 3)
    settling = asyncio.create_task(scene.keeper.settle(1))
    for _ in range(steps):
        await asyncio.sleep(0)
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)

    assert (await scene.keeper.settle(1)).owed == 0
    assert scene.holding.counts.settled == 3


async def test_a_queue_that_one_of_two_tasks_read_is_not_unread() -> None:
    scene = Scene("orders")
    scene.hold("orders", 3)
    scene.hold("orders", 1, "1/1", is_sealed=False)

    ending = await scene.keeper.settle(1)

    assert (ending.settled, ending.unread) == ({"orders"}, {})
    assert scene.receivers["orders"].given_back == [0]

"""The source without Spark: a brain and its tasks in one loop, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.spark.connector.scene import fill, ids, left, taken
from tests.support.broker_process import BrokerProcess
from tests.support.mover.messages import id_of
from twinbus.common.clock import AdjustableClock, Clock, Instant, SystemClock
from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import CommunicationError, ConfigurationError, EntityNotFound, MessageRefused
from twinbus.failover.backoff import Backoff
from twinbus.spark.connector import coordinator as coordinator_module
from twinbus.spark.connector import lock_keeper, partition_plan, partition_reader
from twinbus.spark.connector import lock_ledger as holding_module
from twinbus.spark.connector.coordinator import Reading, StreamCoordinator
from twinbus.spark.connector.partition_plan import BatchLimit, PartitionPlan
from twinbus.spark.connector.partition_reader import PartitionReader

AMPLE = BatchLimit(10_000, 64 << 20)
WAIT_S = 10.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", namespace="east") as running:
        yield running


class Scene:
    """A brain over some queues of a broker."""

    def __init__(
        self, broker: BrokerProcess, coordinator: StreamCoordinator, driver: AmqpDriver
    ) -> None:
        self.broker, self.coordinator, self.driver = broker, coordinator, driver

    async def orders(self, epoch: int = 1) -> list[PartitionPlan]:
        async with asyncio.timeout(WAIT_S):
            while not await self.coordinator.has_messages(0.5):
                pass
        return await self.coordinator.orders(epoch)

    def reader(self, order: PartitionPlan, *, deletes: bool = False) -> PartitionReader:
        return PartitionReader(self.driver, order, deletes=deletes)

    async def read(self, *orders: PartitionPlan, deletes: bool = False) -> list[str]:
        """All of these orders, read to their ends: the messages' ids."""
        found = []
        for order in orders:
            async with self.reader(order, deletes=deletes) as reader:
                while messages := await reader.chunk():
                    found += [id_of(each.encoded) for each in messages]
                await reader.finish()
        return found


@asynccontextmanager
async def scene(
    broker: BrokerProcess,
    *paths: str,
    limit: BatchLimit = AMPLE,
    clock: Clock | None = None,
    **more: object,
) -> AsyncIterator[Scene]:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    reading = Reading(paths=paths, limit=limit, **more)  # type: ignore[arg-type]
    coordinator = StreamCoordinator(driver, reading, clock=clock)
    try:
        async with asyncio.timeout(60):
            await coordinator.start("127.0.0.1")
            yield Scene(broker, coordinator, driver)
    finally:
        await coordinator.close()
        await driver.close()


async def test_a_batch_is_settled_when_it_was_written_and_not_before(broker: BrokerProcess) -> None:
    """S2: messages stay in their queue until the next offset is asked for."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(5_000))
    async with scene(broker, queue) as it:
        found = await it.read(*await it.orders())
        assert sorted(found) == ids(5_000)
        await it.coordinator.settle(0)
        assert left(broker, queue) == 5_000
        await it.coordinator.settle(1)
        assert left(broker, queue) == 0
        assert it.coordinator.counts == {
            "received": 5_000,
            "settled": 5_000,
            "givenBack": 0,
            "locksLost": 0,
        }


async def test_a_second_run_yields_the_same_messages_in_the_same_order(
    broker: BrokerProcess,
) -> None:
    """S2: two actions on one batch see the same rows, also when more has come meanwhile."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(1_200), b"x" * 2_000)
    async with scene(broker, queue) as it:
        orders = await it.orders()
        first = await it.read(*orders)
        fill(broker, queue, ids(50, first=5_000))
        assert await it.read(*orders) == first
        await it.coordinator.settle(1)
    assert taken(broker, queue) == ids(50, first=5_000)


async def test_a_task_that_failed_is_followed_by_one_that_goes_on(broker: BrokerProcess) -> None:
    """S2: what the first try has received is part of the second."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(900))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        async with it.reader(order) as failing:
            first = [id_of(each.encoded) for each in await failing.chunk()]
            first += [id_of(each.encoded) for each in await failing.chunk()]
        found = await it.read(order)
        assert found[: len(first)] == first
        assert sorted(found) == ids(900)
        await it.coordinator.settle(1)
        assert left(broker, queue) == 0


async def test_two_tasks_with_the_same_order_wait_for_each_other(broker: BrokerProcess) -> None:
    """S2: one source that stands twice in a plan gives the same rows twice."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(700))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        first, second = await asyncio.gather(it.read(order), it.read(order))
        assert first == second
        assert sorted(first) == ids(700)


async def test_a_task_waits_as_long_as_another_one_reads_and_says_so(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S2: a slow reader is no reason to fail the query."""
    monkeypatch.setattr(partition_reader, "WAIT_LOG_INTERVAL_S", 0.1)
    monkeypatch.setattr(partition_reader, "ALIVE_INTERVAL_S", 0.05)
    queue = broker.fresh_queue()
    fill(broker, queue, ids(3))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        async with it.reader(order) as slow:
            second = asyncio.create_task(it.read(order))
            while "still waiting for another task" not in caplog.text:
                await asyncio.sleep(0.01)
            assert not second.done()
            progress = it.coordinator._ledger.progress(order.order_id)
            while await slow.chunk():
                pass
            while it.coordinator._ledger.progress(order.order_id) == progress:
                await asyncio.sleep(0.01)
            await slow.finish()
        assert sorted(await second) == ids(3)


async def test_a_task_whose_clock_is_behind_has_its_locks_renewed_in_time(
    broker: BrokerProcess,
) -> None:
    """S2: an hour behind, a lock of five seconds seems to last for an hour."""
    queue = broker.fresh_queue(lock_duration_ms=5_000)
    fill(broker, queue, ids(3))
    now = SystemClock().now()
    behind = AdjustableClock(Instant(now.monotonic_s, now.wall_ms - 3_600_000))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        async with PartitionReader(it.driver, order, clock=behind) as reader:
            while await reader.chunk():
                pass
        due = it.coordinator._ledger.due(SystemClock().now().monotonic_s + 4)
        assert sum(len(each.locks) for each in due) == 3


async def test_a_killed_task_is_succeeded_and_cannot_speak_again(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding_module, "LEASE_S", 0.5)
    monkeypatch.setattr(partition_reader, "ALIVE_INTERVAL_S", 60.0)
    queue = broker.fresh_queue()
    fill(broker, queue, ids(900))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        async with it.reader(order) as silent:
            await silent.chunk()
            assert sorted(await it.read(order)) == ids(900)
            fill(broker, queue, ids(10, first=5_000))
            with pytest.raises(MessageRefused, match="another task"):
                await silent.chunk()
        await it.coordinator.settle(1)
    # What the silent one received and could not report went back at once.
    assert sorted(taken(broker, queue)) == ids(10, first=5_000)


async def test_what_no_task_read_to_its_end_goes_back(broker: BrokerProcess) -> None:
    """S2: an action that stops early does not settle what it did not look at."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(600))
    async with scene(broker, queue) as it:
        (order,) = await it.orders()
        async with it.reader(order) as reader:
            await reader.chunk()
        await it.coordinator.settle(1)
        assert it.coordinator.counts["settled"] == 0
        assert it.coordinator.counts["givenBack"] >= 1
    assert sorted(taken(broker, queue)) == ids(600)


async def test_a_queue_that_nobody_reads_is_left_alone_for_longer_and_longer(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S2: a plan that ignores its batches would have a message dead-lettered within moments."""
    monkeypatch.setattr(partition_plan, "Backoff", lambda: Backoff(first_s=100, last_s=1_000))
    queue, other = broker.fresh_queue(), broker.fresh_queue()
    fill(broker, queue, ids(1))
    clock = AdjustableClock()
    async with scene(broker, queue, other, clock=clock) as it:
        for epoch, pause_s in ((-1, 120), (0, 240)):
            await it.orders(epoch)
            await it.coordinator.settle(epoch)
            assert not await it.coordinator.has_messages(0.2)
            clock.advance(pause_s)
        assert caplog.text.count("1 messages were abandoned in") == 2
        await it.orders(1)
        await it.coordinator.settle(1)
        # Within a pause another queue is heard, and this one is not.
        fill(broker, other, ids(1, first=7))
        orders = await it.orders(2)
        assert [order.path for order in orders] == [other]
        assert await it.read(*orders) == ids(1, first=7)
        clock.advance(480)
        (order,) = await it.orders(3)
        assert order.handed is not None and order.handed.delivery_count == 3
        assert await it.read(order) == ids(1)
        await it.coordinator.settle(3)
        # Once it was read there is no pause.
        fill(broker, queue, ids(1, first=1))
        assert await it.read(*await it.orders(4)) == ids(1, first=1)


async def test_available_now_ends_when_nobody_reads(broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()
    fill(broker, queue, ids(3))
    async with scene(broker, queue) as it:
        it.coordinator.only_until_now()
        await it.orders(1)
        await it.coordinator.settle(1)
        assert not await it.coordinator.has_messages(0)
    assert sorted(taken(broker, queue)) == ids(3)


async def test_a_lost_lock_is_counted_and_its_message_comes_again(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: repeats, never loses. What somebody else took meanwhile is not settled in his place."""
    monkeypatch.setattr(lock_keeper, "RENEW_TICK_S", 60.0)
    queue = broker.fresh_queue(lock_duration_ms=3_000)
    fill(broker, queue, ids(6))
    async with scene(broker, queue) as it:
        orders = await it.orders()
        assert await it.read(*orders) == ids(6)
        await asyncio.sleep(3.3)
        receiver = it.driver.receiver(queue)
        stolen: list[ReceivedMessage] = await receiver.receive(3, wait_s=5)
        await receiver.complete(stolen, timeout_s=10)
        # The message that rang travels with its order; the others must be there to be read again.
        assert len(await it.read(*orders)) == 6 - len(stolen) + 1
        assert it.coordinator.counts["locksLost"] == len(stolen) - 1
        await it.coordinator.settle(1)
        assert it.coordinator.counts["locksLost"] == 6
        assert await it.read(*await it.orders(2)) == ids(6)[len(stolen) :]
        await it.coordinator.settle(2)
    assert left(broker, queue) == 0


async def test_a_queue_that_rings_during_a_long_batch_keeps_its_lock(
    broker: BrokerProcess,
) -> None:
    """S2: locks are renewed from the moment a message is ours."""
    busy, other = broker.fresh_queue(), broker.fresh_queue(lock_duration_ms=4_000)
    fill(broker, busy, ids(1))
    async with scene(broker, busy, other) as it:
        await it.read(*await it.orders())
        fill(broker, other, ids(1, first=1))
        await asyncio.sleep(4.6)
        await it.coordinator.settle(1)
        (order,) = await it.orders(2)
        assert order.handed is not None
        assert order.handed.delivery_count == 0
        assert await it.read(order) == ids(1, first=1)
        await it.coordinator.settle(2)
        assert it.coordinator.counts["locksLost"] == 0


async def test_a_batch_has_no_more_messages_than_allowed(broker: BrokerProcess) -> None:
    """S1: maxMessagesPerTrigger, over all queues of a query."""
    queues = [broker.fresh_queue() for _ in range(3)]
    for queue in queues:
        fill(broker, queue, ids(50))
    async with scene(broker, *queues, limit=BatchLimit(10, 1 << 20)) as it:
        found = 0
        for epoch in range(1, 40):
            if not await it.coordinator.has_messages(0.5):
                break
            count = len(await it.read(*await it.coordinator.orders(epoch)))
            assert 1 <= count <= 10
            found += count
            await it.coordinator.settle(epoch)
        assert found == 150
    assert [left(broker, queue) for queue in queues] == [0, 0, 0]


async def test_queues_that_found_no_room_have_their_turn_in_the_next_batch(
    broker: BrokerProcess,
) -> None:
    queues = [broker.fresh_queue() for _ in range(3)]
    for queue in queues:
        fill(broker, queue, ids(1))
    async with scene(broker, *queues, limit=BatchLimit(1, 1 << 20)) as it:
        for epoch in (1, 2, 3):
            assert await it.read(*await it.orders(epoch)) == ids(1)
            await it.coordinator.settle(epoch)
        assert it.coordinator.counts["settled"] == 3
        assert it.coordinator.counts["givenBack"] == 0


async def test_a_batch_has_about_as_many_bytes_as_allowed(broker: BrokerProcess) -> None:
    """S1: maxBytesPerTrigger."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(60), b"x" * 50_000)
    async with scene(broker, queue, limit=BatchLimit(1_000, 500_000)) as it:
        count = len(await it.read(*await it.orders()))
        assert 10 <= count <= 12


async def test_several_readers_of_one_queue_share_its_messages(broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()
    fill(broker, queue, ids(400))
    async with scene(broker, queue, receivers_per_queue=2, limit=BatchLimit(300, 1 << 20)) as it:
        orders = await it.orders()
        assert len(orders) == 2
        assert len(await it.read(*orders)) == 300


async def test_a_replayed_batch_is_empty_and_its_messages_come_in_the_next(
    broker: BrokerProcess,
) -> None:
    """S2: whoever has written a part of it already skips its number, and with it what is new."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(20))
    async with scene(broker, queue) as it:
        assert await it.coordinator.orders(7) == []
        assert await it.coordinator.has_messages(5)
        orders = await it.coordinator.orders(8)
        assert await it.read(*orders) == ids(20)
        assert await it.coordinator.orders(8) is orders


async def test_available_now_takes_what_was_there_and_ends(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: also while somebody keeps sending."""
    monkeypatch.setattr(coordinator_module, "CLOCKS_APART_MS", 100)
    queue, quiet = broker.fresh_queue(), broker.fresh_queue()
    fill(broker, queue, ids(2_500))
    async with scene(broker, queue, quiet, limit=BatchLimit(1_000, 64 << 20)) as it:
        it.coordinator.only_until_now()
        found: list[str] = []
        for epoch in range(1, 10):
            if not await it.coordinator.has_messages(0):
                break
            found += await it.read(*await it.coordinator.orders(epoch))
            await it.coordinator.settle(epoch)
        assert sorted(found) == ids(2_500)
        # What comes later than the two clocks may be apart is for the next run.
        it.coordinator.only_until_now()
        await asyncio.sleep(0.2)
        fill(broker, queue, ids(3, first=9_000))
        assert not await it.coordinator.has_messages(0)
    assert taken(broker, queue) == ids(3, first=9_000)


async def test_available_now_settles_its_last_batch_before_it_ends(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: nobody would ask again, and what is written would come again in the next run."""
    monkeypatch.setattr(coordinator_module, "LAST_SETTLE_TICK_S", 0.05)
    queue = broker.fresh_queue()
    fill(broker, queue, ids(3))
    async with scene(broker, queue) as it:
        it.coordinator.only_until_now()
        await it.read(*await it.orders())
        receiver = it.coordinator._receivers[queue]
        complete, failures = receiver.complete, [CommunicationError("away")] * 3

        async def fails_first(
            messages: Sequence[ReceivedMessage], **more: Any
        ) -> list[ReceivedMessage]:
            if failures:
                raise failures.pop()
            return await complete(messages, **more)

        monkeypatch.setattr(receiver, "complete", fails_first)
        await it.coordinator.settle(1)
        assert left(broker, queue) == 3
        assert not await it.coordinator.has_messages(0)
        assert left(broker, queue) == 0


async def test_deleted_messages_are_gone_at_once_and_read_once(broker: BrokerProcess) -> None:
    """S1: receiveMode=receiveAndDelete is at most once, and says so."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(700))
    async with scene(broker, queue, deletes=True) as it:
        orders = await it.orders()
        assert sorted(await it.read(*orders, deletes=True)) == ids(700)
        assert left(broker, queue) == 0
        with pytest.raises(MessageRefused, match="deleted"):
            await it.read(*orders, deletes=True)
        await it.coordinator.settle(1)
        assert (it.coordinator.counts["received"], it.coordinator.counts["settled"]) == (700, 700)


async def test_a_message_that_rang_and_could_not_be_deleted_is_not_handed_out(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: at most once, and a service that does not answer fails no query."""
    queue = broker.fresh_queue()
    fill(broker, queue, ids(3))
    async with scene(broker, queue, deletes=True) as it:

        async def fails(*_: Any, **more: Any) -> list[ReceivedMessage]:
            raise CommunicationError("away")

        monkeypatch.setattr(it.coordinator._receivers[queue], "complete", fails)
        orders = await it.orders()
        assert await it.read(*orders, deletes=True) == ids(2, first=1)
        assert it.coordinator.counts == {
            "received": 3,
            "settled": 2,
            "givenBack": 0,
            "locksLost": 0,
        }


async def test_a_brain_that_closes_gives_back_what_rang(broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()
    fill(broker, queue, ids(1))
    async with scene(broker, queue) as it:
        assert await it.coordinator.has_messages(WAIT_S)
    assert taken(broker, queue) == ids(1)


async def until_refused(coordinator: StreamCoordinator) -> None:
    for _ in range(20):
        await coordinator.has_messages(0.5)


async def test_a_queue_with_sessions_is_refused_with_a_sentence(broker: BrokerProcess) -> None:
    """S1: session-required queues are refused."""
    queue = broker.fresh_queue(requires_session=True)
    async with scene(broker, queue) as it:
        with pytest.raises(ConfigurationError, match=f"{queue}' requires sessions"):
            await until_refused(it.coordinator)
        it.coordinator.only_until_now()
        with pytest.raises(ConfigurationError, match=f"{queue}' requires sessions"):
            await it.coordinator.has_messages(0.5)


async def test_a_queue_that_does_not_exist_is_named(broker: BrokerProcess) -> None:
    async with scene(broker, "nowhere") as it:
        with pytest.raises(EntityNotFound, match="nowhere"):
            await until_refused(it.coordinator)


async def test_an_outage_is_waited_for(tmp_path: Path) -> None:
    """S2: the broker is killed with a batch under way; nothing fails, nothing is lost."""
    with BrokerProcess(tmp_path / "data", namespace="east") as mortal:
        queue = mortal.fresh_queue()
        fill(mortal, queue, ids(100))
        async with scene(mortal, queue, limit=BatchLimit(40, 1 << 20)) as it:
            first = await it.read(*await it.orders())
            await asyncio.to_thread(mortal.kill)
            await it.coordinator.settle(1)
            assert not await it.coordinator.has_messages(0.5)
            await asyncio.to_thread(mortal.restart)
            found: list[str] = []
            for epoch in range(2, 30):
                if len({*first, *found}) == 100 or not await it.coordinator.has_messages(8.0):
                    break
                found += await it.read(*await it.coordinator.orders(epoch))
                await it.coordinator.settle(epoch)
            assert set(first) | set(found) == set(ids(100))
            await it.coordinator.settle(30, is_last=True)
        assert await asyncio.to_thread(left, mortal, queue) == 0

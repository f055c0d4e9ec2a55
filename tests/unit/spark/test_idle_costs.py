"""What an idle syphon costs, counted by the broker itself (Y3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from tests.support.mover.messages import backlog, id_of
from tests.support.virtual_time import VirtualLoop
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.drivers import credentials
from twinbus.drivers.amqp import AmqpDriver, token_refresh
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import AccessRefused, ServiceError
from twinbus.mover import mover as mover_module
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.work_order import WorkReport, report_to_json
from twinbus.spark.long_poll import POLL_S, LongPollWatcher
from twinbus.spark.syphon import coordinator as coordinator_module
from twinbus.spark.syphon import task as task_module
from twinbus.spark.syphon.coordinator import SyphonCoordinator
from twinbus.spark.syphon.settings import SyphonSettings

QUEUES = [f"east/x-servicebus-transfer/{number}" for number in range(10)]
HOUR_S = 3600.0
# An hour's last polls have ended, and the next ones have not.
MOMENT_S = 1.0

Story = Callable[[LongPollWatcher, AmqpDriver, RunningNamespace], Awaitable[None]]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    for module in (token_refresh, credentials):
        monkeypatch.setattr(module, "time", made.wall())
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def units(namespace: RunningNamespace) -> Counter[str]:
    """What the namespace counted so far, by operation."""
    counted: Counter[str] = Counter()
    for tally in namespace.access.meter:
        counted[str(tally.operation)] += tally.units
    return +counted


def told(
    loop: VirtualLoop,
    story: Story,
    *,
    poll_s: float = POLL_S,
    idle_detach_s: float | None = None,
    on_fault: Callable[[str, ServiceError | None], object] | None = None,
) -> Counter[str]:
    """Tell a story of a watcher and its broker, both in this loop; units by operation."""

    async def play() -> Counter[str]:
        options = BrokerOptions(admin_port=None, idle_detach_s=idle_detach_s)
        async with Broker(options, clock=loop) as broker:
            namespace = await broker.add_namespace(NamespaceSpec("west", queues=QUEUES))
            loop.wait_while(lambda: not namespace.access.is_quiet)
            driver = AmqpDriver.from_connection_string(namespace.connection_string)
            watcher = LongPollWatcher(driver, QUEUES, poll_s=poll_s, on_fault=on_fault, clock=loop)
            watcher.start_polling()
            await story(watcher, driver, namespace)
            counted = units(namespace)
            await watcher.close()
            await driver.close()
            return counted

    return loop.run_until_complete(asyncio.wait_for(play(), 365 * 24 * HOUR_S))


async def hour(watcher: LongPollWatcher, _driver: AmqpDriver, _namespace: RunningNamespace) -> None:
    assert await watcher.ready(HOUR_S + MOMENT_S) == {}


async def day(watcher: LongPollWatcher, _driver: AmqpDriver, _namespace: RunningNamespace) -> None:
    for _ in range(24):
        # Spark asks for the latest offset again and again; nobody's receive is a new one by that.
        assert await watcher.ready(HOUR_S) == {}
        watcher.start_polling()
    assert await watcher.ready(MOMENT_S) == {}


def test_an_idle_hour_of_ten_queues_costs_forty_empty_receives(loop: VirtualLoop) -> None:
    """Y3: a long poll of 15 minutes for each backlog queue, and nothing else at all."""
    assert told(loop, hour) == {"empty-receive": 40}
    assert loop.time() > HOUR_S


def test_an_idle_day_costs_960(loop: VirtualLoop) -> None:
    """Y3: 28,800 in 30 days."""
    assert told(loop, day) == {"empty-receive": 960}


def test_shorter_polls_would_be_counted(loop: VirtualLoop) -> None:
    """The broker tells polls of 10 minutes from those of 15: the two tests above can fail."""
    assert told(loop, hour, poll_s=600) == {"empty-receive": 60}


@pytest.mark.parametrize(("poll_s", "receives"), [(900.0, 80), (600.0, 60), (1_800.0, 60)])
def test_where_idle_links_end_a_wait_goes_on_with_another_grant(
    loop: VirtualLoop, poll_s: float, receives: int
) -> None:
    """Y3, C2: as in Azure after ten minutes. It is no fault, and nothing is received more often
    than the rest of the wait needs."""
    faults: list[object] = []
    counted = told(
        loop,
        hour,
        poll_s=poll_s,
        idle_detach_s=600,
        on_fault=lambda queue, error: faults.append((queue, error)),
    )
    assert counted == {"empty-receive": receives}
    assert faults == []


def test_a_message_rings_on_the_link_that_replaced_an_idle_one(loop: VirtualLoop) -> None:
    """Y3: twelve minutes after the poll began."""

    async def story(
        watcher: LongPollWatcher, driver: AmqpDriver, _namespace: RunningNamespace
    ) -> None:
        assert await watcher.ready(720) == {}
        await driver.sender(QUEUES[3]).send([OutgoingMessage(backlog("late"))], timeout_s=10)
        began_s = loop.time()
        assert list(await watcher.ready(HOUR_S)) == [QUEUES[3]]
        assert loop.time() - began_s < 1

    counted = told(loop, story, idle_detach_s=600)
    assert counted == {"empty-receive": 10, "send": 1, "receive": 1}


class Reference:
    """Stands for where a namespace is."""

    def __init__(self, driver: AmqpDriver) -> None:
        self._driver = driver

    @asynccontextmanager
    async def open(self, **_books: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(driver=self._driver, management=self)

    async def list_queues(self, _prefix: str) -> AsyncIterator[Any]:
        raise AccessRefused("the claim Manage is missing")
        yield


def test_after_a_message_a_syphon_looks_once_an_hour_for_what_others_set_aside(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y3, Y4, Y9: what another syphon set aside and forgot is found by looking, which is no
    receive. The search for more queues, which do not exist, costs nothing."""
    # Only to have fewer turns of the loop in an hour.
    for interval in ("CONTROL_INTERVAL_S", "STATUS_INTERVAL_S"):
        monkeypatch.setattr(coordinator_module, interval, 60.0)
    hour_of_it: Counter[str] = Counter()

    async def story(
        watcher: LongPollWatcher, driver: AmqpDriver, namespace: RunningNamespace
    ) -> None:
        await watcher.close()
        await driver.sender(QUEUES[3]).send([OutgoingMessage(backlog("forgotten"))], timeout_s=10)
        receiver = driver.receiver(QUEUES[3])
        await receiver.defer(await receiver.receive(1, wait_s=10), timeout_s=10)
        there: Any = Reference(driver)
        coordinator = SyphonCoordinator(
            SyphonSettings(
                primary=there, secondary=there, primary_name="east", queues=tuple(QUEUES), tasks=1
            ),
            clock=loop,
        )
        await coordinator.start()
        await coordinator.next_epoch(0, once=False)
        # When the first batch did not see it, and nothing else happens
        report = report_to_json(WorkReport(emptied=tuple(QUEUES), scanned=tuple(QUEUES)))
        await coordinator._handle_report("progress", {"counts": {"moved": 1}, "moved_bytes": 300})
        await coordinator._handle_report("report", {"order": "1/0", "report": report})
        before, began_s = units(namespace), loop.time()
        await coordinator.next_epoch(1, once=False)
        hour_of_it.update(units(namespace) - before)
        assert HOUR_S <= loop.time() - began_s < HOUR_S + 300
        (order,) = coordinator.orders(2).values()
        assert order.retry_deferred == {QUEUES[3]: {"orders": (1,)}}
        await coordinator.close()

    told(loop, story)
    assert hour_of_it.pop("empty-receive") == 40
    assert hour_of_it == {"peek": 11}, "one for each queue, and one behind the message"


class WholeSyphon:
    """The head and the tasks of a syphon, both in this loop: all of it but Spark."""

    def __init__(self, secondary: AmqpDriver, primary: AmqpDriver, clock: VirtualLoop) -> None:
        self.settings = SyphonSettings(
            primary=cast(Any, Reference(primary)),
            secondary=cast(Any, Reference(secondary)),
            primary_name="east",
            queues=tuple(QUEUES),
            tasks=2,
        )
        self.coordinator = SyphonCoordinator(self.settings, clock=clock)

    async def run(self) -> None:
        await self.coordinator.start()
        epoch = 0
        while True:
            epoch = await self.coordinator.next_epoch(epoch, once=False)
            runs = [
                task_module._TaskRun(self.settings, order, order_id, self.coordinator.address)
                for order_id, order in self.coordinator.orders(epoch).items()
            ]
            await asyncio.gather(*(run.work() for run in runs))


Syphon = Callable[[AmqpDriver, AmqpDriver, VirtualLoop], Awaitable[object]]


async def on_spark(secondary: AmqpDriver, primary: AmqpDriver, clock: VirtualLoop) -> None:
    whole = WholeSyphon(secondary, primary, clock)
    try:
        await whole.run()
    finally:
        await whole.coordinator.close()


async def without_spark(secondary: AmqpDriver, primary: AmqpDriver, clock: VirtualLoop) -> None:
    options = MoverOptions(rules=DeliveryRules(primary_name="east"))
    search = BacklogSearch(secondary.receiver, "east")
    await Mover(secondary, primary, QUEUES, options, search=search, clock=clock).run()


class Counted(NamedTuple):
    """What a syphon did to both namespaces together, in units by operation."""

    start: Counter[str]
    idle: Counter[str]


def counted_by_both(
    loop: VirtualLoop, syphon: Syphon, *, hours: int, idle_detach_s: float | None = None
) -> Counted:
    """The start of a syphon, and the hours after it."""

    async def play() -> Counted:
        options = BrokerOptions(admin_port=None, idle_detach_s=idle_detach_s)
        async with Broker(options, clock=loop) as broker:
            west = await broker.add_namespace(NamespaceSpec("west", queues=QUEUES))
            east = await broker.add_namespace(NamespaceSpec("east", queues=["orders"]))
            for namespace in (west, east):
                loop.wait_while(lambda of=namespace: not of.access.is_quiet)  # type: ignore[misc]
            drivers = [
                AmqpDriver.from_connection_string(each.connection_string) for each in (west, east)
            ]
            running = asyncio.ensure_future(syphon(*drivers, loop))
            await asyncio.sleep(60)
            start = units(west) + units(east)
            await asyncio.sleep(hours * HOUR_S)
            idle = units(west) + units(east) - start
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for driver in drivers:
                await driver.close()
            return Counted(start, idle)

    return loop.run_until_complete(asyncio.wait_for(play(), 7 * 24 * HOUR_S))


@pytest.fixture
def few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks into memory are rarer, only to have fewer turns of the loop."""
    for interval in ("CONTROL_INTERVAL_S", "STATUS_INTERVAL_S"):
        monkeypatch.setattr(coordinator_module, interval, 600.0)
    monkeypatch.setattr(mover_module, "RETRY_INTERVAL_S", 600.0)


@pytest.mark.parametrize("syphon", [on_spark, without_spark])
def test_a_whole_idle_syphon_does_960_operations_a_day_and_nothing_else(
    loop: VirtualLoop, few_turns: None, syphon: Syphon
) -> None:
    """Y3, C2: head and tasks, on both namespaces. No peek is among them; the looks for what
    others set aside belong to the start."""
    counted = counted_by_both(loop, syphon, hours=24)
    assert counted.idle == {"empty-receive": 960}
    assert counted.start["peek"] == len(QUEUES)


@pytest.mark.parametrize("syphon", [on_spark, without_spark])
def test_where_idle_links_end_a_whole_syphon_does_80_operations_an_hour(
    loop: VirtualLoop, few_turns: None, syphon: Syphon
) -> None:
    """Y3, C2: what `twinbus cost estimate` says of such a service; nothing is looked for anew."""
    counted = counted_by_both(loop, syphon, hours=1, idle_detach_s=600)
    assert counted.idle == {"empty-receive": 80}


def test_a_message_after_hours_of_silence_rings_at_once(loop: VirtualLoop) -> None:
    """Y3: waiting costs nothing, and neither does waking: one send, one receive."""

    async def story(
        watcher: LongPollWatcher, driver: AmqpDriver, _namespace: RunningNamespace
    ) -> None:
        assert await watcher.ready(5 * HOUR_S + MOMENT_S) == {}
        began_s = loop.time()
        sender = driver.sender(QUEUES[3])
        await sender.send([OutgoingMessage(backlog("late"))], timeout_s=10)
        ready = await watcher.ready(HOUR_S)
        assert loop.time() - began_s < 0.1
        message = ready[QUEUES[3]]
        assert message is not None and id_of(message.encoded) == "late"

    assert told(loop, story) == {"empty-receive": 200, "send": 1, "receive": 1}

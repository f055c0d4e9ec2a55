"""The syphon's head without Spark, over namespaces in memory: what it orders, hears, looks for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.mover.fake_namespace import FakeNamespace
from tests.support.mover.messages import backlog
from twinbus.drivers.administration import MessageCounts, QueueProperties
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import AccessRefused, CommunicationError, ConfigurationError
from twinbus.mover.planning.stall_detector import StallDetector
from twinbus.mover.planning.work_order import CircuitSnapshot, WorkOrder, WorkReport, report_to_json
from twinbus.spark.syphon import coordinator as coordinator_module
from twinbus.spark.syphon.coordinator import SyphonCoordinator
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Control, StateDir, Status
from twinbus.spark.syphon.task import order_for_retry

QUEUES = tuple(f"east/x-servicebus-transfer/{index}" for index in range(3))


class Reference:
    """Stands for where a namespace is."""

    def __init__(self, driver: FakeNamespace) -> None:
        self._driver = driver
        self.is_open = False

    @asynccontextmanager
    async def open(self, **_books: Any) -> AsyncIterator[Any]:
        self.is_open = True
        yield SimpleNamespace(driver=self._driver, management=self)
        self.is_open = False

    async def list_queues(self, prefix: str) -> AsyncIterator[QueueProperties]:
        for path, queue in self._driver.queues.items():
            counts = MessageCounts(active=len(queue.messages))
            yield QueueProperties(path=path, counts=counts)


class Head:
    """A coordinator whose tasks are simulated by the test."""

    def __init__(self, **settings: Any) -> None:
        self.secondary = FakeNamespace(*QUEUES)
        self.secondary.patience_s = 0.02
        self.primary = FakeNamespace("orders")
        self.references: Any = (Reference(self.primary), Reference(self.secondary))
        self.coordinator = SyphonCoordinator(
            SyphonSettings(
                primary=self.references[0],
                secondary=self.references[1],
                primary_name="east",
                queues=QUEUES,
                tasks=1,
                **settings,
            )
        )
        self.epoch = 0

    async def ordered(self) -> WorkOrder:
        """The order of the next batch."""
        async with asyncio.timeout(5):
            self.epoch = await self.coordinator.next_epoch(self.epoch, once=False)
        (order,) = self.coordinator.orders(self.epoch).values()
        return order

    async def hear(self, kind: str, **facts: Any) -> dict[str, Any]:
        return await self.coordinator._handle_report(kind, facts)

    async def report(self, report: WorkReport, kind: str = "report") -> None:
        told = {"order": f"{self.epoch}/0", "report": report_to_json(report)}
        await self.hear(kind, **told)

    async def progress(self, **counts: int) -> dict[str, Any]:
        return await self.hear("progress", counts=counts, moved_bytes=0)

    async def begun(self, **more: Any) -> None:
        """The first batch is over, in which every queue was found empty."""
        order = await self.ordered()
        await self.report(WorkReport(emptied=QUEUES, scanned=tuple(order.scan_from), **more))

    def receives(self) -> int:
        return sum(line == "receive 1" for line in self.secondary.log)


Made = Callable[..., Awaitable[Head]]


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.01)


@pytest.fixture
async def head() -> AsyncIterator[Made]:
    heads: list[Head] = []

    async def made(**settings: Any) -> Head:
        heads.append(Head(**settings))
        await heads[-1].coordinator.start()
        return heads[-1]

    yield made
    for each in heads:
        await each.coordinator.close()


async def test_what_somebody_else_set_aside_is_found_in_an_idle_queue(
    head: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4, Y5: no long poll returns it, and no restart is needed for it, once messages came."""
    monkeypatch.setattr(coordinator_module, "STATUS_INTERVAL_S", 0.02)
    idle = await head()
    await idle.begun()
    await idle.progress(moved=1)
    dispatcher = idle.coordinator._dispatcher
    dispatcher.limits = replace(dispatcher.limits, discovery_interval_s=0.1)
    waiting = asyncio.create_task(idle.ordered())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    idle.secondary.put(QUEUES[2], backlog("forgotten"))
    idle.secondary.queues[QUEUES[2]].messages[1].is_deferred = True
    order = await waiting
    assert order.queues == (QUEUES[2],) and order.retry_deferred == {QUEUES[2]: {"orders": (1,)}}
    assert order.prefetched == ()


async def test_tasks_have_enough_when_a_queue_rings_that_is_not_in_their_batch(
    head: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4: nobody waits for a whole batch of others; and nothing is cut off for them."""
    busy = await head()
    await busy.begun()
    busy.secondary.put(QUEUES[0], backlog("first"))
    assert (await busy.ordered()).queues == (QUEUES[0],)
    assert await busy.progress() == {"stop": False, "enough": False}
    busy.secondary.put(QUEUES[1], backlog("other"))
    async with asyncio.timeout(5):
        while not busy.coordinator._watcher.has_messages:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
    monkeypatch.setattr(coordinator_module, "OTHERS_WAIT_S", 60.0)
    assert await busy.progress() == {"stop": False, "enough": False}, "it has just begun"
    monkeypatch.setattr(coordinator_module, "OTHERS_WAIT_S", 0.0)
    assert await busy.progress() == {"stop": False, "enough": True}
    await busy.report(WorkReport())
    assert set((await busy.ordered()).queues) == set(QUEUES[:2])


async def test_a_queue_that_is_at_work_is_not_listened_to(head: Made) -> None:
    """Its task receives what is in it; a long poll would take one message from it each time."""
    busy = await head()
    busy.secondary.patience_s = 30
    busy.secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(9)))
    await busy.ordered()
    await busy.report(WorkReport(emptied=QUEUES[1:], scanned=QUEUES))
    for _ in range(3):
        assert (await busy.ordered()).prefetched == ()
        await busy.report(WorkReport())
    assert busy.receives() == 2, "one poll for each of the two that are empty"


async def test_a_queue_whose_task_is_done_is_listened_to_while_others_are_at_work(
    head: Made,
) -> None:
    """Y3: it would be deaf until the batch is over."""
    busy = await head()
    busy.secondary.patience_s = 30
    busy.secondary.put(QUEUES[0], backlog("first"))
    await busy.begun()
    await busy.ordered()
    assert busy.receives() == 3
    await busy.report(WorkReport(emptied=(QUEUES[0],)))
    await asyncio.sleep(0.05)
    assert busy.receives() == 4


async def test_orders_wait_while_the_last_batch_was_too_fast(head: Made) -> None:
    slow = await head(rate_per_s=10.0)
    loop = asyncio.get_running_loop()
    await slow.begun(rate_delay_s=0.5)
    began_s = loop.time()
    slow.secondary.put(QUEUES[0], backlog("one"))
    await slow.ordered()
    assert loop.time() - began_s >= 0.45


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_drain_waits_for_its_rate_only_if_something_is_left(
    head: Made, is_left: bool
) -> None:
    drain = await head(rate_per_s=10.0)
    loop = asyncio.get_running_loop()
    await drain.coordinator.next_epoch(0, once=True)
    emptied = QUEUES[1:] if is_left else QUEUES
    drain.epoch = 1
    await drain.report(WorkReport(emptied=emptied, scanned=QUEUES, rate_delay_s=0.5))
    began_s = loop.time()
    assert await drain.coordinator.next_epoch(1, once=True) == (2 if is_left else 1)
    assert (loop.time() - began_s >= 0.45) == is_left


async def test_silent_destinations_do_not_pass_for_a_primary_that_is_away(head: Made) -> None:
    """Y4: nobody waits for them to answer when another one has."""
    away = await head()
    away.primary.silent.add("orders")
    open_circuits = (
        CircuitSnapshot("", 1, 0.0, None, False, False),
        CircuitSnapshot("orders", 1, 9, None, False, True),
    )
    await away.begun(is_primary_unreachable=True, open_circuits=open_circuits)
    away.secondary.put(QUEUES[0], backlog("one"))
    assert (await away.ordered()).queues == (QUEUES[0],)


async def test_messages_that_wait_while_none_moves_are_in_the_status(
    head: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y7: with what keeps them, until something moves."""
    monkeypatch.setattr(coordinator_module, "STATUS_INTERVAL_S", 0.02)
    stuck = await head(state_dir=str(tmp_path))
    stuck.coordinator._stall = StallDetector(stall_s=0.1)
    closed = CircuitSnapshot("orders", 1, 60.0, None, False, False)
    await stuck.begun(deferred={QUEUES[0]: {"orders": (1, 2)}}, open_circuits=(closed,))

    async def told(is_so: Callable[[str], bool]) -> str:
        async with asyncio.timeout(5):
            while (status := StateDir(tmp_path).status()) is None or not is_so(status.stalled):
                await asyncio.sleep(0.02)
        return status.stalled

    reason = await told(bool)
    assert "2" in reason and "orders" in reason
    await stuck.hear("progress", counts={"moved": 1}, moved_bytes=9)
    assert await told(lambda stalled: not stalled) == ""


async def test_missing_claims_are_in_the_status_at_once(
    head: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P18: those of the backlog, which long polls meet, and those of destinations, which tasks
    meet."""
    monkeypatch.setattr(coordinator_module, "STATUS_INTERVAL_S", 0.02)
    poor = await head(state_dir=str(tmp_path))
    closed = CircuitSnapshot("orders", 1, 60.0, None, False, False, is_refused=True)
    await poor.begun(open_circuits=(closed,))
    poor.coordinator._note_fault(QUEUES[1], AccessRefused("no Listen"))
    poor.coordinator._note_fault(QUEUES[2], CommunicationError("lost"))

    async def told(wanted: dict[str, str]) -> None:
        async with asyncio.timeout(5):
            while (status := StateDir(tmp_path).status()) is None or status.refused != wanted:
                await asyncio.sleep(0.02)

    await told({"orders": "Send", QUEUES[1]: "Listen"})
    poor.coordinator._note_fault(QUEUES[1], None)
    await told({"orders": "Send"})


async def test_a_drain_that_starts_paused_begins_when_it_is_resumed(
    head: Made, tmp_path: Path
) -> None:
    """What somebody has stopped is not moved by the next start."""
    state = StateDir(tmp_path)
    state.set_control(Control(is_paused=True))
    paused = await head(state_dir=str(tmp_path))
    starting = asyncio.create_task(paused.coordinator.next_epoch(0, once=True))
    await asyncio.sleep(0.5)
    assert not starting.done()
    state.set_control(Control())
    async with asyncio.timeout(5):
        assert await starting == 1


async def test_a_look_is_not_kept_by_a_pause(head: Made, tmp_path: Path) -> None:
    """It moves nothing, and an empty answer would say that nothing waits."""
    StateDir(tmp_path).set_control(Control(is_paused=True))
    looking = await head(state_dir=str(tmp_path), is_dry_run=True)
    async with asyncio.timeout(5):
        assert await looking.coordinator.next_epoch(0, once=True) == 1
        assert not (await looking.progress())["stop"]
        assert await looking.coordinator.next_epoch(1, once=True) == 1


async def test_numbers_that_come_ahead_of_a_report_are_kept(head: Made) -> None:
    """Y4: more of them than fit into one report."""
    full = await head()
    await full.ordered()
    await full.report(WorkReport(deferred={QUEUES[0]: {"orders": (1, 2)}}), "aside")
    last = WorkReport(deferred={QUEUES[0]: {"orders": (4,)}}, emptied=QUEUES, scanned=QUEUES)
    await full.report(last)
    assert (await full.ordered()).retry_deferred == {QUEUES[0]: {"orders": (1, 2, 4)}}


@pytest.mark.parametrize("once", [False, True])
async def test_a_query_ends_when_the_next_start_takes_its_directory(
    head: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """Y2: at a Spark Connect server it outlives its program: it neither wakes from its pause nor
    tells in the other's name."""
    monkeypatch.setattr(coordinator_module, "STATUS_INTERVAL_S", 0.02)
    state = StateDir(tmp_path)
    state.set_control(Control(run="first"))
    left = await head(state_dir=str(tmp_path), run="first")
    await left.begun()
    state.set_control(Control(run="first", is_paused=True))
    waiting = asyncio.create_task(left.coordinator.next_epoch(1, once=once))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    left.secondary.put(QUEUES[0], backlog("one"))
    state.set_control(Control(run="second"))
    told = Status(doing="told by the second")
    state.set_status(told)
    assert await left.progress() == {"stop": True, "enough": False}
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path))):
        await asyncio.wait_for(waiting, 5)
    await left.coordinator.close()
    await asyncio.sleep(0.1)
    assert state.status() == told


async def test_a_query_that_says_it_has_stopped_has_let_go_of_its_namespaces(
    head: Made, tmp_path: Path
) -> None:
    """L2, C1: Spark may kill it from then on, so that its links are closed and its books written;
    a stop that is taken back opens them again."""
    state = StateDir(tmp_path)
    stopping = await head(state_dir=str(tmp_path))
    await stopping.begun()
    waiting = asyncio.create_task(stopping.coordinator.next_epoch(stopping.epoch, once=False))
    state.set_control(Control(is_stopping=True))
    async with asyncio.timeout(5):
        while (status := state.status()) is None or status.doing != "stopped":
            await asyncio.sleep(0.01)
    assert [each.is_open for each in stopping.references] == [False, False]
    assert await asyncio.wait_for(waiting, 5) == stopping.epoch, "Spark may have lost its interrupt"
    state.set_control(Control())
    stopping.secondary.put(QUEUES[0], backlog("late"))
    assert (await stopping.ordered()).queues == (QUEUES[0],)
    assert [each.is_open for each in stopping.references] == [True, True]


def test_a_second_try_renews_what_the_first_was_handed() -> None:
    """Y1: it may be home already, and nobody but who holds its lock may send it."""
    handed = ReceivedMessage(
        path=QUEUES[0], encoded=b"", sequence_number=1, locked_until_ms=1 << 60
    )
    order = order_for_retry(WorkOrder(queues=QUEUES, prefetched=(handed,)))
    assert [each.locked_until_ms for each in order.prefetched] == [0]
    assert order.scan_from == dict.fromkeys(QUEUES, 1)


async def test_more_queues_that_hold_messages_are_ordered_and_ring(head: Made) -> None:
    """Y9: the first search is at the start; what is found rings like the others from then on."""
    fourth = "east/x-servicebus-transfer/7"
    made = Head()
    made.secondary.queues[fourth] = type(made.secondary.queues[QUEUES[0]])()
    made.secondary.put(fourth, backlog("m7"))
    await made.coordinator.start()
    try:
        async with asyncio.timeout(5):
            await made.coordinator._searched.wait()
        order = await made.ordered()
        assert set(order.queues) == {*QUEUES, fourth}
        everything = (*QUEUES, fourth)
        await made.report(WorkReport(emptied=everything, scanned=tuple(order.scan_from)))
        order = await made.ordered()
        assert order.queues == (fourth,), "its long poll returns"
    finally:
        await made.coordinator.close()


async def test_a_time_without_polls_makes_idle_queues_be_looked_through(
    head: Made, tmp_path: Path
) -> None:
    """Y3, Y4: long polls do not return what others received meanwhile and deferred."""
    made = await head(state_dir=str(tmp_path))
    await made.begun()
    dispatcher, state = made.coordinator._dispatcher, StateDir(tmp_path)
    waiting = asyncio.create_task(made.coordinator.next_epoch(made.epoch, once=False))
    try:
        await until(lambda: made.coordinator._status.doing == "waiting")
        assert dispatcher.queues_to_scan(made.coordinator._now_s() + 3_600) == []
        state.set_control(Control(is_paused=True))
        await until(lambda: made.coordinator._status.doing == "paused")
        state.set_control(Control())
        await until(lambda: made.coordinator._status.doing == "waiting")
        assert dispatcher.queues_to_scan(made.coordinator._now_s() + 3_600) == list(QUEUES)
    finally:
        waiting.cancel()


async def test_a_poll_that_failed_makes_idle_queues_be_looked_through(head: Made) -> None:
    """Y3, Y4: as long as it failed, messages were for others alone."""
    made = await head()
    await made.begun()
    made.coordinator._note_fault(QUEUES[0], CommunicationError("reset"))
    made.coordinator._note_fault(QUEUES[0], None)
    later_s = made.coordinator._now_s() + 3_600
    assert made.coordinator._dispatcher.queues_to_scan(later_s) == list(QUEUES)


async def test_foreign_messages_are_in_the_status_and_make_looks_more_frequent(head: Made) -> None:
    """P21: the syphon of the other pair may set ours aside."""
    made = await head(gone_grace_s=600.0)
    await made.begun()
    dispatcher = made.coordinator._dispatcher
    now_s = made.coordinator._now_s()
    assert dispatcher.queues_to_scan(now_s + 90) == []
    told = {"counts": {"foreign": 3}, "moved_bytes": 0}
    await made.hear("progress", **told, foreign=[[QUEUES[1], "0123456789ab old.example", 3]])
    await made.hear("progress", **told, foreign=[[QUEUES[1], "0123456789ab old.example", 2]])
    assert made.coordinator._status.foreign == {"0123456789ab old.example": 5}
    assert dispatcher.queues_to_scan(now_s + 90) == [QUEUES[1]]

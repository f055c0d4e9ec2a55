"""One task's work for the syphon, over namespaces in memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.support.mover.fake_namespace import FakeNamespace, FakeReceiver
from tests.support.mover.messages import backlog
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import AccessRefused, CommunicationError, EntityDisabled
from twinbus.failover.backoff import Backoff
from twinbus.mover.chunk_transfer import PRIMARY
from twinbus.mover.mover import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.circuit_breaker import DestinationCircuits
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.planning.work_order import CircuitSnapshot, WorkOrder, WorkReport
from twinbus.mover.primary_probe import PROBE_PATH
from twinbus.mover.work_order_runner import run_work_order

QUEUES = tuple(f"east/x-servicebus-transfer/{index}" for index in range(3))
FIRST = QUEUES[0]


@pytest.fixture
def secondary() -> FakeNamespace:
    return FakeNamespace(*QUEUES)


@pytest.fixture
def primary() -> FakeNamespace:
    return FakeNamespace("orders", "news")


def options(**more: object) -> MoverOptions:
    given = {"backoff": Backoff(first_s=0.05, last_s=0.2), **more}
    return MoverOptions(rules=DeliveryRules(primary_name="east"), **given)  # type: ignore[arg-type]


class Shifts:
    """Works orders one after the other, and keeps their receipts."""

    def __init__(self, secondary: FakeNamespace, primary: FakeNamespace) -> None:
        self.secondary, self.primary = secondary, primary
        self.receipts: list[Receipt] = []

    async def work(
        self,
        order: WorkOrder | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        has_enough: Callable[[], bool] = lambda: False,
        **more: object,
    ) -> WorkReport:
        async with asyncio.timeout(30):
            return await run_work_order(
                self.secondary,
                self.primary,
                order or WorkOrder(queues=QUEUES),
                options(**more),
                on_receipts=self.receipts.extend,
                should_stop=should_stop,
                has_enough=has_enough,
            )

    def outcomes(self) -> Counter[ReceiptOutcome]:
        return Counter(each.outcome for each in self.receipts)


@pytest.fixture
def shifts(secondary: FakeNamespace, primary: FakeNamespace) -> Shifts:
    return Shifts(secondary, primary)


def messages(prefix: str, count: int, path: str = "orders") -> list[bytes]:
    return [backlog(f"{prefix}{number}", path) for number in range(count)]


async def locked(
    secondary: FakeNamespace, queue: str, count: int = 1, lock_left_s: float = 60.0
) -> tuple[ReceivedMessage, ...]:
    """What somebody else received from a queue."""
    until_ms = int((time.time() + lock_left_s) * 1000)
    found = await secondary.receiver(queue).receive(count, wait_s=1)
    secondary.log.clear()
    return tuple(each._replace(locked_until_ms=until_ms) for each in found)


def note(path: str, due_in_s: float = 0.0) -> CircuitSnapshot:
    return CircuitSnapshot(path, 1, due_in_s, None, False, False)


# -- what waits in the queues -----------------------------------------------------------------


async def test_a_shift_empties_its_queues(shifts: Shifts) -> None:
    for queue in QUEUES:
        shifts.secondary.put(queue, *messages(queue, 250))
    report = await shifts.work()
    assert report == WorkReport(emptied=report.emptied)
    assert set(report.emptied) == set(QUEUES)
    assert len(set(shifts.primary.queues["orders"].ids())) == 750
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 750}


async def test_an_empty_queue_costs_one_receive(shifts: Shifts) -> None:
    await shifts.work()
    assert len(shifts.secondary.log) == len(QUEUES)


async def test_a_queue_that_cannot_be_read_is_told_and_the_others_go_on(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = FakeReceiver.receive

    async def refusing(self: FakeReceiver, count: int, *, wait_s: float) -> list[ReceivedMessage]:
        if self.path == FIRST:
            raise AccessRefused("Listen is missing")
        return await receive(self, count, wait_s=wait_s)

    monkeypatch.setattr(FakeReceiver, "receive", refusing)
    shifts.secondary.put(QUEUES[1], *messages("m", 10))
    report = await shifts.work()
    assert report.faults == {FIRST: "Listen is missing."}
    assert set(report.emptied) == set(QUEUES[1:])
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 10}


async def test_no_chunk_is_received_after_so_many_messages(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 1_000))
    order = WorkOrder(queues=(FIRST,), messages_max=150)
    report = await shifts.work(order, chunk_count=50)
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 150}
    assert report.emptied == ()


async def test_no_chunk_is_received_after_so_many_seconds(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 1_000))
    shifts.primary.delay_s = 0.1
    order = WorkOrder(queues=(FIRST,), seconds_max=0.25)
    await shifts.work(order, chunk_count=10)
    assert 20 <= shifts.outcomes()[ReceiptOutcome.MOVED] <= 100


async def test_a_shift_keeps_its_rate(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 30))
    began_s = time.monotonic()
    await shifts.work(WorkOrder(queues=(FIRST,), rate_per_s=50), chunk_count=10)
    assert time.monotonic() - began_s >= 0.3
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 30}


async def test_a_slow_rate_does_not_keep_a_shift_beyond_its_time(shifts: Shifts) -> None:
    """And what it was ahead of its rate by is told, for the next one."""
    shifts.secondary.put(FIRST, *messages("m", 9))
    began_s = time.monotonic()
    report = await shifts.work(WorkOrder(queues=(FIRST,), rate_per_s=0.2, seconds_max=0.5))
    assert time.monotonic() - began_s < 2
    assert report.rate_delay_s > 3 and report.emptied == ()


async def test_a_dry_run_only_looks(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 3), backlog("bad", "$management"))
    handed = await locked(shifts.secondary, FIRST)
    await shifts.work(WorkOrder(queues=QUEUES, prefetched=handed, is_dry_run=True))
    assert shifts.outcomes() == {
        ReceiptOutcome.WOULD_MOVE: 3,
        ReceiptOutcome.WOULD_DEAD_LETTER: 1,
        ReceiptOutcome.RELEASED: 1,
    }
    assert len(shifts.secondary.queues[FIRST].messages) == 4
    assert not any(each.holder for each in shifts.secondary.queues[FIRST].messages.values())


# -- what was handed over ---------------------------------------------------------------------


async def test_messages_that_were_handed_over_are_moved(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 5))
    handed = await locked(shifts.secondary, FIRST, 2)
    await shifts.work(WorkOrder(queues=(FIRST,), prefetched=handed))
    assert sorted(shifts.primary.queues["orders"].ids()) == [f"m{n}" for n in range(5)]
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 5}
    assert "renew 2" not in shifts.secondary.log


async def test_an_old_lock_is_renewed_before_its_message_is_moved(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 2))
    handed = await locked(shifts.secondary, FIRST, 2, lock_left_s=10)
    await shifts.work(WorkOrder(queues=(FIRST,), prefetched=handed))
    assert "renew 2" in shifts.secondary.log
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 2}


async def test_a_message_whose_lock_is_lost_is_left_to_others(shifts: Shifts) -> None:
    """Y1: an order may be late, or worked twice; nothing is sent that others have."""
    shifts.secondary.put(FIRST, *messages("m", 2))
    handed = await locked(shifts.secondary, FIRST, 2, lock_left_s=0)
    shifts.secondary.expire_locks()
    await shifts.work(WorkOrder(queues=(FIRST,), prefetched=handed))
    assert shifts.outcomes() == {ReceiptOutcome.RELEASED: 2, ReceiptOutcome.MOVED: 2}
    assert sorted(shifts.primary.queues["orders"].ids()) == ["m0", "m1"]


async def test_a_handed_message_for_a_silent_destination_does_not_hold_up_its_queue(
    shifts: Shifts,
) -> None:
    """Y4: neither what waits behind it, nor what comes meanwhile into another queue."""
    shifts.primary.silent.add("news")
    shifts.secondary.put(FIRST, *messages("silent", 1, "news"), *messages("live", 10))
    handed = await locked(shifts.secondary, FIRST)
    task = asyncio.create_task(
        shifts.work(WorkOrder(queues=QUEUES, prefetched=handed), send_timeout_s=2.0)
    )
    await asyncio.sleep(0.7)
    shifts.secondary.put(QUEUES[1], *messages("late", 1))
    await asyncio.sleep(0.3)
    assert len(shifts.primary.queues["orders"].messages) == 11
    assert not task.done()
    report = await task
    assert report.deferred == {FIRST: {"news": (1,)}}
    assert report.open_circuits[0].timed_out


# -- what was set aside -----------------------------------------------------------------------


async def test_what_was_set_aside_is_brought_back_when_its_destination_may_be_tried(
    shifts: Shifts,
) -> None:
    shifts.primary.refusals["news"] = lambda encoded: EntityDisabled("it is disabled")
    shifts.secondary.put(FIRST, *messages("dead", 20, "news"), *messages("live", 5))
    first = await shifts.work()
    # In which order depends on the probes that went meanwhile
    assert sorted(first.deferred[FIRST]["news"]) == list(range(1, 21))
    assert [each.path for each in first.open_circuits] == ["news"]
    assert len(shifts.primary.queues["orders"].messages) == 5

    shifts.primary.refusals.clear()
    order = WorkOrder(queues=QUEUES, retry_deferred=first.deferred, open_circuits=(note("news"),))
    second = await shifts.work(order)
    assert second.deferred == {} and second.open_circuits == ()
    assert second.recovered == ("news",)
    assert len(shifts.primary.queues["news"].messages) == 20


async def test_what_may_not_be_tried_yet_stays_in_the_report(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 3))
    for stored in shifts.secondary.queues[FIRST].messages.values():
        stored.is_deferred = True
    order = WorkOrder(
        queues=QUEUES,
        retry_deferred={FIRST: {"orders": (1, 2, 3)}},
        open_circuits=(note("orders", 60),),
    )
    report = await shifts.work(order)
    assert report.deferred == order.retry_deferred
    assert [each.path for each in report.open_circuits] == ["orders"]
    assert report.recovered == ()
    assert shifts.receipts == []


async def test_numbers_that_are_no_longer_set_aside_are_no_error(shifts: Shifts) -> None:
    """Rule 1 of an order: it may be worked twice."""
    shifts.secondary.put(FIRST, *messages("m", 3))
    shifts.secondary.queues[FIRST].messages[2].is_deferred = True
    order = WorkOrder(queues=(FIRST,), retry_deferred={FIRST: {"orders": (2, 700, 701)}})
    report = await shifts.work(order)
    assert report.deferred == {} and report.faults == {}
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 3}


async def test_fresh_messages_of_a_destination_that_others_hold_do_not_wait_for_it(
    shifts: Shifts,
) -> None:
    """Y4: to hear nothing takes a whole timeout; whoever has its messages can probe."""
    shifts.primary.silent.add("news")
    shifts.secondary.put(FIRST, *messages("m", 5, "news"))
    silent = note("news")._replace(timed_out=True)
    order = WorkOrder(
        queues=(FIRST,), open_circuits=(silent,), blocked_paths={FIRST: ("news",)}, seconds_max=0
    )
    handed = await locked(shifts.secondary, FIRST, 5)
    began_s = time.monotonic()
    report = await shifts.work(replace(order, prefetched=handed), send_timeout_s=5.0)
    assert time.monotonic() - began_s < 2
    assert report.deferred == {FIRST: {"news": (1, 2, 3, 4, 5)}}
    assert shifts.outcomes() == {ReceiptOutcome.DEFERRED: 5}


async def test_a_queue_is_looked_through_when_it_is_empty(shifts: Shifts) -> None:
    """Y5: what a task set aside whose report never came."""
    shifts.secondary.put(FIRST, *messages("m", 3))
    for stored in shifts.secondary.queues[FIRST].messages.values():
        stored.is_deferred = True
    report = await shifts.work(WorkOrder(queues=QUEUES, scan_from={FIRST: 1}))
    assert report.scanned == (FIRST,)
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 3}


async def test_a_look_that_takes_long_goes_on_in_the_next_shift(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4: a queue with very many messages does not hold up the others of its batch."""
    shifts.secondary.put(FIRST, *messages("m", 1_000, "news"))
    for stored in shifts.secondary.queues[FIRST].messages.values():
        stored.is_deferred = True
    peek = FakeReceiver.peek

    async def slow(
        self: FakeReceiver, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        await asyncio.sleep(0.3)
        return await peek(self, count_max, from_sequence=from_sequence, timeout_s=timeout_s)

    monkeypatch.setattr(FakeReceiver, "peek", slow)
    found: list[int] = []
    looks, first = 0, {FIRST: 1}
    while first:
        order = WorkOrder(
            queues=(FIRST,), scan_from=first, open_circuits=(note("news", 900),), seconds_max=0.4
        )
        report = await shifts.work(order)
        found += report.deferred[FIRST]["news"] if report.deferred else ()
        looks, first = looks + 1, dict(report.to_scan)
    assert sorted(found) == list(range(1, 1_001)) and looks > 1
    assert report.scanned == (FIRST,)


async def test_a_queue_is_served_on_while_a_silent_destination_keeps_its_shift(
    shifts: Shifts,
) -> None:
    """Y4: also when the time of the shift is over."""
    shifts.primary.silent.add("news")
    shifts.secondary.put(FIRST, *messages("silent", 1, "news"))
    order = WorkOrder(queues=QUEUES, seconds_max=0.3)
    task = asyncio.create_task(shifts.work(order, send_timeout_s=2.0))
    await asyncio.sleep(0.7)
    shifts.secondary.put(QUEUES[1], *messages("late", 1))
    await asyncio.sleep(0.7)
    assert shifts.primary.queues["orders"].ids() == ["late0"] and not task.done()
    await task


async def test_a_queue_is_served_on_although_others_ring_while_a_silent_one_keeps_the_shift(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4: the batch cannot end before, so that nobody would gain by waiting."""
    monkeypatch.setattr("twinbus.mover.work_order_runner.LONG_STEP_S", 0.2)
    shifts.primary.silent.add("news")
    shifts.secondary.put(FIRST, *messages("silent", 1, "news"))
    others_ring = asyncio.Event()
    working = shifts.work(has_enough=others_ring.is_set, send_timeout_s=2.0)
    task = asyncio.create_task(working)
    await asyncio.sleep(0.5)
    others_ring.set()
    await asyncio.sleep(0.2)
    shifts.secondary.put(QUEUES[1], *messages("late", 1))
    await asyncio.sleep(0.7)
    assert shifts.primary.queues["orders"].ids() == ["late0"] and not task.done()
    await task


# -- nobody at home, and ends -----------------------------------------------------------------


async def test_nothing_is_received_while_nobody_is_at_home(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 10))
    handed = await locked(shifts.secondary, FIRST)
    order = WorkOrder(
        queues=QUEUES, prefetched=handed, open_circuits=(note(PRIMARY, 30), note("orders", 30))
    )
    report = await shifts.work(order)
    assert report.is_primary_unreachable
    assert {each.path for each in report.open_circuits} == {PRIMARY, "orders"}
    assert shifts.outcomes() == {ReceiptOutcome.RELEASED: 1}
    assert not [line for line in shifts.secondary.log if line.startswith("receive")]
    # And what was handed over waits for nobody's lock
    assert not any(each.holder for each in shifts.secondary.queues[FIRST].messages.values())


async def test_a_shift_knocks_when_it_is_time_to(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 10))
    order = WorkOrder(queues=QUEUES, open_circuits=(note(PRIMARY), note("orders", 30)))
    report = await shifts.work(order)
    assert not report.is_primary_unreachable
    assert set(report.recovered) == {PRIMARY, "orders"}
    assert shifts.outcomes()[ReceiptOutcome.MOVED] == 10


async def test_a_shift_ends_when_the_primary_goes_away(shifts: Shifts) -> None:
    shifts.secondary.put(FIRST, *messages("m", 5_000))
    shifts.primary.refusals["orders"] = lambda encoded: CommunicationError("refused")
    report = await shifts.work(chunk_count=50)
    assert report.is_primary_unreachable
    assert len(shifts.receipts) <= 200
    assert sum(map(len, report.deferred[FIRST].values())) == len(shifts.receipts)


async def test_a_stop_ends_a_shift_after_its_chunks_with_a_report(shifts: Shifts) -> None:
    """L2: asked between chunks."""
    shifts.secondary.put(FIRST, *messages("m", 5_000))
    shifts.primary.delay_s = 0.02
    report = await shifts.work(should_stop=lambda: len(shifts.receipts) >= 100, chunk_count=50)
    assert 100 <= len(shifts.receipts) <= 250
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: len(shifts.receipts)}
    assert report.faults == {}


async def test_a_shift_that_shall_stop_before_it_begins_gives_back_what_it_has(
    shifts: Shifts,
) -> None:
    shifts.secondary.put(FIRST, *messages("m", 5))
    handed = await locked(shifts.secondary, FIRST)
    order = WorkOrder(queues=QUEUES, prefetched=handed, retry_deferred={FIRST: {"news": (9,)}})
    report = await shifts.work(order, should_stop=lambda: True)
    assert report.deferred == {FIRST: {"news": (9,)}}
    assert shifts.outcomes() == {ReceiptOutcome.RELEASED: 1}
    assert not any(each.holder for each in shifts.secondary.queues[FIRST].messages.values())


async def test_a_chunk_that_does_not_end_is_cut_off_and_the_report_is_made(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: at most 5 s; every copy that may come again is announced."""
    monkeypatch.setattr("twinbus.mover.queue_group.STOP_S_MAX", 0.05)
    shifts.secondary.put(FIRST, *messages("m", 3))
    shifts.primary.delay_s = 900
    report = await shifts.work(should_stop=lambda: "send orders 3" in shifts.primary.log)
    assert shifts.outcomes() == {ReceiptOutcome.AMBIGUOUS: 3}
    assert FIRST not in report.emptied


async def test_a_stop_does_not_wait_for_a_knock(shifts: Shifts) -> None:
    shifts.primary.silent |= {"orders", PROBE_PATH}
    order = WorkOrder(queues=QUEUES, open_circuits=(note(PRIMARY), note("orders")))
    began_s = time.monotonic()
    stop_s = began_s + 0.3
    await shifts.work(order, should_stop=lambda: time.monotonic() >= stop_s)
    assert time.monotonic() - began_s < 2


async def test_a_silent_destination_does_not_pass_for_a_primary_that_is_away(
    shifts: Shifts,
) -> None:
    """Y4: that there is no such entity is an answer, too."""
    shifts.primary.silent.add("news")
    shifts.secondary.put(FIRST, *messages("m", 10))
    order = WorkOrder(queues=QUEUES, open_circuits=(note(PRIMARY), note("news", 30)))
    report = await shifts.work(order)
    assert not report.is_primary_unreachable
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: 10}


async def test_a_shift_that_has_enough_ends_what_it_began(shifts: Shifts) -> None:
    """Nothing is cut off, and the queue is not called empty: the next batch goes on with it."""
    shifts.secondary.put(FIRST, *messages("m", 5_000))
    shifts.primary.delay_s = 0.02
    report = await shifts.work(has_enough=lambda: len(shifts.receipts) >= 100, chunk_count=50)
    assert 100 <= len(shifts.receipts) <= 250
    assert shifts.outcomes() == {ReceiptOutcome.MOVED: len(shifts.receipts)}
    assert FIRST not in report.emptied and report.faults == {}


async def test_what_was_being_set_aside_when_a_shift_was_cut_off_is_in_its_report(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4: deferred messages ring no bell, so that their numbers must not be lost."""
    monkeypatch.setattr("twinbus.mover.queue_group.STOP_S_MAX", 0.05)
    defer, deferred = FakeReceiver.defer, asyncio.Event()

    async def slow(
        self: FakeReceiver, given: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        await defer(self, given, timeout_s=timeout_s)
        deferred.set()
        await asyncio.sleep(900)
        return []

    monkeypatch.setattr(FakeReceiver, "defer", slow)
    shifts.primary.refusals["orders"] = lambda encoded: EntityDisabled("it is disabled")
    shifts.secondary.put(FIRST, *messages("m", 3))
    report = await shifts.work(should_stop=deferred.is_set)
    assert report.deferred == {FIRST: {"orders": (1, 2, 3)}}


async def test_a_cancelled_shift_leaves_no_task_behind(shifts: Shifts) -> None:
    before = asyncio.all_tasks()
    shifts.secondary.put(FIRST, *messages("m", 3))
    shifts.primary.delay_s = 900
    task = asyncio.create_task(shifts.work())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


# -- several shifts ---------------------------------------------------------------------------


async def test_a_dead_destination_ahead_of_a_live_one_over_several_shifts(shifts: Shifts) -> None:
    """Y4: the live ones are home in the first shift; the dead ones cost a few probes each shift,
    and come home once their destination takes them."""
    secondary, primary = shifts.secondary, shifts.primary
    secondary.put(FIRST, *messages("dead", 4_000, "news"), *messages("live", 100))
    primary.refusals["news"] = lambda encoded: EntityDisabled("it is disabled")
    report = await shifts.work()
    assert len(primary.queues["orders"].messages) == 100
    assert sum(map(len, report.deferred[FIRST].values())) == 4_000
    assert len(secondary.log) < 100

    for _ in range(3):
        before = len(secondary.log)
        report = await shifts.work(await _following(report))
        assert len(secondary.log) - before < 20
    counts = [each.delivery_count for each in secondary.queues[FIRST].messages.values()]
    assert sum(counts) / len(counts) < 1.5

    primary.refusals.clear()
    for _ in range(10):
        report = await shifts.work(await _following(report))
        if not report.deferred:
            break
    assert sorted(primary.queues["news"].ids()) == sorted(f"dead{n}" for n in range(4_000))
    assert report.open_circuits == ()


async def _following(report: WorkReport) -> WorkOrder:
    """What somebody orders who remembers a report for a while."""
    circuits = DestinationCircuits(Backoff(), Random())
    circuits.import_state(report.open_circuits, time.monotonic())
    await asyncio.sleep(0.1)
    notes = circuits.export_state(time.monotonic())
    return WorkOrder(queues=QUEUES, retry_deferred=report.deferred, open_circuits=notes)

"""A mover that runs: until everything is home, or until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.support.mover.fake_namespace import FakeNamespace, FakeReceiver
from tests.support.mover.messages import backlog
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    ConfigurationError,
    EntityDisabled,
    ServiceError,
)
from twinbus.failover.backoff import Backoff
from twinbus.mover import mover as mover_module
from twinbus.mover.chunk_transfer import PRIMARY
from twinbus.mover.mover import LocalSyphon, Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.circuit_breaker import SendSignal
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.primary_probe import PROBE_PATH

QUEUES = [f"east/x-servicebus-transfer/{index}" for index in range(3)]
RULES = DeliveryRules(primary_name="east")


def options(**more: object) -> MoverOptions:
    given = {"backoff": Backoff(first_s=0.01, last_s=0.05), "poll_s": 0.05, **more}
    return MoverOptions(rules=RULES, **given)  # type: ignore[arg-type]


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.005)


@pytest.fixture
def secondary() -> FakeNamespace:
    return FakeNamespace(*QUEUES)


@pytest.fixture
def primary() -> FakeNamespace:
    return FakeNamespace("orders", "news")


async def test_a_run_over_everything_empties_all_queues(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    for queue in QUEUES:
        secondary.put(queue, *(backlog(f"{queue}-{number}") for number in range(250)))
    report = await Mover(secondary, primary, QUEUES, options()).run(once=True)
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 750
    assert len(set(primary.queues["orders"].ids())) == 750


async def test_two_movers_share_a_backlog(secondary: FakeNamespace, primary: FakeNamespace) -> None:
    """Y5: any number of syphons; every message is moved by one of them."""
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(1_500)))
    movers = [Mover(secondary, primary, QUEUES, options(chunk_count=50)) for _ in range(2)]
    reports = await asyncio.gather(*(each.run(once=True) for each in movers))
    assert all(each.receipt_counts.counts[ReceiptOutcome.MOVED] for each in reports)
    assert sorted(primary.queues["orders"].ids()) == sorted(f"m{n}" for n in range(1_500))


async def test_a_queue_that_cannot_be_read_does_not_stop_the_others(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUES[0], backlog("a"))
    secondary.receive_error = AccessRefused("Listen is missing")
    told: list[tuple[str, ServiceError]] = []
    mover = Mover(
        secondary,
        primary,
        QUEUES,
        options(),
        on_fault=lambda queue, error: told.append((queue, error)),
    )
    report = await mover.run(once=True)
    assert set(report.faults) == set(QUEUES)
    assert {queue for queue, _error in told} == set(QUEUES)


async def test_a_queue_that_can_be_read_again_is_no_fault_any_more(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.receive_error = CommunicationError("nobody there")
    secondary.put(QUEUES[0], backlog("a"))
    running = Mover(secondary, primary, QUEUES, options())
    task = asyncio.create_task(running.run())
    await until(lambda: set(running.report.faults) == set(QUEUES))
    secondary.receive_error = None
    await until(lambda: not running.report.faults)
    await until(lambda: primary.queues["orders"].ids() == ["a"])
    running.stop()
    await task


async def test_a_live_destination_is_home_although_a_dead_one_is_ahead(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: the dead one's messages are received once, and do not stand before others."""
    secondary.put(QUEUES[0], *(backlog(f"dead{number}", "news") for number in range(3_000)))
    secondary.put(QUEUES[0], *(backlog(f"live{number}") for number in range(30)))
    primary.refusals["news"] = lambda encoded: EntityDisabled("it is disabled")
    running = Mover(secondary, primary, QUEUES, options())
    task = asyncio.create_task(running.run())
    await until(lambda: len(primary.queues["orders"].messages) == 30)
    counts = [each.delivery_count for each in secondary.queues[QUEUES[0]].messages.values()]
    # Probes ask for a few of them again; nobody receives them all over and over
    assert sum(counts) / len(counts) < 2

    # When it takes messages again, all of them come home
    primary.refusals.clear()
    await until(lambda: not secondary.queues[QUEUES[0]].messages)
    running.stop()
    report = await task
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 3_030


async def test_nothing_is_received_while_nobody_is_there_to_send_to(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    knock_count = 0

    def knocked(encoded: Sequence[bytes]) -> ServiceError:
        nonlocal knock_count
        knock_count += not encoded
        return CommunicationError("refused", was_sent=False)

    primary.refusals.update(dict.fromkeys(["orders", PROBE_PATH], knocked))
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(1_000)))
    running = Mover(secondary, primary, QUEUES[:1], options(chunks_at_once=1))
    task = asyncio.create_task(running.run())
    await until(lambda: "defer 100" in secondary.log)
    before = knock_count
    await until(lambda: knock_count > before + 4)
    assert len([line for line in secondary.log if line.startswith("receive ")]) == 1
    assert running.report.receipt_counts.counts[ReceiptOutcome.DEFERRED] == 100

    primary.refusals.clear()
    await until(lambda: not secondary.queues[QUEUES[0]].messages)
    running.stop()
    await task
    assert len(primary.queues["orders"].ids()) == 1_000


async def test_a_run_over_everything_ends_when_nobody_is_there_to_send_to(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    primary.refusals["orders"] = lambda encoded: CommunicationError("refused", was_sent=False)
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(5_000)))
    report = await Mover(secondary, primary, QUEUES, options()).run(once=True)
    assert report.receipt_counts.total <= 1_100
    assert len(secondary.queues[QUEUES[0]].messages) == 5_000


@pytest.mark.parametrize("is_away_at_first", [False, True])
async def test_what_a_killed_mover_set_aside_is_found_before_the_first_long_poll(
    secondary: FakeNamespace, primary: FakeNamespace, is_away_at_first: bool
) -> None:
    """Y5: also when the backlog cannot be read at first."""
    secondary.patience_s = 900
    secondary.put(QUEUES[0], backlog("a"))
    for stored in secondary.queues[QUEUES[0]].messages.values():
        stored.is_deferred = True
    if is_away_at_first:
        secondary.receive_error = CommunicationError("nobody there")
    running = Mover(secondary, primary, QUEUES, options(poll_s=900))
    task = asyncio.create_task(running.run())
    if is_away_at_first:
        await until(lambda: set(running.report.faults) == set(QUEUES))
        secondary.receive_error = None
    await until(lambda: primary.queues["orders"].ids() == ["a"])
    running.stop()
    await task


async def test_a_stop_ends_a_long_poll_at_once(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """L2: the syphon stops after the current chunk."""
    running = Mover(secondary, primary, QUEUES, options(poll_s=900))
    task = asyncio.create_task(running.run())
    await asyncio.sleep(0.05)
    running.stop()
    await asyncio.wait_for(task, 5)


async def test_a_stop_lets_the_chunk_under_way_end(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(100)))
    primary.delay_s = 0.2
    running = Mover(secondary, primary, QUEUES, options())
    task = asyncio.create_task(running.run())
    await until(lambda: "send orders 100" in primary.log)
    running.stop()
    report = await task
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 100
    assert secondary.queues[QUEUES[0]].messages == {}


async def test_all_links_are_let_go_of_at_once(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: ten queues of a silent namespace take no longer to close than one."""
    closing = 0

    async def close(_: object) -> None:
        nonlocal closing
        closing += 1
        async with asyncio.timeout(10):
            while closing < len(QUEUES):
                await asyncio.sleep(0.005)

    monkeypatch.setattr(FakeReceiver, "close", close)
    await Mover(secondary, primary, QUEUES, options()).close()
    assert closing == len(QUEUES)


async def test_a_chunk_that_does_not_end_is_cut_off_and_told_of(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: at most 5 s; every copy that may come again is announced."""
    monkeypatch.setattr("twinbus.mover.queue_group.STOP_S_MAX", 0.05)
    secondary.put(QUEUES[0], backlog("a"))
    primary.delay_s = 900
    receipts: list[Receipt] = []
    running = Mover(secondary, primary, QUEUES, options(), on_receipts=receipts.extend)
    task = asyncio.create_task(running.run())
    await until(lambda: "send orders 1" in primary.log)
    running.stop()
    await asyncio.wait_for(task, 10)
    assert [each.outcome for each in receipts] == [ReceiptOutcome.AMBIGUOUS]


async def test_cancelling_a_run_leaves_no_task_behind(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    before = asyncio.all_tasks()
    task = asyncio.create_task(Mover(secondary, primary, QUEUES, options(poll_s=900)).run())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


async def test_a_run_that_breaks_leaves_no_task_behind(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """What ends the mover of one queue ends the others too, and the error is told."""

    def broken(_receipts: Sequence[Receipt]) -> None:
        raise ZeroDivisionError

    secondary.put(QUEUES[1], backlog("a"))
    before = asyncio.all_tasks()
    running = Mover(secondary, primary, QUEUES, options(poll_s=900), on_receipts=broken)
    with pytest.raises(BaseExceptionGroup):
        await running.run()
    assert asyncio.all_tasks() == before


async def test_a_silent_destination_does_not_hide_that_the_primary_is_there(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: after a lost line nobody waits for a destination that never answers."""
    primary.silent.add("news")
    secondary.put(QUEUES[0], backlog("silent", "news"))
    running = Mover(secondary, primary, QUEUES, options(send_timeout_s=0.2))
    task = asyncio.create_task(running.run())
    await until(lambda: running.report.receipt_counts.counts[ReceiptOutcome.DEFERRED] >= 1)
    # The line breaks once, for a moment
    breaks = [CommunicationError("lost")]
    primary.refusals["orders"] = lambda encoded: breaks.pop() if encoded and breaks else None
    secondary.put(QUEUES[1], backlog("first"))
    await until(lambda: not breaks)
    secondary.put(QUEUES[2], backlog("second"))
    await until(lambda: sorted(primary.queues["orders"].ids()) == ["first", "second"])
    running.stop()
    await task


async def test_a_live_destination_shows_that_the_primary_is_there(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: the line broke, and the only destination that is closed is a silent one."""
    primary.silent.add("news")
    mover = Mover(secondary, primary, QUEUES, options(send_timeout_s=0.1))
    await mover._queue_group.senders.limit_bytes("orders", timeout_s=1)
    for path in ("news", PRIMARY):
        mover._queue_group.circuits.receive(path, SendSignal.FAILED, 0.0)
    async with asyncio.timeout(10):
        await mover._queue_group.primary_probe.wait_until_reachable()
    await mover.close()


async def test_a_rate_is_kept(secondary: FakeNamespace, primary: FakeNamespace) -> None:
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(30)))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await Mover(secondary, primary, QUEUES[:1], options(rate_per_s=50)).run(once=True)
    assert loop.time() - began_s >= 0.3
    assert len(primary.queues["orders"].messages) == 30


async def test_an_idle_queue_has_one_long_poll(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y3: one receive under way for each queue, however many chunks may be."""
    waiting = 0
    most = 0

    async def receive(*_: object, **__: object) -> Sequence[object]:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            await asyncio.sleep(0.02)
        finally:
            waiting -= 1
        return []

    running = Mover(secondary, primary, QUEUES[:1], options(chunks_at_once=4))
    running.queues[0]._receiver.receive = receive  # type: ignore[assignment,method-assign]
    task = asyncio.create_task(running.run())
    await asyncio.sleep(0.2)
    running.stop()
    await task
    assert most == 1


async def test_a_hosted_syphon_runs_from_start_to_stop(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    syphon = LocalSyphon(primary, secondary, QUEUES, options())
    assert not syphon.is_running
    syphon.start()
    secondary.put(QUEUES[1], backlog("a"))
    await until(lambda: primary.queues["orders"].ids() == ["a"])
    assert syphon.is_running
    await syphon.stop()
    await syphon.stop()
    assert not syphon.is_running
    assert syphon.receipt_counts.counts[ReceiptOutcome.MOVED] == 1


async def test_a_hosted_syphon_tells_why_it_ended(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    told: list[BaseException] = []
    syphon = LocalSyphon(primary, secondary, QUEUES, options(), on_end=told.append)
    secondary.receive_error = ZeroDivisionError()  # type: ignore[assignment]
    syphon.start()
    await until(lambda: not syphon.is_running)
    await syphon.stop()
    assert len(told) == 1


@pytest.mark.parametrize(
    "wrong", [{"chunk_count": 0}, {"poll_s": 0}, {"rate_per_s": -1}, {"chunks_at_once": 0}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        options(**wrong)


@pytest.fixture
def stall_after_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Shortens the minute after which it is told that nothing moves."""
    monkeypatch.setattr(mover_module, "STALL_CHECK_S", 0.02)
    return lambda seconds: monkeypatch.setattr(mover_module, "STALL_S", seconds)


async def test_messages_that_wait_while_none_moves_are_told_once(
    secondary: FakeNamespace, primary: FakeNamespace, stall_after_s: Callable[[float], None]
) -> None:
    """Y7: with what keeps them, and again after something has moved."""
    stall_after_s(0.1)
    primary.refusals["news"] = lambda encoded: EntityDisabled("it is disabled")
    secondary.put(QUEUES[0], *(backlog(f"m{number}", "news") for number in range(7)))
    told: list[str] = []
    running = Mover(secondary, primary, QUEUES, options(), on_stall=told.append)
    task = asyncio.create_task(running.run())
    await until(lambda: bool(told))
    await asyncio.sleep(0.3)
    assert len(told) == 1 and "; 7 are waiting" in told[0]
    assert told[0].endswith(": news.")

    secondary.put(QUEUES[0], backlog("live"))
    await until(lambda: len(told) == 2)
    running.stop()
    await task


async def test_a_backlog_that_cannot_be_read_is_told(
    secondary: FakeNamespace, primary: FakeNamespace, stall_after_s: Callable[[float], None]
) -> None:
    """Y7: nobody knows what is in it."""
    stall_after_s(0.1)
    secondary.receive_error = AccessRefused("Listen is missing")
    told: list[str] = []
    running = Mover(secondary, primary, QUEUES[:1], options(), on_stall=told.append)
    task = asyncio.create_task(running.run())
    await until(lambda: bool(told))
    assert told[0].endswith(f": {QUEUES[0]} (Listen is missing).")
    running.stop()
    await task


async def test_a_queue_that_was_away_for_a_moment_is_no_stall(
    secondary: FakeNamespace, primary: FakeNamespace, stall_after_s: Callable[[float], None]
) -> None:
    """Y7: an idle queue answers after a quarter of an hour; nobody is paged meanwhile."""
    stall_after_s(2.5)
    told: list[str] = []
    running = Mover(secondary, primary, QUEUES[:1], options(poll_s=900.0), on_stall=told.append)
    task = asyncio.create_task(running.run())
    # Given a queue that is known, so that its receives are long ones
    await until(lambda: running.queues[0].has_scanned)
    secondary.receive_error = CommunicationError("nobody there")
    secondary.patience_s = 60.0
    await until(lambda: bool(running.report.faults))
    secondary.receive_error = None
    await until(lambda: not running.report.faults)
    await asyncio.sleep(3.0)
    assert told == []
    running.stop()
    await task

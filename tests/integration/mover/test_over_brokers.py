"""The contract of the mover: between two brokers in their own processes, through both drivers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.mover.brokers import DRIVERS, TIMEOUT_S, Pair, Scene, announced, until
from tests.support.mover.messages import backlog, id_of
from tests.support.moving import move_chunk
from twinbus.drivers.interface import ReceiveMode
from twinbus.encoding.transit import OutgoingMessage
from twinbus.failover.backoff import Backoff
from twinbus.mover.mover import Mover
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.planning.work_order import (
    WorkOrder,
    WorkReport,
    report_from_json,
    report_to_json,
)
from twinbus.mover.work_order_runner import run_work_order


@pytest.fixture(params=DRIVERS)
async def scene(request: pytest.FixtureRequest, standing_pair: Pair) -> AsyncIterator[Scene]:
    opened = Scene(standing_pair, driver_name=request.param)
    yield opened
    await opened.close()


@pytest.fixture(params=DRIVERS)
async def mortal_scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """Brokers that a test may kill."""
    with Pair(tmp_path) as pair:
        opened = Scene(pair, driver_name=request.param)
        yield opened
        await opened.close()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def make_mover(scene: Scene, receipts: list[Receipt] | None = None, **options: object) -> Mover:
    pair = scene.pair
    return Mover(
        scene.driver(pair.secondary),
        scene.driver(pair.primary),
        scene.queues,
        scene.options(**options),
        on_receipts=None if receipts is None else receipts.extend,
    )


async def test_a_backlog_comes_home(scene: Scene) -> None:
    """Y1: every message of every backlog queue, to its destination."""
    one, two = scene.destination(), scene.destination()
    await scene.fill(one, names("a", 700))
    await scene.fill(two, names("b", 300))
    receipts: list[Receipt] = []
    report = await make_mover(scene, receipts).run(once=True)
    assert report.faults == {}
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 1_000
    assert await scene.arrived(one) == Counter(names("a", 700))
    assert await scene.arrived(two) == Counter(names("b", 300))
    assert scene.left() == 0
    assert {each.queue for each in receipts} == set(scene.queues)
    assert all(each.enqueued_ms and each.enqueued_ms <= each.settled_ms for each in receipts)


async def test_one_chunk_can_be_moved_alone(scene: Scene) -> None:
    orders = scene.destination()
    await scene.fill(orders, names("m", 20))
    drivers = scene.driver(scene.pair.secondary), scene.driver(scene.pair.primary)
    receipts = await move_chunk(*drivers, scene.queues[0], scene.options())
    assert [each.outcome for each in receipts] == [ReceiptOutcome.MOVED] * 10


async def test_two_movers_at_once_bring_every_message_home_once(scene: Scene) -> None:
    """Y5: any number of syphons."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 2_000))
    movers = [make_mover(scene, chunk_count=100) for _ in range(2)]
    reports = await asyncio.gather(*(each.run(once=True) for each in movers))
    assert sum(each.receipt_counts.counts[ReceiptOutcome.MOVED] for each in reports) == 2_000
    assert await scene.arrived(orders) == Counter(names("m", 2_000))


async def test_a_message_that_the_primary_refuses_does_not_block_the_others(scene: Scene) -> None:
    """Y4: without a session into a queue that requires one; too large; no destination."""
    orders, sessions = scene.destination(), scene.destination(requires_session=True)
    await scene.fill(orders, names("good", 50))
    await scene.fill(sessions, ["no-session"])
    await scene.fill("no-such-queue-here", ["lost"])
    receipts: list[Receipt] = []
    report = await make_mover(scene, receipts, backoff=Backoff(gone_grace_s=0)).run(once=True)
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 50
    reasons = {each.message_id: each.reason for each in receipts if each.reason}
    assert reasons == {"no-session": "message-refused", "lost": "destination-not-found"}
    driver = scene.driver(scene.pair.secondary)
    dead = driver.receiver(f"{scene.queues[0]}/$DeadLetterQueue", mode=ReceiveMode.PEEK_LOCK)
    buried = await dead.receive(10, wait_s=5)
    assert {id_of(each.encoded) for each in buried} == {"no-session", "lost"}
    assert any(b"no-such-queue-here" in each.encoded for each in buried)


async def test_a_disabled_destination_does_not_hold_up_a_live_one(scene: Scene) -> None:
    """Y4: the live one is home soon, the others are received once and come home later."""
    dead, live = scene.destination(status="SendDisabled"), scene.destination()
    await scene.fill(dead, names("dead", 4_000))
    await scene.fill(live, names("live", 100))
    mover = make_mover(scene)
    running = asyncio.create_task(mover.run())
    await until(lambda: scene.home(live) == 100)
    await until(lambda: mover.report.receipt_counts.counts[ReceiptOutcome.DEFERRED] >= 4_000)
    parked = mover.report.receipt_counts.counts[ReceiptOutcome.DEFERRED]
    await asyncio.sleep(1.5)
    # A few probes, and nothing like another round
    assert mover.report.receipt_counts.counts[ReceiptOutcome.DEFERRED] - parked < 2_000

    scene.enable(dead)
    await until(lambda: scene.home(dead) == 4_000)
    mover.stop()
    await running
    assert await scene.arrived(dead) == Counter(names("dead", 4_000))


async def test_a_silent_destination_does_not_hold_up_a_live_one(scene: Scene) -> None:
    """Y4: sends that are never answered, beside a destination that is well."""
    silent, live = scene.destination(), scene.destination()
    await scene.fill(silent, names("silent", 600))
    await scene.fill(live, names("live", 600))
    receipts: list[Receipt] = []
    mover = make_mover(scene, receipts, send_timeout_s=2.0)
    with scene.fault("cannot-send", silent, how="timeout"):
        running = asyncio.create_task(mover.run())
        await until(lambda: scene.home(live) == 600)
    await until(lambda: scene.left() == 0)
    mover.stop()
    await running
    found = await scene.arrived(silent)
    assert set(found) == set(names("silent", 600))
    assert {name for name, count in found.items() if count > 1} <= announced(receipts)


async def test_duplicate_detection_removes_what_was_in_doubt(scene: Scene) -> None:
    """Y1: message ids are kept, so that repeats are dropped by the primary."""
    orders = scene.destination(requires_duplicate_detection=True)
    receipts: list[Receipt] = []
    mover = make_mover(scene, receipts, send_timeout_s=1.0)
    running = asyncio.create_task(mover.run())
    # The link is open before its sends go unanswered
    await scene.fill(orders, ["first"])
    await until(lambda: bool(receipts))
    with scene.fault("cannot-send", orders, how="timeout", applied_probability=1.0):
        await scene.fill(orders, names("m", 400))
        await until(lambda: bool(announced(receipts)))
    await until(lambda: scene.left() == 0)
    mover.stop()
    await running
    assert await scene.arrived(orders) == Counter(["first", *names("m", 400)])


async def test_what_a_mover_set_aside_another_one_brings_home(scene: Scene) -> None:
    """Y5: a mover leaves nothing in its memory that is needed."""
    orders = scene.destination(status="SendDisabled")
    await scene.fill(orders, names("m", 600))
    report = await make_mover(scene).run(once=True)
    assert report.receipt_counts.counts[ReceiptOutcome.DEFERRED] >= 600
    scene.enable(orders)
    report = await make_mover(scene).run(once=True)
    assert report.receipt_counts.counts[ReceiptOutcome.MOVED] == 600
    assert await scene.arrived(orders) == Counter(names("m", 600))


async def test_a_primary_that_is_killed_loses_nothing(mortal_scene: Scene) -> None:
    """Y1: a crash anywhere repeats a message, never loses one; repeats are announced."""
    scene = mortal_scene
    orders = scene.destination()
    await scene.fill(orders, names("m", 3_000))
    receipts: list[Receipt] = []
    mover = make_mover(scene, receipts, chunk_count=100)
    running = asyncio.create_task(mover.run())
    for _kill in range(2):
        seen = len(receipts)
        await until(lambda seen=seen: len(receipts) > seen)  # type: ignore[misc]
        scene.pair.primary.kill()
        await asyncio.sleep(0.3)
        scene.pair.primary.restart()
    await until(lambda: scene.left() == 0)
    mover.stop()
    await running
    found = await scene.arrived(orders)
    assert set(found) == set(names("m", 3_000))
    assert {name for name, count in found.items() if count > 1} <= announced(receipts)


async def test_a_secondary_that_is_killed_loses_nothing(mortal_scene: Scene) -> None:
    """Y1: what was accepted and not completed comes again, and that is announced."""
    scene = mortal_scene
    orders = scene.destination()
    await scene.fill(orders, names("m", 3_000))
    receipts: list[Receipt] = []
    mover = make_mover(scene, receipts, chunk_count=100)
    running = asyncio.create_task(mover.run())
    for _kill in range(2):
        seen = len(receipts)
        await until(lambda seen=seen: len(receipts) > seen)  # type: ignore[misc]
        scene.pair.secondary.kill()
        await asyncio.sleep(0.3)
        scene.pair.secondary.restart()
    await until(lambda: scene.left() == 0)
    mover.stop()
    await running
    found = await scene.arrived(orders)
    assert set(found) == set(names("m", 3_000))
    assert {name for name, count in found.items() if count > 1} <= announced(receipts)


async def test_a_dry_run_shows_what_would_be_moved(scene: Scene) -> None:
    orders = scene.destination()
    await scene.fill(orders, names("m", 30))
    report = await make_mover(scene).dry_run()
    assert report.receipt_counts.counts[ReceiptOutcome.WOULD_MOVE] == 30
    assert scene.left() == 30 and scene.home(orders) == 0


async def test_a_message_as_large_as_a_queue_takes_comes_home(scene: Scene) -> None:
    """P13: the aliases go, so what fitted the backlog fits the primary."""
    orders = scene.destination()
    room = 262_144 - len(backlog("large", orders, b""))
    sender = scene.driver(scene.pair.secondary).sender(scene.queues[0])
    large = backlog("large", orders, bytes(room - 3))
    await sender.send([OutgoingMessage(large)], timeout_s=TIMEOUT_S)
    await make_mover(scene).run(once=True)
    assert await scene.arrived(orders) == Counter(["large"])


async def test_a_shift_takes_over_what_another_connection_received(scene: Scene) -> None:
    """Y1: locks are settled by their tokens, whoever holds the link."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 600))
    bell = scene.driver(scene.pair.secondary)
    handed = [
        (await bell.receiver(queue).receive(1, wait_s=5))[0]._replace(handle=None)
        for queue in scene.queues
    ]
    receipts: list[Receipt] = []
    report = await run_work_order(
        scene.driver(scene.pair.secondary),
        scene.driver(scene.pair.primary),
        WorkOrder(queues=tuple(scene.queues), prefetched=tuple(handed)),
        scene.options(),
        on_receipts=receipts.extend,
    )
    assert report.faults == {} and set(report.emptied) == set(scene.queues)
    assert Counter(each.outcome for each in receipts) == {ReceiptOutcome.MOVED: 600}
    assert await scene.arrived(orders) == Counter(names("m", 600))
    assert scene.left() == 0


async def test_shifts_in_a_row_bring_a_dead_destination_home_in_the_end(scene: Scene) -> None:
    """Y4: with reports that cross processes as JSON; the live one is home in the first shift."""
    dead, live = scene.destination(status="SendDisabled"), scene.destination()
    await scene.fill(dead, names("dead", 4_000))
    await scene.fill(live, names("live", 100))
    secondary, primary = scene.driver(scene.pair.secondary), scene.driver(scene.pair.primary)
    receipts: list[Receipt] = []

    async def shift(before: WorkReport) -> WorkReport:
        order = WorkOrder(
            queues=tuple(scene.queues),
            retry_deferred=before.deferred,
            open_circuits=tuple(each._replace(due_in_s=0.0) for each in before.open_circuits),
        )
        report = await run_work_order(
            secondary, primary, order, scene.options(), on_receipts=receipts.extend
        )
        return report_from_json(json.loads(json.dumps(report_to_json(report))))

    report = await shift(WorkReport())
    assert scene.home(live) == 100
    for _ in range(2):
        report = await shift(report)
    assert sum(len(each[dead]) for each in report.deferred.values()) == 4_000
    # Every message once, and a few probes
    assert len(receipts) < 4_100 + 1_000

    scene.enable(dead)
    async with asyncio.timeout(60):
        while report.deferred:
            report = await shift(report)
    assert await scene.arrived(dead) == Counter(names("dead", 4_000))
    assert scene.left() == 0

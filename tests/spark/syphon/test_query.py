"""The syphon on a real Spark session, between two broker processes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.syphon.running import Running, operations, settings_for
from tests.support.books import by_client, in_numbers
from tests.support.mover.brokers import Scene, until
from twinbus.amqp.codec.types import Long
from twinbus.amqp.message.message import AmqpSequence, AmqpValue
from twinbus.drivers.interface import NEXT_SESSION
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import OutgoingMessage
from twinbus.message import BrokeredMessage
from twinbus.spark.syphon import read_receipts, start_syphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[Running]:
    """Starts syphons that end with the test."""
    starter = Running(spark, tmp_path)
    yield starter
    starter.stop()


async def test_ten_queues_and_five_destinations_come_home_once(
    running: Running, spark: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """Y1, Y2, C1: drain and exit; a receipt for every message, by both tasks' processes, and
    books that hold each charge once."""
    scene = Scene(pair, queue_count=10)
    wanted: dict[str, list[str]] = {}
    for number in range(5):
        destination = scene.destination()
        wanted[destination] = names(f"d{number}-", 1_000)
        await scene.fill(destination, wanted[destination])
    books = tmp_path / "books"
    syphon = running.start(scene, once=True, metering=str(books))
    assert await asyncio.to_thread(syphon.wait, 100)
    counted = in_numbers(by_client(books))
    assert {path: counted[path, "send"] for path in wanted} == dict.fromkeys(wanted, (1_000, 1_000))
    taken = [counted[path, "receive"] for path in scene.queues]
    assert [sum(column) for column in zip(*taken, strict=True)] == [5_000, 5_000]
    for destination, ids in wanted.items():
        assert await scene.arrived(destination) == Counter(ids)
    rows = read_receipts(spark, tmp_path / "0" / "receipts").collect()
    assert Counter((row.destination, row.outcome) for row in rows) == {
        (destination, "moved"): 1_000 for destination in wanted
    }
    assert {row.queue for row in rows} == set(scene.queues)
    assert len({row.pid for row in rows}) == 2, "the work is shared"
    assert syphon.status().counts == {"moved": 5_000} and scene.left() == 0


KINDS: dict[str, BrokeredMessage] = {
    "bytes": BrokeredMessage(b"\x00\xff", message_id="bytes"),
    "empty": BrokeredMessage(b"", message_id="empty"),
    "value": BrokeredMessage(AmqpValue({"a": [1, None]}), message_id="value"),
    "sequence": BrokeredMessage(AmqpSequence(([1, "two"],)), message_id="sequence"),
    "everything": BrokeredMessage(
        "text",
        message_id="everything",
        correlation_id=UUID(int=7),
        subject="s",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        content_type="text/plain",
        content_encoding="utf-8",
        partition_key="k",
        priority=7,
        time_to_live=timedelta(hours=2),
        properties={"long": Long(5), "text": "x", "bytes": b"y", "uuid": UUID(int=9), "yes": True},
    ),
}
SAID_BY_THE_SERVICE = {
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time_utc",
    "held",
    "lock_token",
    "locked_until_utc",
}


def said(message: BrokeredMessage) -> dict[str, Any]:
    """Everything that does not depend on when and where it was received."""
    names = {each.name for each in fields(message)} - SAID_BY_THE_SERVICE
    return {name: getattr(message, name) for name in names}


async def test_the_official_sdk_brings_messages_home_too(running: Running, pair: SparkPair) -> None:
    """Y1, Y2: with one option; handed over, moved and set aside by Spark's processes, while our
    own client could not reach the primary."""
    scene = Scene(pair, queue_count=3)
    orders, dead = scene.destination(), scene.destination(status="SendDisabled")
    await scene.fill(orders, names("m", 900))
    await scene.fill(dead, names("d", 30))
    ours = {"how": "refuse", "plane": "data", "only_clients": "twinbus-"}
    with scene.fault("cannot-contact", "", **ours):
        syphon = running.start(scene, driver="servicebus")
        await until(lambda: syphon.status().counts.get("moved", 0) == 900)
        await until(lambda: sum(syphon.status().deferred_now.values()) == 30)
        scene.enable(dead)
        await until(lambda: syphon.status().counts.get("moved", 0) == 930)
        await asyncio.to_thread(syphon.stop)
    assert await scene.arrived(orders) == Counter(names("m", 900))
    assert await scene.arrived(dead) == Counter(names("d", 30))
    assert scene.left() == 0 and syphon.status().faults == {}


async def test_all_kinds_of_messages_come_home_unchanged(running: Running, pair: SparkPair) -> None:
    """Y1, P12: received as if they had been sent straight to where they belong; also what
    travels under other names."""
    scene = Scene(pair, queue_count=1)
    straight, detour = scene.destination(), scene.destination()
    sessions = scene.destination(requires_session=True)
    of_session = BrokeredMessage(b"s", message_id="session", session_id="berlin")
    home, away = scene.driver(pair.primary), scene.driver(pair.secondary)
    for message in KINDS.values():
        encoded = encode_message(message)
        await home.sender(straight).send([OutgoingMessage(encoded)], timeout_s=10)
        await away.sender(scene.queues[0]).send(
            [OutgoingMessage(alias(encoded, detour))], timeout_s=10
        )
    aliased = alias(encode_message(of_session), sessions)
    await away.sender(scene.queues[0]).send([OutgoingMessage(aliased)], timeout_s=10)
    running.start(scene, once=True).wait(60)
    found = []
    for path in (straight, detour):
        received = await home.receiver(path).receive(len(KINDS), wait_s=5)
        found.append({str(each.message_id): said(each) for each in map(decode_message, received)})
    assert found[1] == found[0] and set(found[0]) == set(KINDS)
    (one,) = await home.receiver(sessions, session=NEXT_SESSION).receive(1, wait_s=5)
    assert decode_message(one).session_id == "berlin"
    await scene.close()


async def test_a_message_wakes_the_query_and_controls_are_obeyed(
    running: Running, pair: SparkPair
) -> None:
    """Y2, Y3: waits without a batch, wakes for a message; pause, resume, rate, stop."""
    scene = Scene(pair)
    orders = scene.destination()
    syphon = running.start(scene)
    await until(lambda: syphon.status().doing == "waiting")
    epoch = syphon.status().epoch
    await scene.fill(orders, ["one"])
    await until(lambda: scene.home(orders) == 1)
    await until(lambda: syphon.status().counts == {"moved": 1})
    await until(lambda: syphon.status().doing == "waiting")
    assert syphon.status().epoch == epoch + 1, "one batch for one message"

    syphon.pause()
    await until(lambda: syphon.status().doing == "paused")
    await scene.fill(orders, names("p", 50))
    await asyncio.sleep(1)
    assert scene.home(orders) == 1 and scene.locked() == 0
    syphon.set_rate(20)
    syphon.resume()
    began_s = time.monotonic()
    await until(lambda: scene.home(orders) == 51)
    assert time.monotonic() - began_s > 1, "20 a second"
    await asyncio.to_thread(syphon.stop)
    assert not syphon.is_running and syphon.status().doing == "stopped"
    assert await scene.arrived(orders) == Counter(["one", *names("p", 50)])


async def test_a_hundred_thousand_for_a_dead_destination_stand_in_nobodys_way(
    running: Running, pair: SparkPair
) -> None:
    """Y4: 1,000 for a live one behind them are home within a minute of the query's first batch;
    nothing is received over and over; and once it lives, the dead one gets its own."""
    scene = Scene(pair, queue_count=2)
    dead, live = scene.destination(status="SendDisabled"), scene.destination()
    await scene.fill(dead, names("d", 100_000), b"x")
    await scene.fill(live, names("l", 1_000))
    filled = operations(scene)
    syphon = running.start(scene)
    await until(lambda: syphon.status().doing == "moving")
    began_s = time.monotonic()
    await until(lambda: scene.home(live) == 1_000, 60)
    print(f"the live ones were home after {time.monotonic() - began_s:.1f} s")
    await until(lambda: sum(syphon.status().deferred_now.values()) == 100_000)
    # Its queues were also looked through, which takes more than one batch on a busy machine.
    await until(lambda: syphon.status().doing == "waiting")
    # Each was received and set aside once; a busy machine may look through them once more
    before = operations(scene)
    print(f"{before - filled:,} operations in the backlog until all were set aside")
    assert before - filled < 101_000 * 3
    await asyncio.sleep(5)
    assert operations(scene) - before < 300, "probes of a few, not rounds of 100,000"
    scene.enable(dead)
    await until(lambda: scene.home(dead) >= 5_000, 90)
    assert await scene.arrived(live) == Counter(names("l", 1_000))


async def test_two_syphons_at_once_bring_everything_home_once(
    running: Running, pair: SparkPair
) -> None:
    """Y5: locks keep them apart."""
    scene = Scene(pair, queue_count=4)
    orders = scene.destination()
    await scene.fill(orders, names("m", 4_000))
    syphons = [running.start(scene, once=True) for _ in range(2)]
    for syphon in syphons:
        assert await asyncio.to_thread(syphon.wait, 100)
    assert await scene.arrived(orders) == Counter(names("m", 4_000))
    assert sum(each.status().counts.get("moved", 0) for each in syphons) == 4_000


async def test_a_dry_run_tells_what_would_move_and_touches_nothing(
    running: Running, spark: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    scene = Scene(pair)
    orders = scene.destination()
    await scene.fill(orders, names("m", 30))
    syphon = running.start(scene, once=True, is_dry_run=True)
    assert await asyncio.to_thread(syphon.wait, 60)
    assert syphon.status().counts == {"would-move": 30}
    assert scene.home(orders) == 0 and scene.left() == 30
    assert {row.outcome for row in read_receipts(spark, tmp_path / "0" / "receipts").collect()} == {
        "would-move"
    }


async def test_without_its_state_directory_nothing_is_lost(
    spark: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """Y1: a query is cut off in the middle, and its checkpoints and receipts are removed; the next
    one brings the rest."""
    scene = Scene(pair, lock_duration_ms=5_000)
    orders = scene.destination(requires_duplicate_detection=True)
    await scene.fill(orders, names("m", 2_000))
    slow = settings_for(scene, rate_per_s=500.0, chunk_count=100)
    cut_off = start_syphon(spark, slow, tmp_path / "state")
    await until(lambda: scene.home(orders) > 200)
    cut_off.query.stop()  # Not its own stop(), which waits for the chunks under way
    cut_off.state.release()
    assert scene.left() > 500
    shutil.rmtree(tmp_path / "state")
    following = start_syphon(spark, settings_for(scene), tmp_path / "state")
    await until(lambda: scene.left() == 0, 60)
    following.stop()
    assert await scene.arrived(orders) == Counter(names("m", 2_000))

"""Destinations that take nothing, each in its own way, under one query on a real Spark."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.syphon.running import Running, operations
from tests.support.mover.brokers import Scene, until
from tests.support.mover.messages import plain
from twinbus.drivers.interface import ReceiveMode
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import QuotaExceeded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = 50
SWITCHED_ON: dict[str, dict[str, Any]] = {
    "down": {"kind": "cannot-send"},
    "unauthorized": {"kind": "cannot-send", "condition": "amqp:unauthorized-access"},
    "detached": {"kind": "cannot-send", "how": "detach"},
    "throttled": {"kind": "throttle"},
}
TROUBLES = ("disabled", "full", *SWITCHED_ON)


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[Running]:
    """Starts syphons that end with the test."""
    starter = Running(spark, tmp_path)
    yield starter
    starter.stop()


def ids(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(EACH)]


async def fill_to_the_brim(scene: Scene, path: str) -> None:
    """Until not even a small message fits."""
    sender = scene.driver(scene.pair.primary).sender(path)
    size = 250_000
    while size:
        try:
            await sender.send([OutgoingMessage(plain("large", bytes(size)))], timeout_s=10)
        except QuotaExceeded:
            size //= 8


async def make_room(scene: Scene, path: str) -> None:
    emptying = scene.driver(scene.pair.primary).receiver(path, mode=ReceiveMode.RECEIVE_AND_DELETE)
    while scene.home(path):
        await emptying.receive(100, wait_s=1)


def hits(scene: Scene) -> dict[str, int]:
    """How often each fault was met, by destination."""
    found = scene.pair.primary.admin("GET", "/namespaces/east/faults")
    return {each["scope"]["entity"]: each["hit_count"] for each in found}


async def test_each_kind_of_trouble_waits_for_its_end_and_stands_in_nobodys_way(
    running: Running, pair: SparkPair
) -> None:
    """Y4: what is down, disabled, full, unauthorized, throttled or detached keeps its own messages
    back, and they are home once it is over; what is gone for longer than the grace period is
    dead-lettered."""
    scene = Scene(pair, queue_count=2)
    paths = {name: scene.destination() for name in SWITCHED_ON}
    paths["disabled"] = scene.destination(status="SendDisabled")
    paths["full"] = scene.destination(max_size_mb=1)
    live, gone = scene.destination(), f"never-made-{scene.name}"
    await fill_to_the_brim(scene, paths["full"])
    with ExitStack() as faults:
        for name, facts in SWITCHED_ON.items():
            faults.enter_context(scene.fault(entity=paths[name], **facts))
        for name in TROUBLES:
            await scene.fill(paths[name], ids(name))
        await scene.fill(gone, ids("gone"))
        await scene.fill(live, ids("live"))
        began_s = time.monotonic()
        syphon = running.start(scene, gone_grace_s=0.5)
        await until(lambda: scene.home(live) == EACH)
        seen: set[str] = set()

        def all_were_set_aside() -> bool:
            # One that is being probed is not set aside for a moment.
            seen.update(
                path for path, count in syphon.status().deferred_now.items() if count == EACH
            )
            return seen >= set(paths.values())

        await until(all_were_set_aside)
        struck = hits(scene)
        assert max(struck.values()) < 12, "probes with longer and longer pauses"
        tens = max(2, 1 + int((time.monotonic() - began_s) / 10))
        assert struck[paths["throttled"]] <= 2 * tens, "one of each task in ten seconds"
    scene.enable(paths["disabled"])
    await make_room(scene, paths["full"])
    for name in TROUBLES:
        if name == "throttled":
            # Another syphon finds what this one leaves alone for as long as the service asks.
            assert await asyncio.to_thread(running.start(scene, once=True).wait, 60)
        await until(lambda path=paths[name]: scene.home(path) == EACH)  # type: ignore[misc]
        assert await scene.arrived(paths[name]) == Counter(ids(name))
    assert await scene.arrived(live) == Counter(ids("live"))
    await until(lambda: syphon.status().counts.get("dead-lettered") == EACH)
    dead = [pair.secondary.queue(each)["dead_letter_message_count"] for each in scene.queues]
    assert sum(dead) == EACH and scene.left() == 0
    assert operations(scene) < 3_000
    await scene.close()

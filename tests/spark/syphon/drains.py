"""A backlog on its way home, for those who kill somebody in the middle of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.spark.brokers import SparkPair
from tests.spark.syphon.victims import until
from tests.support.mover.brokers import Scene
from twinbus.spark.syphon import SyphonSettings

__all__ = ["CHUNK_COUNT", "QUEUE_COUNT", "RATE_PER_S", "Drain", "filled"]

MESSAGE_COUNT = 20_000
QUEUE_COUNT = 4
CHUNK_COUNT = 200
TASK_COUNT = 2
# Slow enough to be hit in the middle, by somebody who looks every 50 ms.
RATE_PER_S = 5_000.0
LOCK_MS = 10_000
DRAIN_S_MAX = 60.0
# A Spark that starts beside another one, on a machine with more to do.
START_S_MAX = 150.0


@dataclass
class Drain:
    """10,000 messages for a destination that takes everything, and 10,000 for one that looks."""

    scene: Scene
    plain: str
    detecting: str

    @property
    def pair(self) -> SparkPair:
        assert isinstance(self.scene.pair, SparkPair)
        return self.scene.pair

    def settings(self, **more: Any) -> SyphonSettings:
        return SyphonSettings(
            primary=self.pair.primary_ref,
            secondary=self.pair.secondary_ref,
            primary_name=self.scene.name,
            queues=tuple(self.scene.queues),
            chunk_count=CHUNK_COUNT,
            tasks=TASK_COUNT,
            **more,
        )

    def home_count(self) -> int:
        return self.scene.home(self.plain) + self.scene.home(self.detecting)

    def until_under_way(self) -> None:
        until(lambda: self.home_count() > MESSAGE_COUNT // 10, "under way", START_S_MAX)
        assert self.scene.left() > MESSAGE_COUNT // 4, "it was over before anything was killed"

    def until_home(self) -> None:
        until(lambda: self.scene.left() == 0, "the backlog is empty", DRAIN_S_MAX)

    async def check(self, kill_count: int = 1) -> None:
        """Nothing is lost; what came twice is what a kill may repeat."""
        plain = await self.scene.arrived(self.plain)
        assert set(plain) == names("plain")
        assert plain.total() - len(plain) <= CHUNK_COUNT * TASK_COUNT * kill_count
        assert await self.scene.arrived(self.detecting) == Counter(names("detecting"))


def names(kind: str) -> set[str]:
    return {f"{kind}-{number}" for number in range(MESSAGE_COUNT // 2)}


async def filled(pair: SparkPair) -> Drain:
    scene = Scene(pair, queue_count=QUEUE_COUNT, lock_duration_ms=LOCK_MS)
    detecting = scene.destination(requires_duplicate_detection=True)
    drain = Drain(scene, scene.destination(), detecting)
    await scene.fill(drain.plain, sorted(names("plain")))
    await scene.fill(drain.detecting, sorted(names("detecting")))
    return drain

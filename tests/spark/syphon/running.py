"""Syphons for a scene of queues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.brokers import SparkPair
from tests.support.mover.brokers import Scene
from twinbus.spark.syphon import Syphon, SyphonSettings, start_syphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings_for(scene: Scene, **more: Any) -> SyphonSettings:
    """Settings of a syphon that brings home what is in the scene's backlog."""
    pair = scene.pair
    assert isinstance(pair, SparkPair)
    return SyphonSettings(
        primary=pair.primary_ref,
        secondary=pair.secondary_ref,
        primary_name=scene.name,
        queues=tuple(scene.queues),
        **more,
    )


class Running:
    """Starts syphons, each with a directory of its own: 0, 1 and so on."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._begun: list[Syphon] = []

    def start(self, scene: Scene, *, once: bool = False, **settings: Any) -> Syphon:
        state = self._directory / str(len(self._begun))
        syphon = start_syphon(self._spark, settings_for(scene, **settings), state, once=once)
        self._begun.append(syphon)
        return syphon

    def stop(self) -> None:
        for syphon in self._begun:
            syphon.stop()


def operations(scene: Scene) -> int:
    """What was done to the scene's backlog queues so far, in the secondary's books."""
    done = scene.pair.secondary.admin("GET", "/namespaces/west/operations")["totals"]
    return sum(each["units"] for each in done if each["entity"] in scene.queues)

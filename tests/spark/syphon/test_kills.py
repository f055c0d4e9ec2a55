"""kill -9 of everything that takes part in a drain, one after the other: nothing is lost.

What a kill may repeat is what was sent and not yet completed: a chunk of each task. A destination
with duplicate detection gets everything once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.spark.brokers import SparkPair
from tests.spark.syphon.drains import RATE_PER_S, Drain, filled
from tests.spark.syphon.victims import jvm_of, movers_of, source_runner_of, until
from twinbus.spark.syphon import Syphon, SyphonSettings, start_syphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def running(spark: SparkSession, settings: SyphonSettings, state: Path) -> Iterator[Syphon]:
    syphon = start_syphon(spark, settings, state)
    try:
        yield syphon
    finally:
        syphon.stop()


def shared_jvm(spark: SparkSession) -> psutil.Process:
    return jvm_of(psutil.Process())


async def test_a_mover_is_killed(spark: SparkSession, drain: Drain, tmp_path: Path) -> None:
    """Y1: Spark works the order again, in another process."""
    with running(spark, drain.settings(rate_per_s=RATE_PER_S), tmp_path) as syphon:
        drain.until_under_way()
        movers = movers_of(shared_jvm(spark), drain.pair.primary.port)
        assert movers
        movers[0].kill()
        drain.until_home()
        assert syphon.is_running
    await drain.check()


async def test_the_source_is_killed(spark: SparkSession, drain: Drain, tmp_path: Path) -> None:
    """Y1: the query fails, in time; the next one goes on where the locks are."""
    with running(spark, drain.settings(rate_per_s=RATE_PER_S, batch_s=2.0), tmp_path) as syphon:
        drain.until_under_way()
        source_runner_of(shared_jvm(spark)).kill()
        until(lambda: not syphon.is_running, "the query has failed", 30)
        with pytest.raises(Exception, match=r"(?i)python|socket|EOF|reset"):
            syphon.check()
    with running(spark, drain.settings(), tmp_path):
        drain.until_home()
    await drain.check()


@pytest.mark.parametrize("which", ["primary", "secondary"])
async def test_a_broker_is_killed(
    spark: SparkSession, mortal_pair: SparkPair, tmp_path: Path, which: str
) -> None:
    """Y1 and Y4: the query goes on by itself once the broker is back."""
    drain = await filled(mortal_pair)
    broker = getattr(mortal_pair, which)
    with running(spark, drain.settings(rate_per_s=RATE_PER_S), tmp_path) as syphon:
        drain.until_under_way()
        broker.kill()
        broker.restart()
        drain.until_home()
        assert syphon.is_running
    await drain.check()
    await drain.scene.close()

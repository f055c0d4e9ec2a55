"""The syphon's query, and a handle on it while it runs.

    syphon = start_syphon(spark, settings, state_dir)
    syphon.pause(); syphon.resume(); syphon.status()
    syphon.stop()

Rule 1: every start is a run with a checkpoint and a directory of receipts of its own. An old
        checkpoint holds nothing of worth, and a new one beside old receipts would let Spark's
        file sink skip whole batches, because it knows their numbers. Checkpoints of others are
        left alone for a day: a query at a Spark Connect server may outlive its program.
Rule 2: stop() asks the tasks to end after the chunks under way, so that every message that went
        home is also gone from the backlog and has its receipt; after 5 s it stops waiting. A task
        hears of it and is cut off well within that time.
Rule 3: what stop() asked for is taken back when the query has ended: it was meant for this one.
Rule 4: a pause and a rate outlive the run they were meant for: one that is killed and started again
        must not begin to move what somebody has stopped. A rate that a run is started with wins.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from twinbus.errors import ConfigurationError
from twinbus.mover.planning.receipts import EARLIER_OUTCOMES
from twinbus.spark.runtime.worker_check import explain_missing
from twinbus.spark.syphon.data_source import FORMAT, BacklogSource
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Control, StateDir, Status

__all__ = ["Syphon", "in_words_of_today", "read_receipts", "receipts_of", "start_syphon"]

RECEIPTS: Final = "receipts"
CHECKPOINTS: Final = "checkpoints"
STOP_S_MAX: Final = 5.0
POLL_S: Final = 0.05
SECONDS_PER_DAY: Final = 86_400


def receipts_of(spark: SparkSession, settings: SyphonSettings) -> DataFrame:
    """The backlog coming home, as a stream of receipts: reading it is what moves messages."""
    spark.dataSource.register(BacklogSource)
    with explain_missing(spark):
        return spark.readStream.format(FORMAT).options(**settings.to_options()).load()


def start_syphon(
    spark: SparkSession,
    settings: SyphonSettings,
    state_dir: str | os.PathLike[str],
    *,
    once: bool = False,
    receipts: str | None = None,
    receipts_days: int | None = None,
    checkpoints: str | None = None,
) -> Syphon:
    """Bring the backlog home until stop(), or with ``once`` until nothing is left to do.

    On a cluster ``receipts`` and ``checkpoints`` are addresses that all its machines can write;
    otherwise both are in the state directory. With ``receipts_days`` those of earlier runs are
    removed from there in which nothing was written for so long.
    """
    state = StateDir(state_dir)
    state.take()
    try:
        if receipts_days is not None:
            if receipts is not None:
                raise ConfigurationError(
                    "old receipts are removed from the state directory only",
                    hint="In another place they may be those of a syphon that runs",
                )
            _remove_old(state.path / RECEIPTS, receipts_days)
        query = _started(spark, settings, state, once, receipts, checkpoints)
    except BaseException:
        state.release()
        raise
    return Syphon(query, state)


def _started(
    spark: SparkSession,
    settings: SyphonSettings,
    state: StateDir,
    once: bool,
    receipts: str | None,
    checkpoints: str | None,
) -> StreamingQuery:
    run = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    told = state.control()
    if state.trouble:
        # It may have been a pause.
        raise ConfigurationError(state.trouble, hint="Mend or remove it")
    state.set_control(_taken_over(told, settings, run))
    state.set_status(Status())
    if checkpoints is None:
        _remove_old(state.path / CHECKPOINTS, 1, "*")
    home = (
        receipts_of(spark, replace(settings, state_dir=str(state.path), run=run))
        .writeStream.queryName(f"twinbus-syphon {settings.primary_name} {run}")
        .format("parquet")
        .option("path", f"{receipts or state.path / RECEIPTS}/run={run}")
        .option("checkpointLocation", f"{checkpoints or state.path / CHECKPOINTS}/{run}")
    )
    trigger = home.trigger(availableNow=True) if once else home.trigger(processingTime="0 seconds")
    return trigger.start()


def _taken_over(told: Control, settings: SyphonSettings, run: str) -> Control:
    """What an operator has asked for, for the next run (rule 4)."""
    rate_per_s = told.rate_per_s if settings.rate_per_s is None else None
    return Control(run=run, is_paused=told.is_paused, rate_per_s=rate_per_s)


def _remove_old(runs: Path, days: int, names: str = "run=*") -> None:
    ends_s = time.time() - days * SECONDS_PER_DAY
    for run in runs.glob(names):
        # Every batch adds receipts to it.
        if run.stat().st_mtime < ends_s:
            shutil.rmtree(run, ignore_errors=True)


def read_receipts(spark: SparkSession, receipts: str | os.PathLike[str]) -> DataFrame:
    """The receipts of all runs in a local directory; files of batches that never ended are left
    out."""
    spark.dataSource.register(BacklogSource)
    runs = [each for each in sorted(Path(receipts).glob("run=*")) if _has_receipts(each)]
    if not runs:
        from twinbus.spark.syphon.receipt_rows import RECEIPT_COLUMNS

        return spark.createDataFrame([], RECEIPT_COLUMNS)
    frames = [spark.read.parquet(str(each)) for each in runs]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return in_words_of_today(whole)


def in_words_of_today(receipts: DataFrame) -> DataFrame:
    """Receipts that an earlier version wrote have the outcomes of this one."""
    for earlier, now in EARLIER_OUTCOMES.items():
        receipts = receipts.replace(earlier, now, subset=["outcome"])
    return receipts


def _has_receipts(run: Path) -> bool:
    return any((run / "_spark_metadata").glob("[0-9]*")) and any(run.glob("*.parquet"))


class Syphon:
    """A running syphon."""

    def __init__(self, query: StreamingQuery, state: StateDir) -> None:
        self.query = query
        self.state = state

    @property
    def is_running(self) -> bool:
        return self.query.isActive

    def status(self) -> Status:
        """What it does and has done."""
        return self.state.status() or Status()

    def pause(self) -> None:
        """Nothing is received until resume(); chunks under way end."""
        self._change(is_paused=True)

    def resume(self) -> None:
        self._change(is_paused=False)

    def set_rate(self, rate_per_s: float | None) -> None:
        """Messages a second from the next batch on; None: as it was started."""
        self._change(rate_per_s=rate_per_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended by itself; raises what ended it. False after ``timeout_s``."""
        seconds = None if timeout_s is None else max(1, int(timeout_s))
        has_ended = True
        try:
            # Without a limit Spark returns nothing.
            has_ended = self.query.awaitTermination(seconds) is not False
        finally:
            if has_ended:
                self.state.release()
        return has_ended

    def check(self) -> None:
        """Raise what ended the query, if something did."""
        if not self.query.isActive:
            self.query.awaitTermination()  # Raises its error, in Spark's words.
            raise RuntimeError("the query has ended")

    def stop(self, within_s: float = STOP_S_MAX) -> None:
        """End after the chunks under way, within about ``within_s``; may be called twice."""
        try:
            # The directory of a query that has ended may be somebody else's by now.
            if self.query.isActive:
                self._stop(within_s)
        finally:
            self.state.release()

    def _stop(self, within_s: float) -> None:
        try:
            # Without a directory to say it in, the query ends in the middle of its chunks.
            with suppress(OSError):
                self._change(is_stopping=True)
            ends_s = time.monotonic() + within_s
            while self.query.isActive and time.monotonic() < ends_s and not self._has_stopped():
                time.sleep(POLL_S)
            self.query.stop()
        finally:
            with suppress(OSError):
                self._change(is_stopping=False)

    def _has_stopped(self) -> bool:
        status = self.state.status()
        return status is not None and status.doing == "stopped"

    def _change(self, **changes: object) -> None:
        self.state.set_control(replace(self.state.control(), **changes))  # type: ignore[arg-type]

"""The syphon's query, and a handle on it while it runs.

    syphon = start_syphon(spark, settings, state_dir)
    syphon.pause(); syphon.resume(); syphon.status()
    syphon.stop()

Rule 1: every start is a run with a checkpoint and a directory of receipts of its own. An old
        checkpoint contains nothing that is needed, and a new one with old receipts would let
        Spark's file sink skip whole batches, because it has seen their numbers. Checkpoints of
        other runs are kept for a day: a query at a Spark Connect server may outlive its program.
Rule 2: stop() requests that tasks end after the chunks under way, so that every message that was
        moved is also completed in the backlog and has its receipt; after 5 s it stops waiting. A
        task gets the request and ends well within that time.
Rule 3: the request of stop() is removed when the query has ended: it was for this query only.
Rule 4: a pause and a rate outlive their run: a syphon that is killed and started again must not
        move messages that an operator has paused. A rate that a run is started with takes
        precedence.
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
    """The moves of the backlog, as a stream of receipts: reading the stream moves messages."""
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
    """Move the backlog until stop(), or with ``once`` until nothing is left to do.

    On a cluster ``receipts`` and ``checkpoints`` are addresses that all its machines can write;
    otherwise both are in the state directory. With ``receipts_days`` receipts of earlier runs are
    removed from there after that many days without a new receipt.
    """
    state = StateDir(state_dir)
    state.take()
    try:
        if receipts_days is not None:
            if receipts is not None:
                raise ConfigurationError(
                    "receipts_days is for receipts in the state directory only",
                    hint="Remove receipts_days or receipts",
                )
            _remove_old(state.path / RECEIPTS, receipts_days)
        query = _start_query(spark, settings, state, once, receipts, checkpoints)
    except BaseException:
        state.release()
        raise
    return Syphon(query, state)


def _start_query(
    spark: SparkSession,
    settings: SyphonSettings,
    state: StateDir,
    once: bool,
    receipts: str | None,
    checkpoints: str | None,
) -> StreamingQuery:
    run = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    control = state.control()
    if state.trouble:
        # It may have been a pause.
        raise ConfigurationError(state.trouble, hint="Correct the file or delete it")
    state.set_control(_carry_over(control, settings, run))
    state.set_status(Status())
    if checkpoints is None:
        _remove_old(state.path / CHECKPOINTS, 1, "*")
    writer = (
        receipts_of(spark, replace(settings, state_dir=str(state.path), run=run))
        .writeStream.queryName(f"twinbus-syphon {settings.primary_name} {run}")
        .format("parquet")
        .option("path", f"{receipts or state.path / RECEIPTS}/run={run}")
        .option("checkpointLocation", f"{checkpoints or state.path / CHECKPOINTS}/{run}")
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0 seconds").start()


def _carry_over(control: Control, settings: SyphonSettings, run: str) -> Control:
    """The operator's commands that hold for the next run as well (rule 4)."""
    rate_per_s = control.rate_per_s if settings.rate_per_s is None else None
    return Control(run=run, is_paused=control.is_paused, rate_per_s=rate_per_s)


def _remove_old(runs: Path, days: int, names: str = "run=*") -> None:
    ends_s = time.time() - days * SECONDS_PER_DAY
    for run in runs.glob(names):
        # Every batch adds receipts to the directory.
        if run.stat().st_mtime < ends_s:
            shutil.rmtree(run, ignore_errors=True)


def read_receipts(spark: SparkSession, receipts: str | os.PathLike[str]) -> DataFrame:
    """The receipts of all runs in a local directory, without those of batches that did not end."""
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
        """Its state and its counts."""
        return self.state.status() or Status()

    def pause(self) -> None:
        """Receive nothing until resume(); chunks under way are finished."""
        self._change(is_paused=True)

    def resume(self) -> None:
        self._change(is_paused=False)

    def set_rate(self, rate_per_s: float | None) -> None:
        """Messages a second from the next batch on; None: the rate it was started with."""
        self._change(rate_per_s=rate_per_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended by itself; raises its error. False after ``timeout_s``."""
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
        """Raise the error that ended the query, if there is one."""
        if not self.query.isActive:
            self.query.awaitTermination()  # Raises Spark's own error.
            raise RuntimeError("The query has ended")

    def stop(self, within_s: float = STOP_S_MAX) -> None:
        """End after the chunks under way, within about ``within_s``; may be called twice."""
        try:
            # After the end of the query another syphon may use the directory.
            if self.query.isActive:
                self._stop(within_s)
        finally:
            self.state.release()

    def _stop(self, within_s: float) -> None:
        try:
            # If the file cannot be written, the query ends in the middle of its chunks.
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

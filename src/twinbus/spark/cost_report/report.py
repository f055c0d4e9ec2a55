"""The cost report: logs in, a CostReport out.

    directories --> state up to date --> sums of the requested days --> CostReport

Rule 1: a state that turns out to be damaged is computed again, once.
Rule 2: only requested days are read. The usage of the month before them is in the summaries of its
        days.
Rule 3: sums by the minute are read only where the report needs them; those by the hour are much
        fewer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from twinbus.cost.prices import PriceSheet
from twinbus.cost.report import CostReport
from twinbus.errors import ConfigurationError
from twinbus.spark.cost_report.block_jobs import HOURS, MINUTES
from twinbus.spark.cost_report.log_files import (
    MINUTES_A_DAY,
    MINUTES_AN_HOUR,
    find_logs,
    moment_of_minute,
)
from twinbus.spark.cost_report.report_rows import (
    Answers,
    by_step,
    day_prices,
    from_one_source,
    in_range,
    priced,
    prices_on,
    sliced,
    with_pair,
)
from twinbus.spark.cost_report.state import CostState, literal_path
from twinbus.spark.cost_report.summaries import Summaries, logged_minutes
from twinbus.spark.cost_report.update import Computed, update
from twinbus.spark.errors import SparkError, translate_spark_errors
from twinbus.spark.runtime.cache import cache_directory
from twinbus.spark.runtime.tuning import small_input_settings

__all__ = ["ComputedReport", "ReportRequest", "cost_report", "default_state"]

# A chart has room for about this many.
STEPS_MAX: Final = 120
STEPS_MINUTES: Final = (1, 10, MINUTES_AN_HOUR, MINUTES_A_DAY)
_SUMS: Final = (
    "minute int, namespace string, entity string, operation string, source string, calls long, "
    "messages long, units long, bytes_in long, bytes_out long, records long, duplicates long, "
    "late long"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What the report contains."""

    prices: PriceSheet
    begins: datetime | None = None
    """None: from the first line on."""
    ends: datetime | None = None
    """Exclusive; None: to the last line."""
    by: tuple[str, ...] = ("entity", "day")
    source: str | None = None
    """broker, client, or None: the broker's where there are any."""
    month_already: int = 0
    """Operations of the first month that are not in the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedReport:
    """A report, and how it was computed."""

    report: CostReport
    computed: tuple[Computed, ...]
    """The days that no earlier report had computed."""
    damaged: tuple[Path, ...]
    """Directories with damaged lines, as Parquet."""


def cost_report(
    spark: SparkSession,
    directories: Sequence[Path],
    asked: ReportRequest,
    *,
    state: Path | None = None,
) -> ComputedReport:
    """Add what is new in the logs below the directories to the state, and compute the report."""
    logs = find_logs(directories)
    with CostState(state or default_state(directories)).held() as kept, translate_spark_errors():
        try:
            with translate_spark_errors():
                computed = update(spark, kept, logs)
                return _compute_report(spark, kept, asked, computed)
        except ConfigurationError:
            raise
        except (SparkError, OSError, ValueError, KeyError):
            if not kept.was_known:
                raise
        kept.forget()
        return _compute_report(spark, kept, asked, update(spark, kept, logs))


def default_state(directories: Sequence[Path]) -> Path:
    """Beside the logs, or in the user's cache directory if the logs are read-only."""
    where = sorted(str(directory.resolve()) for directory in directories)
    name = hashlib.sha256("\n".join(where).encode()).hexdigest()[:12]
    if os.access(directories[0], os.W_OK | os.X_OK):
        return directories[0] / ".twinbus-cost" / name
    cache = cache_directory()
    if cache is None:
        raise ConfigurationError(
            "No writable state directory found", hint="Choose a directory with --state"
        )
    return cache / "cost" / name


def _compute_report(
    spark: SparkSession, state: CostState, asked: ReportRequest, computed: tuple[Computed, ...]
) -> ComputedReport:
    first, end, logged = _minutes(state, asked)
    step = next((s for s in STEPS_MINUTES if end - first <= s * STEPS_MAX), MINUTES_A_DAY)
    has_hours = step >= MINUTES_AN_HOUR and _is_of_hours(asked)
    summaries = Summaries(state, first, end, asked.source)
    prices = day_prices(summaries.consumed(asked.prices), asked.prices, asked.month_already)
    kind = HOURS if has_hours else MINUTES
    with small_input_settings(spark, sum(state.size_of(day, kind) for day in summaries.days)):
        rows = (
            _sums(spark, state, summaries.days, kind)
            .transform(in_range, first - first % MINUTES_AN_HOUR if has_hours else first, end)
            .transform(from_one_source, asked.source, summaries.metered_by_broker)
            .transform(with_pair)
            .transform(by_step, step, has_hours="hour" in asked.by)
            .transform(priced, prices_on(spark, prices), asked.prices)
            .transform(sliced, asked.by)
            .collect()
            if summaries.days
            else []
        )
    begins, ends = moment_of_minute(first), moment_of_minute(end)
    answers = Answers(rows, asked.by)
    if not answers:
        raise ConfigurationError(f"No operations found {_range_text(first, end)}", hint=logged)
    hours = -((begins - ends) // timedelta(hours=1))
    report = CostReport(
        begins=begins,
        ends=ends,
        by=asked.by,
        prices=asked.prices.used,
        slices=answers.slices(),
        total=answers.total(),
        base_cost=asked.prices.base_charge(hours, len(answers.namespaces())),
        step_s=step * 60,
        kinds=answers.kinds(),
        detours=answers.detours(),
        idle_share=answers.idle_share(),
        idle_cost=answers.idle_cost(),
        entities=answers.entities(),
        pairs=answers.pairs(),
        quality=answers.quality(summaries.damaged(), summaries.open_runs()),
    )
    return ComputedReport(report=report, computed=computed, damaged=tuple(state.damaged_paths()))


def _sums(spark: SparkSession, state: CostState, days: Sequence[str], kind: str) -> DataFrame:
    paths = [literal_path(state.day_path(day)) for day in days]
    return spark.read.schema(_SUMS).option("pathGlobFilter", f"{kind}-*.parquet").parquet(*paths)


def _is_of_hours(asked: ReportRequest) -> bool:
    """Whether only whole hours are requested; at the ends of the logs they are whole."""
    ends = (asked.begins, asked.ends)
    return all(end is None or end.timestamp() % 3600 == 0 for end in ends)


def _minutes(state: CostState, asked: ReportRequest) -> tuple[int, int, str]:
    """The range in whole minutes, and a sentence with the range of the logs."""
    logged = logged_minutes(state)
    if logged is None:
        raise ConfigurationError(
            "The operations logs contain no valid line",
            hint="Check the damaged lines in the state directory, if there are any",
        )
    first, end = logged
    sentence = f"Choose a range within the logs, which have lines {_range_text(first, end)}"
    if asked.begins is not None:
        first = int(asked.begins.timestamp() // 60)
    if asked.ends is not None:
        end = -int(-asked.ends.timestamp() // 60)
    if first >= end:
        raise ConfigurationError(f"Empty time range {_range_text(first, end)}", hint=sentence)
    return first, end, sentence


def _range_text(first: int, end: int) -> str:
    begins, ends = (moment_of_minute(each).strftime("%Y-%m-%d %H:%M") for each in (first, end))
    return f"between {begins} and {ends} (UTC)"

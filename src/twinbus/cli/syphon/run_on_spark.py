"""Runs ``twinbus syphon`` on Spark: starts the query, shows its progress, and prints a summary.

Rule 1: Spark starts while this module is loaded and the backlog queues are searched.
Rule 2: Ctrl-C and SIGTERM end it after the current chunks; moved messages are counted. A second
        signal ends it at once.
Rule 3: without a final status of the syphon the exit code is 1.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Final

import typer

from twinbus.cli.syphon.commands import SyphonOptions, default_state_dir
from twinbus.cli.syphon.spark_session import PendingSparkSession
from twinbus.cli.syphon.summary import (
    Found,
    Summary,
    done_count,
    exit_code,
    find_backlog,
    foreign_warning,
    open_role,
    resolve_namespace,
    show_progress_bar,
    show_summary,
    spool_file,
)
from twinbus.encoding.envelope import TtlPolicy
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.pairing.client.environment import ROLES, Role
from twinbus.spark.connection_refs import NamespaceRef, RefKind
from twinbus.spark.errors import SparkError, translate_spark_errors
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.syphon.query import Syphon

__all__ = ["run_on_spark"]

LOOK_INTERVAL_S: Final = 0.2


def run_on_spark(options: SyphonOptions, session: PendingSparkSession) -> int:
    """Move messages until the backlog is empty or Ctrl-C; the exit code."""
    try:
        found = asyncio.run(_find(options))
        return _run(session.get(), found, options)
    finally:
        session.stop()


async def _find(options: SyphonOptions) -> Found:
    async with AsyncExitStack() as stack:
        primary, secondary = [
            await stack.enter_async_context(open_role(role, options)) for role in ROLES
        ]
        return await find_backlog(primary, secondary, options)


def _run(spark: SparkSession, found: Found, options: SyphonOptions) -> int:
    # Imported late: PySpark takes a second to load.
    from twinbus.spark.syphon.query import start_syphon

    began_s = time.monotonic()
    with translate_spark_errors(), _signals() as is_stopping:
        syphon = start_syphon(
            spark,
            _settings(found, options, spark),
            options.state or default_state_dir(),
            once=options.once or options.dry_run,
            receipts=options.receipts,
            receipts_days=options.receipts_days,
            checkpoints=options.checkpoints,
        )
        if syphon.state.control().is_paused and not options.dry_run:
            typer.echo("twinbus: The syphon is paused. Run `twinbus syphon resume`.", err=True)
        with show_progress_bar(options.output, found.waiting) as show:
            _follow(syphon, show, is_stopping)
        syphon.stop()
    summary = _summary(
        syphon.state.status(),
        time.monotonic() - began_s,
        was_asked_to_stop=is_stopping.is_set(),
        was_cut_short=options.once and is_stopping.is_set(),
    )
    show_summary(summary, options.output)
    return exit_code(summary)


def _follow(syphon: Syphon, show: Callable[[int], object], is_stopping: Event) -> None:
    is_stalled, foreign = False, set[str]()

    def warn(status: Status) -> None:
        for owner in status.foreign.keys() - foreign:
            foreign.add(owner)
            typer.echo(foreign_warning(owner), err=True)

    while syphon.is_running and not is_stopping.wait(LOOK_INTERVAL_S):
        status = syphon.status()
        show(done_count(_counts(status)))
        warn(status)
        if status.stalled and not is_stalled:
            typer.echo(f"twinbus: {status.stalled}", err=True)
        is_stalled = bool(status.stalled)
    if not is_stopping.is_set():
        syphon.wait()  # Raises the error that ended it.
    warn(syphon.status())


@contextmanager
def _signals() -> Iterator[Event]:
    is_stopping = Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if is_stopping.is_set():
            raise KeyboardInterrupt
        is_stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(found: Found, options: SyphonOptions, spark: SparkSession) -> SyphonSettings:
    primary, secondary = [_reference(role, options) for role in ROLES]
    settings = SyphonSettings(
        primary=primary,
        secondary=secondary,
        primary_name=found.primary_name,
        queues=found.queues,
        allowed=options.allow,
        ttl_policy=TtlPolicy(options.ttl_policy),
        accepted_owners=options.accept_owners,
        gone_grace_s=options.gone_grace_s,
        rate_per_s=options.rate_per_s,
        chunk_count=options.chunk_count,
        is_dry_run=options.dry_run,
        metering=None if options.metering is None else str(options.metering.resolve()),
        keep_days=options.keep_days,
        driver=options.driver,
    ).on(spark)
    return settings if options.tasks is None else replace(settings, tasks=options.tasks)


def _reference(role: Role, options: SyphonOptions) -> NamespaceRef:
    """Executors read the same variables; their values are not sent."""
    ca_file = None if options.ca_file is None else str(Path(options.ca_file).resolve())
    if role == "secondary" and options.spool is not None:
        return NamespaceRef.of_file(spool_file(options.spool))
    found = resolve_namespace(role, options)
    if found.connection_string is not None:
        return NamespaceRef(RefKind.ENV, found.source, ca_file, options.administration_port)
    host = str(found.fully_qualified_namespace)
    return NamespaceRef(RefKind.HOST, host, ca_file, options.administration_port)


def _counts(status: Status) -> dict[ReceiptOutcome, int]:
    return {outcome: status.counts.get(outcome.value, 0) for outcome in ReceiptOutcome}


def _summary(
    status: Status | None,
    elapsed_s: float,
    *,
    was_asked_to_stop: bool,
    was_cut_short: bool = False,
) -> Summary:
    # Stopped before its first batch, it has moved nothing.
    final_states = ("starting", "stopped") if was_asked_to_stop else ("stopped",)
    if status is None or status.doing not in final_states:
        raise SparkError(
            "The syphon ended without a final status; no message is lost",
            hint="Check the receipts and the log of Spark",
        )
    return Summary(
        counts=_counts(status),
        moved_bytes=status.moved_bytes,
        deferred_now_count=sum(status.deferred_now.values()),
        faults=status.faults,
        elapsed_s=elapsed_s,
        was_cut_short=was_cut_short,
    )

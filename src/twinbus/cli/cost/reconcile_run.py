"""Runs ``twinbus cost reconcile`` on Spark and prints the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from twinbus.cli.cost.commands import ReconcileOptions
from twinbus.cli.shared.output import plural, show_json, show_spinner, show_table
from twinbus.cost.reconciliation import EntityReconciliation, MessageStatus, Outage, Reconciliation
from twinbus.errors import ConfigurationError
from twinbus.pairing.client.environment import ROLES, Role, require_namespace
from twinbus.spark.connection_refs import NamespaceRef, RefKind
from twinbus.spark.errors import translate_spark_errors
from twinbus.spark.runtime.session import local_session, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_reconcile", "show_reconciliation"]

SHOWN_MAX: Final = 50
"""Differences in the table; the others are in the JSON."""
# These columns are always shown, the others when at least one entity has such messages.
_ALWAYS: Final = (
    MessageStatus.DELIVERED,
    MessageStatus.WAITING,
    MessageStatus.IN_BACKLOG,
    MessageStatus.DEAD_LETTERED,
    MessageStatus.MISSING,
)


def run_reconcile(options: ReconcileOptions) -> bool | None:
    """Whether every message is accounted for; None if the sources contain no message."""
    if options.begins is not None and options.ends is not None and options.begins >= options.ends:
        raise ConfigurationError(
            "--from is not earlier than --to", hint="Set --from earlier than --to"
        )
    require_pyspark()
    references = [_reference(role, options) for role in ROLES] if options.look else [None, None]
    from twinbus.spark.reconciliation.pipeline import Sources, reconcile

    sources = Sources(
        primary_logs=options.primary_logs,
        secondary_logs=options.secondary_logs,
        client_logs=options.client_logs,
        receipts=options.receipts,
        journal=options.journal,
        primary=references[0],
        secondary=references[1],
    )
    with (
        show_spinner("Starting Spark and reading the logs"),
        translate_spark_errors(),
        _session() as spark,
    ):
        answer = reconcile(
            spark, sources, pair=options.pair, begins=options.begins, ends=options.ends
        )
    show_reconciliation(answer, options.output)
    return answer.closes


@contextmanager
def _session() -> Iterator[SparkSession]:
    """A session that already runs is not stopped."""
    running = require_pyspark().SparkSession.getActiveSession()
    spark = local_session("twinbus cost reconcile", fast_start=True, finds_sources=False)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _reference(role: Role, options: ReconcileOptions) -> NamespaceRef:
    """Spark's processes read the same variables; their values are not sent."""
    named = require_namespace(os.environ, role)
    ca_file = None if options.ca_file is None else str(options.ca_file.resolve())
    if named.connection_string is not None:
        return NamespaceRef(RefKind.ENV, named.source, ca_file, options.administration_port)
    host = str(named.fully_qualified_namespace)
    return NamespaceRef(RefKind.HOST, host, ca_file, options.administration_port)


def show_reconciliation(answer: Reconciliation, output: str) -> None:
    """Print it as JSON, or as tables followed by the verdict."""
    if output != "table":
        show_json(answer.to_json(), output)
        return
    statuses = [status for status in MessageStatus if status in _ALWAYS or answer.count(status)]
    has_outages = any(each.outages for each in answer.entities)
    columns = ["entity", "sent", *(status.value for status in statuses), "duplicates", "unexpected"]
    show_table(
        columns + ["outages"] * has_outages,
        [_row(each, statuses, has_outages) for each in answer.entities],
    )
    if answer.differences:
        show_table(
            ("entity", "message", "difference", "evidence in the logs"),
            [
                (
                    each.entity or "?",
                    each.message_id or f"{each.count:,} without id",
                    each.kind,
                    each.trace,
                )
                for each in answer.differences[:SHOWN_MAX]
            ],
        )
    for sentence in _remarks(answer):
        typer.echo(sentence)
    typer.echo(answer.verdict)


def _row(
    entity: EntityReconciliation, statuses: list[MessageStatus], has_outages: bool
) -> list[str]:
    counts = [entity.sent, *(entity.statuses.get(status, 0) for status in statuses)]
    duplicates = f"{entity.duplicates:,}"
    if entity.duplicates > entity.duplicates_explained:
        duplicates += f" ({entity.duplicates - entity.duplicates_explained:,} unexplained)"
    row = [entity.entity or "?", *(f"{count:,}" for count in counts), duplicates]
    row.append(f"{entity.unexpected:,}")
    return row + [", ".join(map(_outage, entity.outages))] * has_outages


def _outage(outage: Outage) -> str:
    if outage.ends is None:
        return f"since {outage.begins:%Y-%m-%d %H:%M:%S}"
    return f"{outage.begins:%H:%M:%S} for {(outage.ends - outage.begins).total_seconds():,.0f} s"


def _remarks(answer: Reconciliation) -> list[str]:
    remarks = [f"Sources: {', '.join(answer.sources.names)}."]
    remarks += answer.sources.unproven()
    remarks += answer.notes
    hidden = len(answer.differences) - SHOWN_MAX
    if hidden > 0:
        remarks.append(f"{plural(hidden, 'more difference')} in --output json.")
    if answer.damaged_lines:
        remarks.append(f"{plural(answer.damaged_lines, 'line')} of the logs could not be read.")
    if answer.lost_lines:
        remarks.append(f"{plural(answer.lost_lines, 'line')} of the logs are missing.")
    return remarks

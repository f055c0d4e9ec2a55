"""The messages that do not add up, with their traces in the logs; and the outages of entities.

    accounts --that_differ--> --with_traces-->

    entity  message_id  missing  unexpected  doubled  traces

Outages, the times in which entities were diverted, come from the journal of a pair.

Rule 1: a message is named by its id. Of messages without an id only unexplained places and numbers
        are shown; which of them is the message in question is unknown.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.cost.reconciliation import MessageStatus, Outage
from twinbus.errors import ConfigurationError
from twinbus.pairing.events import read_journal
from twinbus.spark.reconciliation.accounts import TOOK
from twinbus.spark.reconciliation.copies import SWEPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["outages_in", "that_differ", "traces", "with_traces"]

# A message that was delivered very often would fill the page: its last lines are enough.
TRACES_MAX: Final = 12


def that_differ(accounts: DataFrame) -> DataFrame:
    """The accounts that do not add up."""
    return accounts.select(
        "entity",
        "message_id",
        F.col(TOOK[MessageStatus.MISSING]).alias("missing"),
        "unexpected",
        (F.col("duplicates") - F.col("explained")).alias("doubled"),
    ).where("missing > 0 or unexpected > 0 or doubled > 0")


def traces(places: DataFrame, sent: DataFrame, receipts: DataFrame) -> DataFrame:
    """All entries about messages, with the fields of ``cost.reconciliation.Trace``."""
    is_backlog, is_completed = F.col("side") == "backlog", F.col("end") == "completed"
    is_unexplained = F.col("end").isin("gone", "replaced") | (
        is_backlog & (F.col("end").isin(*SWEPT) | (is_completed & ~F.col("is_signed")))
    )
    kind = (
        F.when(F.col("number").isNotNull(), "stay")
        .when(F.col("end") == "duplicate", "dropped")
        .otherwise("published")
    )
    return reduce(
        lambda one, other: one.unionByName(other),
        [
            _trace(
                places,
                kind,
                at_ms=F.col("born_ms"),
                place=F.col("place"),
                number=F.coalesce("number", "copies"),
                side=F.col("side"),
                last=F.coalesce("end", "last"),
                last_ms=F.coalesce("end_ms", "last_ms"),
                reason=F.col("reason"),
                is_suspect=is_unexplained,
            ),
            _trace(sent, F.lit("sent"), at_ms=F.col("at_ms"), place=F.col("via")),
            _trace(
                receipts,
                F.lit("receipt"),
                at_ms=F.col("at_ms"),
                place=F.col("queue"),
                number=F.col("number"),
                side=F.lit("backlog"),
                last=F.col("outcome"),
                reason=F.col("reason"),
            ),
        ],
    )


def _trace(
    frame: DataFrame, kind: Column, *, is_suspect: Column | None = None, **values: Column
) -> DataFrame:
    text, number = F.lit(""), F.lit(None)
    return frame.select(
        "entity",
        "message_id",
        (F.lit(False) if is_suspect is None else is_suspect).alias("is_suspect"),
        F.struct(
            values["at_ms"].cast("bigint").alias("at_ms"),
            kind.alias("kind"),
            values["place"].alias("place"),
            values.get("number", number).cast("bigint").alias("number"),
            values.get("side", text).alias("side"),
            values.get("last", text).alias("last"),
            values.get("last_ms", number).cast("bigint").alias("last_ms"),
            F.coalesce(values.get("reason", text), text).alias("reason"),
        ).alias("trace"),
    )


def with_traces(differences: DataFrame, traces: DataFrame) -> DataFrame:
    """Each difference with its traces, the last ones if there are many.

    There are few differences, compared with the traces of a log: every task gets all of them.
    """
    names = differences.columns
    is_meant = F.col("message_id").eqNullSafe(F.col("of_id")) & (
        F.col("entity") == F.col("of_entity")
    )
    meant = (
        traces.where(F.col("message_id").isNotNull() | F.col("is_suspect"))
        .select(F.col("entity").alias("of_entity"), F.col("message_id").alias("of_id"), "trace")
        .join(F.broadcast(differences), is_meant, "inner")
        .select(*names, "trace")
    )
    latest_first = Window.partitionBy(*names).orderBy(F.desc_nulls_last("trace"))
    return (
        # Some have no traces in the logs.
        meant.unionByName(differences, allowMissingColumns=True)
        .withColumn("place_in_time", F.row_number().over(latest_first))
        # There may be millions without an id: they are limited before they are collected.
        .where(F.col("place_in_time") <= TRACES_MAX)
        .groupBy(*names)
        .agg(F.sort_array(F.collect_list("trace"), asc=False).alias("traces"))
    )


def outages_in(journal: Path) -> dict[str, tuple[Outage, ...]]:
    """The outages of each entity, oldest first.

    Several senders may write one journal: an entity is diverted from the first of them to the last.
    """
    began: dict[str, datetime] = {}
    depth: dict[str, int] = {}
    found: dict[str, list[Outage]] = {}
    for name, at, path in _events(journal):
        if name == "diverted":
            began.setdefault(path, at)
            depth[path] = depth.get(path, 0) + 1
        elif name == "restored" and path in began:
            depth[path] -= 1
            if depth[path] == 0:
                found.setdefault(path, []).append(Outage(begins=began.pop(path), ends=at))
    for path, at in began.items():
        found.setdefault(path, []).append(Outage(begins=at, ends=None))
    return {path: tuple(each) for path, each in found.items()}


def _events(journal: Path) -> list[tuple[str, datetime, str]]:
    try:
        entries = [
            (entry.name, entry.at, str(entry.facts.get("path", "")).lower())
            for entry in read_journal(journal)
        ]
    except OSError as error:
        raise ConfigurationError(
            f"The journal {str(journal)!r} cannot be read: {error.strerror}",
            hint="Name the file that the pair's option journal names",
        ) from error
    return sorted(entries, key=lambda entry: entry[1])

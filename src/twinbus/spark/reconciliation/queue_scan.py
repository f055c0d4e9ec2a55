"""The messages that are in the queues now: peeked through the connector, which locks nothing.

Rule 1: the scan comes before the logs are read for the last time: a message that is received after
        the scan has its line then, and messages that arrive after it are not compared with it.
Rule 2: an entity that no longer exists is empty. Without the Manage claim entities cannot be
        listed; then all entities that the logs name must exist. A topic contains no messages that
        could be peeked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.encoding.envelope.fields import PATH
from twinbus.errors import AccessRefused
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.reconciliation.copies import DEAD_LETTERS, SUBSCRIPTIONS
from twinbus.spark.reconciliation.message_locations import SCAN_COLUMNS, SCANNED_COLUMNS
from twinbus.spark.registration import register
from twinbus.spark.runtime.tuning import empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["scan_queues", "select_places"]


def scan_queues(
    spark: SparkSession,
    side: str,
    namespace: NamespaceRef,
    known: Iterable[str],
    *,
    prefix: str | None = None,
    topics: Collection[str] = (),
    has_log: bool,
) -> tuple[DataFrame, DataFrame]:
    """The messages in the known places, and which places were scanned when.

    All queues that begin with ``prefix`` are scanned as well; of a topic, its subscriptions are.
    ``topics`` are those that a log names.
    """
    register(spark)
    known = set(known)
    wanted = {each.removesuffix(DEAD_LETTERS) for each in known}
    selected, present = asyncio.run(select_places(namespace, wanted, prefix, topics))
    scanned_ms = int(time.time() * 1000)
    # A dead-letter queue that the log does not name has no messages that the log could miss.
    dead = {each for each in selected if not has_log or each + DEAD_LETTERS in known}
    places = [*selected, *(each + DEAD_LETTERS for each in sorted(dead))]
    scanned = spark.createDataFrame([(side, each, scanned_ms) for each in places], SCANNED_COLUMNS)
    scan = empty(spark, SCAN_COLUMNS)
    for sub_queue, queues in (
        ("none", present),
        ("deadLetter", [each for each in present if each in dead]),
    ):
        if queues:
            options = {**namespace.to_options(), "queues": ",".join(queues), "subQueue": sub_queue}
            found = spark.read.format("servicebus").options(**options).load()
            scan = scan.unionByName(_rows(found, side, has_log))
    # It is read once: a second scan would find other messages.
    return scan.localCheckpoint(), scanned


def _rows(found: DataFrame, side: str, has_log: bool) -> DataFrame:
    return found.select(
        F.lit(side).alias("side"),
        F.lower("queue").alias("place"),
        F.col("sequenceNumber").alias("number"),
        F.lit(0 if has_log else 1).cast("bigint").alias("generation"),
        F.col("messageId").alias("message_id"),
        F.coalesce(F.unix_millis("enqueuedTime"), F.lit(0)).alias("born_ms"),
        F.lower(F.col("properties")[PATH]).alias("destination"),
    )


async def select_places(
    namespace: NamespaceRef, wanted: set[str], prefix: str | None, known_topics: Collection[str]
) -> tuple[list[str], list[str]]:
    """The places to scan, and those of them that exist."""
    async with namespace.open() as opened:
        manager = opened.management
        try:
            queues = {each.path.lower() async for each in manager.list_queues()}
            topics = {each.path.lower() async for each in manager.list_topics()}
            copies = {
                f"{topic}{SUBSCRIPTIONS}{each.name}".lower()
                for topic in topics & {each.partition(SUBSCRIPTIONS)[0] for each in wanted}
                async for each in manager.list_subscriptions(topic)
            }
        except AccessRefused:
            above = {each.partition(SUBSCRIPTIONS)[0] for each in wanted if SUBSCRIPTIONS in each}
            places = sorted(wanted - above - set(known_topics))
            return places, places
    own = {each for each in queues if prefix is not None and each.startswith(prefix)}
    selected = (wanted - topics) | copies | own
    return sorted(selected), sorted(selected & (queues | copies))

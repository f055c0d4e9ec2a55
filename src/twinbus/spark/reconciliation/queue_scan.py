"""What the queues hold now: peeked through the connector, which takes and locks nothing.

Rule 1: the look comes before the logs are read for the last time: what is taken after the look has
        its line then, and what comes after it is not judged.
Rule 2: an entity that no longer exists holds nothing. Without Manage nobody can list them; then all
        that the logs name must be there. A topic holds nothing that could be looked at.
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
from twinbus.spark.reconciliation.message_locations import LOOK_COLUMNS, LOOKED_COLUMNS
from twinbus.spark.registration import register
from twinbus.spark.runtime.tuning import empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["existing", "look_at"]


def look_at(
    spark: SparkSession,
    side: str,
    namespace: NamespaceRef,
    known: Iterable[str],
    *,
    prefix: str | None = None,
    topics: Collection[str] = (),
    has_log: bool,
) -> tuple[DataFrame, DataFrame]:
    """The messages in the places that are known, and which of them were asked when.

    All queues that begin with ``prefix`` are asked, too; of a topic, its subscriptions are.
    ``topics`` are those that a log tells of.
    """
    register(spark)
    known = set(known)
    wanted = {each.removesuffix(DEAD_LETTERS) for each in known}
    asked, there = asyncio.run(existing(namespace, wanted, prefix, topics))
    looked_ms = int(time.time() * 1000)
    # A dead-letter queue that a log does not tell of holds nothing that the log could miss.
    dead = {each for each in asked if not has_log or each + DEAD_LETTERS in known}
    places = [*asked, *(each + DEAD_LETTERS for each in sorted(dead))]
    looked = spark.createDataFrame([(side, each, looked_ms) for each in places], LOOKED_COLUMNS)
    look = empty(spark, LOOK_COLUMNS)
    for sub_queue, queues in (
        ("none", there),
        ("deadLetter", [each for each in there if each in dead]),
    ):
        if queues:
            options = {**namespace.to_options(), "queues": ",".join(queues), "subQueue": sub_queue}
            found = spark.read.format("servicebus").options(**options).load()
            look = look.unionByName(_rows(found, side, has_log))
    # It is read once: a second look would find something else.
    return look.localCheckpoint(), looked


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


async def existing(
    namespace: NamespaceRef, wanted: set[str], prefix: str | None, known_topics: Collection[str]
) -> tuple[list[str], list[str]]:
    """What is asked, and what of it exists."""
    async with namespace.opened() as opened:
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
    asked = (wanted - topics) | copies | own
    return sorted(asked), sorted(asked & (queues | copies))

"""From places to copies: what arrived for an entity, and what became of it.

    places --with_entity--> --signed--> --numbered--> --adopted--> --with_fate--> --copies_of-->

    side  entity  message_id  copy  fate  is_older  is_signed  born_ms

Rule 1: a queue's copy is one stay. A message of a topic is one copy, however many subscriptions got
        it: the n-th stay of an id in each of them is the n-th publication. Its fate is that of the
        stay that is furthest from its end.
Rule 2: a message that moves on (forwarded, dead-lettered, due) leaves no copy behind. Where it
        went it carries the number that it had first (``original``): by that, and by its id, the
        later stay belongs to the entity and the copy where it began.
Rule 3: who purges a queue of the primary, or deletes it, means its messages. A backlog queue holds
        those of others: they never reached their entity, and are missing.
Rule 4: a dead letter stays one, whoever takes it from the dead-letter queue; one that a look does
        not find there is missing. Dead letters that are forwarded leave the books there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.core.reconciliation import Fate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "COPY_COLUMNS",
    "GONE_HOME",
    "adopted",
    "copies_in_receipts",
    "copies_of",
    "numbered",
    "signed",
    "unclaimed",
    "with_entity",
    "with_fate",
]

DEAD_LETTERS: Final = "/$deadletterqueue"
SUBSCRIPTIONS: Final = "/subscriptions/"
GONE_HOME: Final = "gone-home"
"""A backlog message that somebody completed: its copy on the primary must be found."""
MOVED_ON: Final = "moved-on"
SWEPT: Final = ("purged", "deleted")
COPY_COLUMNS: Final = (
    "side string, entity string, message_id string, copy string, fate string, "
    "is_older boolean, is_signed boolean, born_ms bigint"
)

_FATES: Final = {
    "completed": Fate.DELIVERED.value,
    "forwarded": MOVED_ON,
    "due": MOVED_ON,
    "dead-lettered": MOVED_ON,
    "expired": Fate.EXPIRED.value,
    "purged": Fate.PURGED.value,
    "cancelled": Fate.PURGED.value,
    "deleted": Fate.PURGED.value,
    "gone": Fate.MISSING.value,
    "replaced": Fate.MISSING.value,
}
# The last one decides for a message with several stays.
_NEARER_TO_THE_END: Final = (
    Fate.DELIVERED.value,
    GONE_HOME,
    Fate.PURGED.value,
    Fate.EXPIRED.value,
    Fate.DEAD_LETTERED.value,
    Fate.IN_BACKLOG.value,
    Fate.WAITING.value,
    Fate.MISSING.value,
)


def with_entity(places: DataFrame) -> DataFrame:
    """The queue or subscription without its dead letters, and the entity that it belongs to."""
    queue = F.regexp_replace("place", r"/\$deadletterqueue$", "")
    topic = F.substring_index(queue, SUBSCRIPTIONS, 1)
    return places.withColumns(
        {
            "queue": queue,
            "is_dead": F.col("place").endswith(DEAD_LETTERS),
            "entity": F.when(
                F.col("side") == "backlog", F.coalesce("destination", F.lit(""))
            ).otherwise(topic),
        }
    )


def signed(places: DataFrame, receipts: DataFrame) -> DataFrame:
    """Whether a receipt of the syphon says that it sent a stay's message home."""
    receipts = (
        receipts.where(F.col("outcome").isin("moved", "unsure", "lock-lost"))
        .select(
            F.col("queue").alias("place"),
            "number",
            F.coalesce("message_id", F.lit("")).alias("id"),
            F.lit("backlog").alias("side"),
            F.lit(True).alias("is_signed"),
        )
        .distinct()
    )
    return (
        places.withColumn("id", F.coalesce("message_id", F.lit("")))
        .join(receipts, ["side", "place", "number", "id"], "left")
        .withColumn("is_signed", F.coalesce("is_signed", F.lit(False)))
        .drop("id")
    )


def numbered(places: DataFrame, events: DataFrame) -> DataFrame:
    """Name the copy that each stay belongs to; of a topic by the publications of its events."""
    published = (
        events.where("event = 'published'")
        .groupBy(F.col("place").alias("entity"), F.coalesce("message_id", F.lit("")).alias("id"))
        .agg(F.count("*").alias("published"))
    )
    own = F.concat_ws("#", "place", "number", "generation")
    is_copy = (
        F.col("queue").contains(SUBSCRIPTIONS)
        & F.col("original").isNull()
        & (F.col("side") == "primary")
    )
    # All others are alone, so that no task has to sort what has no id.
    in_order = Window.partitionBy(
        F.when(is_copy, F.concat_ws("#", "queue", "id")).otherwise(own)
    ).orderBy("born_ms", "number")
    publication = F.concat(
        F.lit("publication "), F.least(F.row_number().over(in_order), "published")
    )
    return (
        places.withColumn("id", F.coalesce("message_id", F.lit("")))
        .join(published, ["entity", "id"], "left")
        .withColumn("copy", F.when(is_copy, publication).otherwise(own))
        .drop("id", "published")
    )


def adopted(places: DataFrame) -> DataFrame:
    """Stays of messages that moved on belong to where they began (rule 2)."""
    began = (
        places.where(F.col("original").isNull() & F.col("end").isin("forwarded", "dead-lettered"))
        .groupBy(
            "side",
            F.col("number").alias("original"),
            F.coalesce("message_id", F.lit("")).alias("id"),
        )
        .agg(F.collect_list(F.struct("place", "end", "entity", "copy")).alias("began"))
    )
    is_own = F.col("is_dead") & F.exists("began", lambda each: each["place"] == F.col("queue"))
    own = F.filter("began", lambda each: each["place"] == F.col("queue"))
    sent_on = F.filter("began", lambda each: each["end"] == "forwarded")
    parent = F.when(is_own, F.get(own, F.lit(0))).otherwise(F.get(sent_on, F.lit(0)))
    is_orphan = F.col("original").isNotNull() & F.col("began").isNull()
    # Only a dead letter of another entity fits: it was forwarded from its dead-letter queue.
    is_forwarded_letter = F.col("began").isNotNull() & F.col("parent").isNull()
    return (
        places.withColumn("id", F.coalesce("message_id", F.lit("")))
        .join(began, ["side", "original", "id"], "left")
        .withColumn("parent", parent)
        .where(~is_forwarded_letter)
        .withColumn("entity", F.coalesce("parent.entity", "entity"))
        .withColumn("copy", F.coalesce("parent.copy", "copy"))
        # Where it began the logs do not show: it is older than they are.
        .withColumn("generation", F.when(is_orphan, F.lit(0)).otherwise(F.col("generation")))
        .drop("id", "began", "parent")
    )


def with_fate(places: DataFrame) -> DataFrame:
    """What became of each stay."""
    is_backlog = F.col("side") == "backlog"
    there = F.when(is_backlog, Fate.IN_BACKLOG.value).otherwise(Fate.WAITING.value)
    ended = (
        F.when(is_backlog & F.col("end").isin("completed", "forwarded"), GONE_HOME)
        .when(is_backlog & F.col("end").isin(*SWEPT), Fate.MISSING.value)
        .otherwise(_by(_FATES, F.col("end")))
    )
    dead = F.when(F.col("end").isin("gone", "replaced"), Fate.MISSING.value).otherwise(
        Fate.DEAD_LETTERED.value
    )
    fate = F.when(F.col("is_dead"), dead).when(F.col("end").isNull(), there).otherwise(ended)
    return places.withColumn("fate", fate)


def copies_of(places: DataFrame) -> DataFrame:
    """One row for each copy."""
    distance = _by({name: rank for rank, name in enumerate(_NEARER_TO_THE_END)}, F.col("fate"))
    return (
        places.where(F.col("fate") != MOVED_ON)
        .groupBy("side", "entity", "message_id", "copy")
        .agg(
            F.max_by("fate", distance).alias("fate"),
            F.max(F.col("generation") == 0).alias("is_older"),
            F.max("is_signed").alias("is_signed"),
            F.min("born_ms").alias("born_ms"),
        )
    )


def unclaimed(events: DataFrame) -> DataFrame:
    """Copies of what topics took and no subscription wanted."""
    return events.where("event = 'published' and copies = 0").select(
        "side",
        F.col("place").alias("entity"),
        "message_id",
        F.concat_ws("#", F.lit("nobody"), "at_ms", F.monotonically_increasing_id()).alias("copy"),
        F.lit(Fate.UNCLAIMED.value).alias("fate"),
        F.lit(False).alias("is_older"),
        F.lit(False).alias("is_signed"),
        F.col("at_ms").alias("born_ms"),
    )


def copies_in_receipts(receipts: DataFrame) -> DataFrame:
    """What receipts alone tell of the backlog, where it has no log."""
    fates = {"moved": GONE_HOME, "dead-lettered": Fate.DEAD_LETTERED.value}
    # What was moved once is at home, whatever happened to it in the backlog afterwards.
    decisive = F.max_by("outcome", F.struct(F.col("outcome") == "moved", "at_ms"))
    return (
        receipts.groupBy("queue", "number", "entity", "message_id")
        .agg(
            F.coalesce(_by(fates, decisive), F.lit(Fate.IN_BACKLOG.value)).alias("fate"),
            F.max(F.col("outcome").isin("moved", "unsure", "lock-lost")).alias("is_signed"),
            F.min(F.coalesce("enqueued_ms", "at_ms")).alias("born_ms"),
        )
        .select(
            F.lit("backlog").alias("side"),
            "entity",
            "message_id",
            F.concat_ws("#", "queue", "number").alias("copy"),
            "fate",
            F.lit(False).alias("is_older"),
            "is_signed",
            "born_ms",
        )
    )


def _by(table: dict[str, str] | dict[str, int], key: Column) -> Column:
    pairs = [F.lit(part) for pair in table.items() for part in pair]
    return F.element_at(F.create_map(*pairs), key)

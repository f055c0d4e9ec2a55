"""From stays in places to copies: which copies of messages an entity got, and their status.

    places --with_entity--> --signed--> --named--> --adopted--> --with_status--> --copies_of-->

    side  entity  message_id  copy  status  is_older  is_signed  born_ms

Rule 1: a queue's copy is one stay. A message of a topic is one copy, however many subscriptions got
        it: its stays have their publication in common. It has the worst status of its stays, in
        the order of the table below; with fewer stays than the topic made copies it is missing.
Rule 2: a message that moves on (forwarded, dead-lettered, due) leaves no copy behind. Its next
        stay names the one before: the later stay, the publication and what was dropped there
        belong to the entity and the copy of the first stay.
Rule 3: purging or deleting a queue of the primary removes its messages on purpose. A backlog queue
        contains messages of other entities: those never reached their entity, and are missing.
Rule 4: a dead letter keeps this status after it was received from the dead-letter queue; one that
        a scan does not find there is missing. Dead letters that are forwarded are not followed
        further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.cost.reconciliation import MessageStatus

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "COPY_COLUMNS",
    "DROPPED",
    "HOPS_MAX",
    "LEFT_BACKLOG",
    "adopted",
    "copies_in_receipts",
    "copies_of",
    "named",
    "signed",
    "with_entity",
    "with_status",
]

DEAD_LETTERS: Final = "/$deadletterqueue"
SUBSCRIPTIONS: Final = "/subscriptions/"
LEFT_BACKLOG: Final = "left-backlog"
"""A backlog message that a receiver completed: its copy on the primary must be found."""
DROPPED: Final = "dropped"
"""By duplicate detection of an entity."""
MOVED_ON: Final = "moved-on"
PUBLISHED: Final = "published"
"""A topic accepted it: its copies are in the subscriptions."""
# Four forwards, the maximum, and from there to the dead letters.
HOPS_MAX: Final = 5
SWEPT: Final = ("purged", "deleted")
COPY_COLUMNS: Final = (
    "side string, entity string, message_id string, copy string, status string, "
    "is_older boolean, is_signed boolean, born_ms bigint"
)

_STATUSES: Final = {
    "completed": MessageStatus.DELIVERED.value,
    "forwarded": MOVED_ON,
    "due": MOVED_ON,
    "dead-lettered": MOVED_ON,
    "expired": MessageStatus.EXPIRED.value,
    "purged": MessageStatus.PURGED.value,
    "cancelled": MessageStatus.PURGED.value,
    "deleted": MessageStatus.PURGED.value,
    "gone": MessageStatus.MISSING.value,
    "replaced": MessageStatus.MISSING.value,
    "duplicate": DROPPED,
    "published": PUBLISHED,
}
# The last one decides for a message with several stays.
_BEST_TO_WORST: Final = (
    MOVED_ON,
    PUBLISHED,
    DROPPED,
    MessageStatus.UNCLAIMED.value,
    MessageStatus.DELIVERED.value,
    LEFT_BACKLOG,
    MessageStatus.PURGED.value,
    MessageStatus.EXPIRED.value,
    MessageStatus.DEAD_LETTERED.value,
    MessageStatus.IN_BACKLOG.value,
    MessageStatus.WAITING.value,
    MessageStatus.MISSING.value,
)


def with_entity(places: DataFrame) -> DataFrame:
    """The queue or subscription without its dead-letter suffix, and its entity."""
    queue = F.regexp_replace("place", r"/\$deadletterqueue$", "")
    topic = F.substring_index(queue, SUBSCRIPTIONS, 1)
    is_dead = F.col("place").endswith(DEAD_LETTERS)
    # Older logs have the first number only, which is that of the queue if it was never forwarded.
    is_of_queue = is_dead & F.col("original").isNotNull() & F.col("from_place").isNull()
    return places.withColumns(
        {
            "queue": queue,
            "is_dead": is_dead,
            "entity": F.when(
                F.col("side") == "backlog", F.coalesce("destination", F.lit(""))
            ).otherwise(topic),
            "from_place": F.when(is_of_queue, queue).otherwise(F.col("from_place")),
            "from_number": F.when(is_of_queue, F.col("original")).otherwise(F.col("from_number")),
        }
    )


def signed(places: DataFrame, receipts: DataFrame) -> DataFrame:
    """With a flag: whether a receipt of the syphon reports that it moved the stay's message."""
    receipts = (
        receipts.where(F.col("outcome").isin("moved", "ambiguous", "lock-lost"))
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


def named(places: DataFrame) -> DataFrame:
    """Name the copy that each stay belongs to (rule 1)."""
    own = F.concat_ws("#", "place", "number", "mark", "generation")
    # In older logs the publications of an id cannot be distinguished.
    is_of_older_topic = (
        F.col("queue").contains(SUBSCRIPTIONS)
        & F.col("original").isNull()
        & F.col("message_id").isNotNull()
        & (F.col("side") == "primary")
    )
    copy = (
        F.when(F.col("publication").isNotNull(), F.concat_ws("#", F.lit("topic"), "publication"))
        .when(is_of_older_topic, F.concat_ws("#", "entity", "message_id"))
        .otherwise(own)
    )
    return places.withColumn("copy", copy)


def adopted(places: DataFrame, hops: int = HOPS_MAX) -> DataFrame:
    """Assign what moved on, ``hops`` times at most, to its first entity and copy (rule 2)."""
    links = (
        places.where(F.col("end").isin("forwarded", "dead-lettered"))
        .groupBy("side", F.col("place").alias("up_place"), F.col("number").alias("up_number"))
        .agg(
            F.collect_list(
                F.struct("born_ms", "entity", "copy", "from_place", "from_number")
            ).alias("links")
        )
    )
    moved = places.where("from_place is not null").withColumns(
        {
            "up_place": F.col("from_place"),
            "up_number": F.col("from_number"),
            "up_ms": F.col("born_ms"),
            "has_left": F.lit(False),
        }
    )
    for _ in range(hops):
        moved = _one_up(moved, links)
    # The logs do not contain its first stay: it is older than they are.
    is_orphan = F.col("up_place").isNotNull()
    moved = (
        moved.where("not has_left")
        .withColumn("generation", F.when(is_orphan, F.lit(0)).otherwise(F.col("generation")))
        .drop("up_place", "up_number", "up_ms", "has_left")
    )
    is_older = F.col("original").isNotNull()
    own = places.where("from_place is null").withColumn(
        "generation", F.when(is_older, F.lit(0)).otherwise(F.col("generation"))
    )
    return own.unionByName(moved)


def _one_up(moved: DataFrame, links: DataFrame) -> DataFrame:
    """Each row with the entity and the copy of the stay before, if that is known."""
    # Numbers are used again in an entity that was created again: take the last stay before.
    parent = F.array_max(F.filter("links", lambda each: each["born_ms"] <= F.col("up_ms")))
    is_known = F.col("parent").isNotNull()
    # Forwarded dead letters are not followed further.
    leaves = F.coalesce(F.col("up_place").endswith(DEAD_LETTERS), F.lit(False))
    return (
        moved.withColumn("has_left", F.col("has_left") | leaves)
        .join(links, ["side", "up_place", "up_number"], "left")
        .withColumn("parent", parent)
        .withColumns(
            {
                "entity": F.coalesce("parent.entity", "entity"),
                "copy": F.coalesce("parent.copy", "copy"),
                "up_place": F.when(is_known, F.col("parent.from_place")).otherwise(
                    F.col("up_place")
                ),
                "up_number": F.when(is_known, F.col("parent.from_number")).otherwise(
                    F.col("up_number")
                ),
                "up_ms": F.coalesce("parent.born_ms", "up_ms"),
            }
        )
        .drop("links", "parent")
    )


def with_status(places: DataFrame) -> DataFrame:
    """With the status of each stay."""
    is_backlog = F.col("side") == "backlog"
    there = F.when(is_backlog, MessageStatus.IN_BACKLOG.value).otherwise(
        MessageStatus.WAITING.value
    )
    ended = (
        F.when(is_backlog & F.col("end").isin("completed", "forwarded"), LEFT_BACKLOG)
        .when(is_backlog & F.col("end").isin(*SWEPT), MessageStatus.MISSING.value)
        .otherwise(_by(_STATUSES, F.col("end")))
    )
    dead = F.when(F.col("end").isin("gone", "replaced"), MessageStatus.MISSING.value).otherwise(
        MessageStatus.DEAD_LETTERED.value
    )
    is_unclaimed = (F.col("end") == "published") & (F.col("copies") == 0)
    status = (
        F.when(F.col("is_dead"), dead)
        .when(F.col("end").isNull(), there)
        .when(is_unclaimed, MessageStatus.UNCLAIMED.value)
        .otherwise(ended)
    )
    return places.withColumn("status", status)


def copies_of(places: DataFrame) -> DataFrame:
    """One row for each copy."""
    distance = _by({name: rank for rank, name in enumerate(_BEST_TO_WORST)}, F.col("status"))
    is_stay = F.col("number").isNotNull()
    # A rule of a subscription may give its copy another id.
    first_hand = F.when(~is_stay, 2).when(F.col("from_place").isNull(), 1).otherwise(0)
    made = F.sum(F.coalesce("copies", F.lit(0)))
    found = F.sum((is_stay & F.col("publication").isNotNull()).cast("int"))
    return (
        places.groupBy("side", "entity", "copy")
        .agg(
            F.max_by("message_id", first_hand).alias("message_id"),
            F.when(made > found, MessageStatus.MISSING.value)
            .otherwise(F.max_by("status", distance))
            .alias("status"),
            F.max(F.col("generation") == 0).alias("is_older"),
            F.max("is_signed").alias("is_signed"),
            F.min("born_ms").alias("born_ms"),
        )
        .where(~F.col("status").isin(MOVED_ON, PUBLISHED))
    )


def copies_in_receipts(receipts: DataFrame) -> DataFrame:
    """The copies in the backlog by receipts alone, where the backlog has no log."""
    statuses = {"moved": LEFT_BACKLOG, "dead-lettered": MessageStatus.DEAD_LETTERED.value}
    # A message that was moved once is on the primary, whatever happened in the backlog later.
    decisive = F.max_by("outcome", F.struct(F.col("outcome") == "moved", "at_ms"))
    return (
        receipts.groupBy("queue", "number", "entity", "message_id")
        .agg(
            F.coalesce(_by(statuses, decisive), F.lit(MessageStatus.IN_BACKLOG.value)).alias(
                "status"
            ),
            F.max(F.col("outcome").isin("moved", "ambiguous", "lock-lost")).alias("is_signed"),
            F.min(F.coalesce("enqueued_ms", "at_ms")).alias("born_ms"),
        )
        .select(
            F.lit("backlog").alias("side"),
            "entity",
            "message_id",
            F.concat_ws("#", "queue", "number").alias("copy"),
            "status",
            F.lit(False).alias("is_older"),
            "is_signed",
            "born_ms",
        )
    )


def _by(table: dict[str, str] | dict[str, int], key: Column) -> Column:
    pairs = [F.lit(part) for pair in table.items() for part in pair]
    return F.element_at(F.create_map(*pairs), key)

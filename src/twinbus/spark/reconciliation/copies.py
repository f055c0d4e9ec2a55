"""From places to copies: what arrived for an entity, and what became of it.

    places --with_entity--> --signed--> --named--> --adopted--> --with_fate--> --copies_of-->

    side  entity  message_id  copy  fate  is_older  is_signed  born_ms

Rule 1: a queue's copy is one stay. A message of a topic is one copy, however many subscriptions got
        it: its stays have their publication in common. Its fate is that of the stay that is
        furthest from its end; where there are fewer stays than the topic made copies it is missing.
Rule 2: a message that moves on (forwarded, dead-lettered, due) leaves no copy behind. Where it
        went it says where it came from: the later stay, the publication and what was dropped there
        belong to the entity and the copy where it began.
Rule 3: who purges a queue of the primary, or deletes it, means its messages. A backlog queue holds
        those of others: they never reached their entity, and are missing.
Rule 4: a dead letter stays one, whoever takes it from the dead-letter queue; one that a look does
        not find there is missing. Dead letters that are forwarded leave the books there.
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
    "GONE_HOME",
    "HOPS_MAX",
    "adopted",
    "copies_in_receipts",
    "copies_of",
    "named",
    "signed",
    "with_entity",
    "with_fate",
]

DEAD_LETTERS: Final = "/$deadletterqueue"
SUBSCRIPTIONS: Final = "/subscriptions/"
GONE_HOME: Final = "gone-home"
"""A backlog message that somebody completed: its copy on the primary must be found."""
DROPPED: Final = "dropped"
"""By an entity that has seen its id before."""
MOVED_ON: Final = "moved-on"
PUBLISHED: Final = "published"
"""A topic took it: its copies are elsewhere."""
# Four forwards, the most there are, and from there to the dead letters.
HOPS_MAX: Final = 5
SWEPT: Final = ("purged", "deleted")
COPY_COLUMNS: Final = (
    "side string, entity string, message_id string, copy string, fate string, "
    "is_older boolean, is_signed boolean, born_ms bigint"
)

_FATES: Final = {
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
_NEARER_TO_THE_END: Final = (
    MOVED_ON,
    PUBLISHED,
    DROPPED,
    MessageStatus.UNCLAIMED.value,
    MessageStatus.DELIVERED.value,
    GONE_HOME,
    MessageStatus.PURGED.value,
    MessageStatus.EXPIRED.value,
    MessageStatus.DEAD_LETTERED.value,
    MessageStatus.IN_BACKLOG.value,
    MessageStatus.WAITING.value,
    MessageStatus.MISSING.value,
)


def with_entity(places: DataFrame) -> DataFrame:
    """The queue or subscription without its dead letters, and the entity that it belongs to."""
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
    """Whether a receipt of the syphon says that it sent a stay's message home."""
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
    # In older logs nothing tells the publications of an id apart.
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
    """What moved on, ``hops`` times at most, belongs to where it began (rule 2)."""
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
    # Where it began the logs do not show: it is older than they are.
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
    """Each row with the entity and the copy of where it was before, if that is known."""
    # A number comes again in an entity that was made anew: the last stay before this one.
    parent = F.array_max(F.filter("links", lambda each: each["born_ms"] <= F.col("up_ms")))
    is_known = F.col("parent").isNotNull()
    # Who forwards dead letters has taken them from the books.
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


def with_fate(places: DataFrame) -> DataFrame:
    """What became of each stay."""
    is_backlog = F.col("side") == "backlog"
    there = F.when(is_backlog, MessageStatus.IN_BACKLOG.value).otherwise(
        MessageStatus.WAITING.value
    )
    ended = (
        F.when(is_backlog & F.col("end").isin("completed", "forwarded"), GONE_HOME)
        .when(is_backlog & F.col("end").isin(*SWEPT), MessageStatus.MISSING.value)
        .otherwise(_by(_FATES, F.col("end")))
    )
    dead = F.when(F.col("end").isin("gone", "replaced"), MessageStatus.MISSING.value).otherwise(
        MessageStatus.DEAD_LETTERED.value
    )
    is_unclaimed = (F.col("end") == "published") & (F.col("copies") == 0)
    fate = (
        F.when(F.col("is_dead"), dead)
        .when(F.col("end").isNull(), there)
        .when(is_unclaimed, MessageStatus.UNCLAIMED.value)
        .otherwise(ended)
    )
    return places.withColumn("fate", fate)


def copies_of(places: DataFrame) -> DataFrame:
    """One row for each copy."""
    distance = _by({name: rank for rank, name in enumerate(_NEARER_TO_THE_END)}, F.col("fate"))
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
            .otherwise(F.max_by("fate", distance))
            .alias("fate"),
            F.max(F.col("generation") == 0).alias("is_older"),
            F.max("is_signed").alias("is_signed"),
            F.min("born_ms").alias("born_ms"),
        )
        .where(~F.col("fate").isin(MOVED_ON, PUBLISHED))
    )


def copies_in_receipts(receipts: DataFrame) -> DataFrame:
    """What receipts alone tell of the backlog, where it has no log."""
    fates = {"moved": GONE_HOME, "dead-lettered": MessageStatus.DEAD_LETTERED.value}
    # What was moved once is at home, whatever happened to it in the backlog afterwards.
    decisive = F.max_by("outcome", F.struct(F.col("outcome") == "moved", "at_ms"))
    return (
        receipts.groupBy("queue", "number", "entity", "message_id")
        .agg(
            F.coalesce(_by(fates, decisive), F.lit(MessageStatus.IN_BACKLOG.value)).alias("fate"),
            F.max(F.col("outcome").isin("moved", "ambiguous", "lock-lost")).alias("is_signed"),
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

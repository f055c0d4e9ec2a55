"""From events to places: one row for each stay of a message in a queue.

    events --places_of--> --ended_with_their_entity--> --compared_with_scan--> --marked--> places

    side  place  number  generation  message_id  born_ms  last  last_ms  end  end_ms  reason
    destination  original  from_place  from_number  publication  copies  expires_ms  mark

Rule 1: a stay begins when a message is stored or scheduled under a number. The same number stored
        again is another stay (``generation``), of an entity that was deleted and created again.
Rule 2: ``end`` is how the message left; null while it is there. ``generation`` 0 is a stay whose
        beginning is not in the logs.
Rule 3: a message that is there by the logs and that a scan did not find has left: it is ``gone``,
        or expired if its time was over: a receiver may have it locked, and then its line follows
        later.
Rule 4: a message that a topic accepted, or that was dropped as a duplicate, has no stay and no
        number. It gets a row of its own with this end (``mark``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "PLACE_COLUMNS",
    "SCANNED_COLUMNS",
    "SCAN_COLUMNS",
    "compared_with_scan",
    "ended_with_their_entity",
    "marked",
    "places_of",
]

BIRTHS: Final = ("stored", "scheduled")
ENDS: Final = (
    "completed",
    "forwarded",
    "due",
    "cancelled",
    "dead-lettered",
    "expired",
    "purged",
)
PLACE_COLUMNS: Final = (
    "side string, place string, number bigint, generation bigint, message_id string, "
    "born_ms bigint, last string, last_ms bigint, end string, end_ms bigint, reason string, "
    "destination string, original bigint, from_place string, from_number bigint, "
    "publication string, copies int, expires_ms bigint, mark string"
)
SCAN_COLUMNS: Final = (
    "side string, place string, number bigint, generation bigint, message_id string, "
    "born_ms bigint, destination string"
)
SCANNED_COLUMNS: Final = "side string, place string, scanned_ms bigint"
_KEY: Final = ("side", "place", "number")
_BIRTH_COLUMNS: Final = ("original", "from_place", "from_number", "publication", "expires_ms")


def places_of(events: DataFrame) -> DataFrame:
    """Every stay in the events."""
    step = F.when(F.col("event").isin(*BIRTHS), 0).when(F.col("event").isin(*ENDS), 2).otherwise(1)
    in_order = Window.partitionBy(*_KEY).orderBy("at_ms", "step")
    # The same line in a copy of a log is not another beginning.
    before = F.lag(F.struct("at_ms", "step")).over(in_order)
    is_birth = (F.col("step") == 0) & ~before.eqNullSafe(F.struct("at_ms", "step"))
    by_generation = Window.partitionBy(*_KEY).orderBy("generation")
    ending = F.max(F.when(F.col("step") == 2, F.struct("at_ms", "event", "reason")))
    stays = (
        events.where("number is not null")
        .withColumn("step", step)
        .withColumn("is_birth", is_birth)
        .withColumn("generation", F.sum(F.col("is_birth").cast("bigint")).over(in_order))
        .groupBy(*_KEY, "generation")
        .agg(
            F.max("message_id").alias("message_id"),
            F.min("at_ms").alias("born_ms"),
            F.max_by("event", F.struct("at_ms", "step")).alias("last"),
            F.max("at_ms").alias("last_ms"),
            ending.alias("ending"),
            F.max("destination").alias("destination"),
            *(F.max(name).alias(name) for name in _BIRTH_COLUMNS),
            F.max(F.col("event").isin(*BIRTHS, "delivered")).alias("is_known"),
        )
        # If only the end is in the logs, it is unknown whether the message has an id.
        .where("is_known")
        .withColumn("next_ms", F.lead("born_ms").over(by_generation))
    )
    is_replaced = F.col("ending").isNull() & F.col("next_ms").isNotNull()
    return stays.select(
        *_KEY,
        "generation",
        "message_id",
        "born_ms",
        "last",
        "last_ms",
        F.when(is_replaced, "replaced").otherwise(F.col("ending.event")).alias("end"),
        F.when(is_replaced, F.col("next_ms")).otherwise(F.col("ending.at_ms")).alias("end_ms"),
        F.col("ending.reason").alias("reason"),
        "destination",
        *_BIRTH_COLUMNS,
        F.lit(None).cast("int").alias("copies"),
        F.lit(None).cast("string").alias("mark"),
    )


def marked(places: DataFrame, events: DataFrame) -> DataFrame:
    """With a row for what topics accepted and for what was dropped on the primary (rule 4)."""
    # Copies in older logs have no publication, so they cannot be found.
    is_vain = (F.col("copies") > 0) & F.col("publication").isNull()
    marks = (
        events.where("side = 'primary' and event in ('published', 'duplicate')")
        .where(~F.coalesce(is_vain, F.lit(False)))
        .select(
            "side",
            "place",
            F.lit(None).cast("bigint").alias("number"),
            F.lit(1).cast("bigint").alias("generation"),
            "message_id",
            F.col("at_ms").alias("born_ms"),
            F.col("event").alias("last"),
            F.col("at_ms").alias("last_ms"),
            F.col("event").alias("end"),
            F.col("at_ms").alias("end_ms"),
            F.lit(None).cast("string").alias("reason"),
            F.lit(None).cast("string").alias("destination"),
            *_BIRTH_COLUMNS,
            "copies",
            F.coalesce("line", _nameless_mark()).alias("mark"),
        )
    )
    return places.unionByName(marks)


def _nameless_mark() -> Column:
    return F.concat(F.lit("mark "), F.monotonically_increasing_id().cast("string"))


def ended_with_their_entity(places: DataFrame, events: DataFrame) -> DataFrame:
    """Messages that were in an entity when it was deleted have the end ``deleted``."""
    deletions = (
        events.where("event = 'deleted'")
        .groupBy("side", "place")
        .agg(F.collect_list("at_ms").alias("deletions"))
    )
    later = F.filter("deletions", lambda at_ms: at_ms >= F.col("last_ms"))
    at_ms = F.when(F.col("end").isNull() | (F.col("end") == "replaced"), F.array_min(later))
    return (
        places.join(F.broadcast(deletions), ["side", "place"], "left")
        .withColumn("deleted_ms", at_ms)
        .withColumn(
            "end", F.when(F.col("deleted_ms").isNotNull(), "deleted").otherwise(F.col("end"))
        )
        .withColumn("end_ms", F.coalesce("deleted_ms", "end_ms"))
        .drop("deletions", "deleted_ms")
    )


def compared_with_scan(places: DataFrame, scan: DataFrame, scanned: DataFrame) -> DataFrame:
    """Compare with the messages in the queues: ``scan`` has them, ``scanned`` when each place was
    scanned.

    Messages that came after the scan are not compared. ``scan.generation`` is 0 where there are
    logs: messages that these do not contain are older than they are.
    """
    found = scan.select(*_KEY, F.col("message_id").alias("found_id"), F.lit(True).alias("is_found"))
    known = places.join(F.broadcast(scanned), ["side", "place"], "left").join(
        found, list(_KEY), "left"
    )
    # An id of bytes is hexadecimal in a log, and base64 in a scan.
    in_hex = F.lower(F.hex(F.try_to_binary("found_id", F.lit("base64"))))
    is_same = (F.col("found_id") == F.col("message_id")) | (in_hex == F.col("message_id"))
    is_other = ~is_same & F.col("message_id").isNotNull()
    is_missed = F.col("is_found").isNull() | F.coalesce(is_other, F.lit(False))
    is_gone = F.col("end").isNull() & is_missed & (F.col("last_ms") < F.col("scanned_ms"))
    is_over = F.coalesce(F.col("expires_ms") <= F.col("scanned_ms"), F.lit(False))
    compared = known.withColumns(
        {
            "end": F.when(is_gone & is_over, "expired")
            .when(is_gone, "gone")
            .otherwise(F.col("end")),
            "end_ms": F.when(is_gone & is_over, F.col("expires_ms"))
            .when(is_gone, F.col("scanned_ms"))
            .otherwise(F.col("end_ms")),
        }
    ).drop("scanned_ms", "is_found", "found_id")
    return compared.unionByName(_unknown(places, scan))


def _unknown(places: DataFrame, scan: DataFrame) -> DataFrame:
    """Messages that are there and in no log: stored before the logs begin, or without logs."""
    known = places.select(*_KEY).distinct()
    return scan.join(known, list(_KEY), "left_anti").select(
        *_KEY,
        "generation",
        "message_id",
        "born_ms",
        F.lit("seen").alias("last"),
        F.col("born_ms").alias("last_ms"),
        F.lit(None).cast("string").alias("end"),
        F.lit(None).cast("bigint").alias("end_ms"),
        F.lit(None).cast("string").alias("reason"),
        "destination",
        F.lit(None).cast("bigint").alias("original"),
        F.lit(None).cast("string").alias("from_place"),
        F.lit(None).cast("bigint").alias("from_number"),
        F.lit(None).cast("string").alias("publication"),
        F.lit(None).cast("bigint").alias("expires_ms"),
        F.lit(None).cast("int").alias("copies"),
        F.lit(None).cast("string").alias("mark"),
    )

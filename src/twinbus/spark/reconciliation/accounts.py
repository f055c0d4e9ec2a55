"""One account for each id of an entity: how many messages were sent, and the status of each.

    copies, sends, receipts --entries--> --accounts_of--> --within--> --by_entity-->

Rule 1: with the client's audit log every acknowledged send is a message: an id that was sent twice
        is two messages. Without it an id is one message, and messages without an id count as often
        as they were stored, minus those that the syphon moved.
Rule 2: of the copies of an id the best ones are the messages (the order of MessageStatus); further
        copies are duplicates, and messages without a copy are missing.
Rule 3: a message that the entity itself dropped as a duplicate is not another message.
Rule 4: a copy that is older than the logs is evidence for a message that was sent, and counts for
        nothing else.
Rule 5: an id counts, with all of its messages, when one of them was sent in the time range.
        Messages without an id cannot be selected by time.
Rule 6: without an id a second copy cannot be distinguished from the message that is missing. As
        many as receipts report as possibly repeated, and as were not found in addition to all
        others, are unproven.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from twinbus.cost.reconciliation import AvailableSources, MessageStatus
from twinbus.spark.reconciliation.copies import DROPPED, LEFT_BACKLOG

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COUNTS", "Time", "accounts_of", "by_entity", "entries", "within"]


class Time(NamedTuple):
    """A time range; the end is exclusive."""

    from_ms: int | None = None
    to_ms: int | None = None


ALWAYS: Final = Time()
_KEY: Final = ("entity", "message_id")
# Best first; unproven is the last one.
PROVABLE: Final = tuple(status for status in MessageStatus if status is not MessageStatus.MISSING)
_COPIES: Final = {status: f"copies_{status.name.lower()}" for status in PROVABLE}
TOOK: Final = {status: f"took_{status.name.lower()}" for status in MessageStatus}
COUNTS: Final = (
    "sent",
    "arrivals",
    "fresh",
    "stored_in_backlog",
    "left_backlog",
    "receipts_moved",
    "may_repeat",
    "dropped",
    *_COPIES.values(),
)


def entries(
    copies: DataFrame, sent: DataFrame, receipts: DataFrame, given: AvailableSources
) -> DataFrame:
    """Everything that counts for an id, as numbers to be summed."""
    rows = [_of_copies(copies, given), _of_sent(sent, given), _of_receipts(receipts)]
    return reduce(lambda one, other: one.unionByName(other), rows)


def _entry(
    frame: DataFrame, entity: str, sent_ms: Column, born_ms: Column, **counts: Column
) -> DataFrame:
    none = F.lit(0).cast("bigint")
    columns = [counts.get(name, none).cast("bigint").alias(name) for name in COUNTS]
    return frame.select(
        F.col(entity).alias("entity"),
        "message_id",
        sent_ms.cast("bigint").alias("sent_ms"),
        born_ms.cast("bigint").alias("born_ms"),
        *columns,
    )


def _of_copies(copies: DataFrame, given: AvailableSources) -> DataFrame:
    status, is_primary = F.col("status"), F.col("side") == "primary"
    is_drop = status == DROPPED
    is_fresh = ~F.col("is_older") & ~is_drop
    shown = {name: status == each.value for each, name in _COPIES.items()}
    if not given.primary:
        # Only receipts show that the syphon has completed it, and not another receiver.
        is_signed = F.col("is_signed") if given.receipts else F.lit(True)
        shown[_COPIES[MessageStatus.UNPROVEN]] = (status == LEFT_BACKLOG) & is_signed
    return _entry(
        copies,
        "entity",
        F.lit(None),
        F.when(is_fresh, F.col("born_ms")),
        arrivals=is_primary & is_fresh & (status != MessageStatus.UNCLAIMED.value),
        fresh=is_fresh,
        stored_in_backlog=~is_primary,
        left_backlog=status == LEFT_BACKLOG,
        dropped=is_drop,
        **shown,
    )


def _of_sent(sent: DataFrame, given: AvailableSources) -> DataFrame:
    """Where there is no log, an acknowledged send is the only evidence of a message."""
    is_direct = F.col("via") == ""
    is_beyond = (is_direct & F.lit(not given.primary)) | (~is_direct & F.lit(not given.secondary))
    return _entry(
        sent,
        "entity",
        F.col("at_ms"),
        F.lit(None),
        sent=F.lit(1),
        **{_COPIES[MessageStatus.UNPROVEN]: is_beyond},
    )


def _of_receipts(receipts: DataFrame) -> DataFrame:
    return _entry(
        receipts,
        "entity",
        F.lit(None),
        F.lit(None),
        receipts_moved=F.col("outcome") == "moved",
        may_repeat=F.col("outcome").isin("ambiguous", "lock-lost"),
    )


def accounts_of(entries: DataFrame, given: AvailableSources, time: Time = ALWAYS) -> DataFrame:
    """One row for each id of an entity, and one for all messages without an id."""
    is_within = F.coalesce(F.max(_is_in("sent_ms", time)), _is_in(F.min("born_ms"), time))
    sums = entries.groupBy(*_KEY).agg(
        F.coalesce(is_within, F.lit(False)).alias("is_within"),
        *(F.sum(name).alias(name) for name in COUNTS),
    )
    if given.primary and not given.secondary:
        # By its receipt it left the backlog: the log of the primary must contain it.
        unproven = F.col(_COPIES[MessageStatus.UNPROVEN]) - F.col("left_backlog")
        sums = sums.withColumn(_COPIES[MessageStatus.UNPROVEN], F.greatest(F.lit(0), unproven))
    accounts = (
        sums.withColumn("shown", reduce(add, map(F.col, _COPIES.values())))
        .withColumn("messages", _messages(given))
        .withColumns({"found": F.least("messages", "shown"), "duplicates": _duplicates()})
        .withColumn("proven", F.col("found") - _ambiguous())
    )
    never_sent = F.lit(given.client) & (F.col("sent") == 0)
    nameless = F.greatest(F.lit(0), F.col("fresh") - F.col("left_backlog"))
    arrived = F.when(F.col("message_id").isNull(), nameless).otherwise(F.least(F.lit(1), "fresh"))
    return accounts.select(
        *_KEY,
        "is_within",
        "messages",
        *_taken(),
        F.when(never_sent, arrived).otherwise(0).alias("unexpected"),
        "duplicates",
        F.least("duplicates", _announced()).alias("explained"),
    )


def _duplicates() -> Column:
    doubled = F.greatest(F.lit(0), F.col("arrivals") - F.col("messages"))
    return F.when(F.col("messages") > 0, doubled).otherwise(0)


def _ambiguous() -> Column:
    """How many of those without an id may be second copies (rule 6)."""
    extra = F.greatest(F.lit(0), F.col("shown") - F.col("messages"))
    ambiguous = F.least("found", F.greatest(F.lit(0), F.col("may_repeat") - extra))
    return F.when(F.col("message_id").isNull(), ambiguous).otherwise(0)


def _taken() -> list[Column]:
    """Of each status as many as there are messages left, the best first (rule 2)."""
    taken, so_far, before = [], F.lit(0), F.lit(0)
    for status, copies in _COPIES.items():
        so_far = so_far + F.col(copies)
        upto = F.col("found") if status is MessageStatus.UNPROVEN else F.least("proven", so_far)
        taken.append((upto - before).alias(TOOK[status]))
        before = upto
    return [*taken, (F.col("messages") - F.col("found")).alias(TOOK[MessageStatus.MISSING])]


def _messages(given: AvailableSources) -> Column:
    """The number of messages of an account (rules 1 and 3)."""
    if given.client:
        short = F.greatest(F.lit(0), F.col("sent") - F.col("shown"))
        return F.col("sent") - F.least(short, F.col("dropped"))
    moved = F.col("receipts_moved") if given.receipts else F.col("left_backlog")
    stored = F.greatest(F.lit(0), F.col("fresh") - F.col("stored_in_backlog") - moved)
    nameless = stored + F.col("stored_in_backlog")
    return F.when(F.col("message_id").isNull(), nameless).otherwise(
        F.when(F.col("fresh") > 0, 1).otherwise(0)
    )


def _announced() -> Column:
    """Second copies that a log explains: an ambiguous move, or a send to both namespaces."""
    direct = F.greatest(F.lit(0), F.col("arrivals") - F.col("left_backlog"))
    on_both = F.when(F.col("stored_in_backlog") > 0, direct).otherwise(0)
    in_backlog_twice = F.greatest(F.lit(0), F.col("stored_in_backlog") - F.col("messages"))
    return F.col("may_repeat") + on_both + in_backlog_twice


def within(accounts: DataFrame) -> DataFrame:
    """The accounts of the time range (rule 5)."""
    return accounts.where(F.col("message_id").isNull() | F.col("is_within"))


def _is_in(at_ms: Column | str, time: Time) -> Column:
    at_ms = F.col(at_ms) if isinstance(at_ms, str) else at_ms
    # Null where there is no time.
    is_in = at_ms.isNotNull() | F.lit(None)
    if time.from_ms is not None:
        is_in &= at_ms >= time.from_ms
    return is_in if time.to_ms is None else is_in & (at_ms < time.to_ms)


def by_entity(accounts: DataFrame) -> DataFrame:
    """The table of the result: one row for each entity."""
    nameless = F.when(F.col("message_id").isNull(), F.col("messages")).otherwise(0)
    return (
        accounts.groupBy("entity")
        .agg(
            F.sum("messages").alias("sent"),
            *(F.sum(name).alias(name) for name in TOOK.values()),
            F.sum("duplicates").alias("duplicates"),
            F.sum("explained").alias("explained"),
            F.sum(F.col("duplicates") - F.col("explained")).alias("doubled"),
            F.sum("unexpected").alias("unexpected"),
            F.sum(nameless).alias("without_id"),
        )
        .where("sent > 0 or unexpected > 0")
    )

"""From stays to copies, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.spark.books.rows import BACKLOG, event, frame, place
from twinbus.spark.books.copies import (
    adopted,
    copies_in_receipts,
    copies_of,
    numbered,
    signed,
    unclaimed,
    with_entity,
    with_fate,
)
from twinbus.spark.books.places import PLACE_COLUMNS
from twinbus.spark.books.sources import EVENT_COLUMNS, RECEIPTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "/$deadletterqueue"
BIG, SMALL = "news/subscriptions/big", "news/subscriptions/small"


def test_every_copy_belongs_to_the_entity_it_was_sent_to(spark: SparkSession) -> None:
    """C3: copies of a topic are one message; what is forwarded or dead-lettered is followed."""
    places = [
        place("orders", 1, "completed", message_id="taken"),
        place("orders", 2, message_id="waits"),
        place("orders", 3, "expired", message_id="old"),
        place("orders", 4, "purged", message_id="swept"),
        place("orders", 5, "deleted", message_id="swept too"),
        place("orders", 6, "gone", message_id="lost"),
        # Scheduled, then due under another number.
        place("orders", 7, "due", message_id="later"),
        place("orders", 8, "completed", message_id="later"),
        # A dead letter that somebody has taken, and one that is not there any more.
        place("orders", 9, "dead-lettered", message_id="bad"),
        place("orders" + DEAD, 1, "completed", message_id="bad", original=9),
        place("orders", 10, "dead-lettered", message_id="worse"),
        place("orders" + DEAD, 2, "gone", message_id="worse", original=10),
        # Forwarded, and dead-lettered there; the same id was sent to the target as well.
        place("front", 1, "forwarded", message_id="x", reason="back"),
        place("back", 7, "dead-lettered", message_id="x", original=1),
        place("back" + DEAD, 1, message_id="x", original=1),
        place("back", 8, "completed", message_id="x"),
        # A dead letter that its queue forwards leaves the books there.
        place("sour", 1, "dead-lettered", message_id="y"),
        place("sour" + DEAD, 1, "forwarded", message_id="y", original=1),
        place("bin", 1, "completed", message_id="y", original=1),
        # A topic: taken from one subscription, waiting in the other; and a repeated publication.
        place(BIG, 1, "completed", message_id="n"),
        place(SMALL, 1, message_id="n"),
        place(BIG, 2, "completed", message_id="n", born_ms=1_500),
        place(SMALL, 2, "forwarded", message_id="n", reason="copies", born_ms=1_500),
        place("copies", 1, "completed", message_id="n", original=2),
        # A rule with an action made a second copy for one subscription: published once.
        place(BIG, 3, "completed", message_id="twin"),
        place(BIG, 4, "completed", message_id="twin"),
        place(BACKLOG, 1, "completed", message_id="home", destination="orders"),
        place(BACKLOG, 2, message_id="away", destination="orders"),
        # Whoever sweeps a backlog queue takes the messages of others.
        place(BACKLOG, 4, "purged", message_id="swept away", destination="orders"),
        place(BACKLOG, 5, "deleted", message_id="swept away too", destination="orders"),
        place(BACKLOG, 3, "dead-lettered", message_id="poison", destination="orders"),
        place(BACKLOG + DEAD, 1, message_id="poison", destination="orders", original=3),
    ]
    events = [
        event("news", "published", None, 1_000, message_id="n", copies=2),
        event("news", "published", None, 1_500, message_id="n", copies=2),
        event("news", "published", None, 1_000, message_id="twin", copies=2),
        event("news", "published", None, 1_000, message_id="nobody", copies=0),
    ]
    receipts = [
        {"queue": BACKLOG, "number": 1, "message_id": "home", "outcome": "moved", "at_ms": 5},
        {"queue": BACKLOG, "number": 2, "message_id": "away", "outcome": "parked", "at_ms": 5},
    ]
    told = frame(spark, EVENT_COLUMNS, events)

    copies = (
        frame(spark, PLACE_COLUMNS, places)
        .transform(with_entity)
        .transform(signed, frame(spark, RECEIPTS, receipts))
        .transform(numbered, told)
        .transform(adopted)
        .transform(with_fate)
        .transform(copies_of)
        .unionByName(unclaimed(told))
        .collect()
    )

    found = sorted((row["entity"], row["message_id"], row["fate"]) for row in copies)
    assert found == [
        ("back", "x", "delivered"),
        ("front", "x", "dead-lettered"),
        ("news", "n", "delivered"),
        ("news", "n", "waiting"),
        ("news", "nobody", "unclaimed"),
        ("news", "twin", "delivered"),
        ("orders", "away", "in-backlog"),
        ("orders", "bad", "dead-lettered"),
        ("orders", "home", "gone-home"),
        ("orders", "later", "delivered"),
        ("orders", "lost", "missing"),
        ("orders", "old", "expired"),
        ("orders", "poison", "dead-lettered"),
        ("orders", "swept", "purged"),
        ("orders", "swept away", "missing"),
        ("orders", "swept away too", "missing"),
        ("orders", "swept too", "purged"),
        ("orders", "taken", "delivered"),
        ("orders", "waits", "waiting"),
        ("orders", "worse", "missing"),
        ("sour", "y", "dead-lettered"),
    ]
    assert [row["message_id"] for row in copies if row["is_signed"]] == ["home"]
    assert not any(row["is_older"] for row in copies)


def test_receipts_alone_tell_of_the_backlog(spark: SparkSession) -> None:
    """C3: each source alone is usable; what was moved once is at home, or the last one counts."""

    def receipt(number: int, outcome: str, at_ms: int) -> dict[str, object]:
        return {
            "queue": BACKLOG,
            "number": number,
            "message_id": f"m{number}",
            "entity": "orders",
            "outcome": outcome,
            "at_ms": at_ms,
        }

    receipts = [
        receipt(1, "parked", 1),
        receipt(1, "moved", 2),
        receipt(2, "lock-lost", 1),
        receipt(3, "dead-lettered", 1),
        receipt(4, "parked", 1),
        receipt(5, "moved", 1),
        receipt(5, "left", 2),
    ]

    copies = copies_in_receipts(frame(spark, RECEIPTS, receipts)).collect()

    assert sorted((row["message_id"], row["fate"], row["is_signed"]) for row in copies) == [
        ("m1", "gone-home", True),
        ("m2", "in-backlog", True),
        ("m3", "dead-lettered", False),
        ("m4", "in-backlog", False),
        ("m5", "gone-home", True),
    ]

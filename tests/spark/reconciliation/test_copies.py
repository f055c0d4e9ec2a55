"""From stays to copies, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.reconciliation.rows import BACKLOG, event, frame, place
from twinbus.spark.reconciliation.copies import (
    adopted,
    copies_in_receipts,
    copies_of,
    named,
    signed,
    with_entity,
    with_status,
)
from twinbus.spark.reconciliation.log_tables import EVENT_COLUMNS, RECEIPTS
from twinbus.spark.reconciliation.message_locations import PLACE_COLUMNS, marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "/$deadletterqueue"
BIG, SMALL = "news/subscriptions/big", "news/subscriptions/small"


def moved(place: str, number: int, original: int | None = None) -> dict[str, Any]:
    """What the line of a message says that came from another place."""
    return {"from_place": place, "from_number": number, "original": original or number}


def published(message_id: str, number: int, **more: Any) -> dict[str, Any]:
    more |= {"message_id": message_id, "publication": f"r#{number}", "line": f"r#9{number}"}
    return event("news", "published", None, 1_000, **more)


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
        place("orders" + DEAD, 1, "completed", message_id="bad", **moved("orders", 9)),
        place("orders", 10, "dead-lettered", message_id="worse"),
        # As older logs have it: the first number only.
        place("orders" + DEAD, 2, "gone", message_id="worse", original=10),
        # Forwarded, and dead-lettered there; the same id was sent to the target as well.
        place("front", 1, "forwarded", message_id="x", reason="back"),
        place("back", 7, "dead-lettered", message_id="x", **moved("front", 1)),
        place("back" + DEAD, 1, message_id="x", **moved("back", 7, original=1)),
        place("back", 8, "completed", message_id="x"),
        # Two queues forward to one, messages without id, and with the same numbers; one goes on.
        place("front", 2, "forwarded"),
        place("side", 2, "forwarded"),
        place("back", 9, "completed", **moved("front", 2)),
        place("back", 10, "forwarded", **moved("side", 2)),
        place("far", 1, **moved("back", 10, original=2)),
        # What was forwarded from before the logs began is older than they are.
        place("back", 11, message_id="old hand", **moved("front", 900)),
        # A dead letter that its queue forwards leaves the books there.
        place("sour", 1, "dead-lettered", message_id="y"),
        place("sour" + DEAD, 1, "forwarded", message_id="y", **moved("sour", 1)),
        place("bin", 1, "completed", message_id="y", **moved("sour" + DEAD, 1, original=1)),
        # A topic with filters: each publication of an id has its own status. Taken from one
        # subscription and waiting in the other; in one, and forwarded from there.
        place(BIG, 1, "completed", message_id="n", publication="r#1"),
        place(SMALL, 1, message_id="n", publication="r#1"),
        place(SMALL, 2, "forwarded", message_id="n", reason="copies", publication="r#2"),
        place("copies", 1, "completed", message_id="n", **moved(SMALL, 2)),
        place(BIG, 2, "expired", message_id="n", publication="r#3"),
        # A rule with an action made a second copy for one subscription, with another id.
        place(BIG, 3, "completed", message_id="twin", publication="r#4"),
        place(BIG, 4, "completed", message_id="other", publication="r#4"),
        # One of two copies never came.
        place(BIG, 5, "completed", message_id="half", publication="r#5"),
        # Forwarded to a topic: to two subscriptions, and to nobody.
        place("front", 3, "forwarded", message_id="all"),
        place(BIG, 6, "completed", message_id="all", publication="r#7", **moved("front", 3)),
        place(SMALL, 6, message_id="all", publication="r#7", **moved("front", 3)),
        place("front", 4, "forwarded", message_id="none"),
        # Forwarded, and dropped as a duplicate there.
        place("front", 5, "forwarded", message_id="again"),
        # Older logs: an id is one message.
        place("notes/subscriptions/a", 1, "completed", message_id="m"),
        place("notes/subscriptions/b", 1, message_id="m"),
        place(BACKLOG, 1, "completed", message_id="home", destination="orders"),
        place(BACKLOG, 2, message_id="away", destination="orders"),
        # Whoever sweeps a backlog queue takes the messages of others.
        place(BACKLOG, 4, "purged", message_id="swept away", destination="orders"),
        place(BACKLOG, 5, "deleted", message_id="swept away too", destination="orders"),
        place(BACKLOG, 3, "dead-lettered", message_id="poison", destination="orders"),
        place(BACKLOG + DEAD, 1, message_id="poison", destination="orders", original=3),
    ]
    events = [
        published("n", 1, copies=2),
        published("n", 2, copies=1),
        published("n", 3, copies=1),
        published("twin", 4, copies=2),
        published("half", 5, copies=2),
        published("nobody", 6, copies=0),
        published("all", 7, copies=2, **moved("front", 3)),
        published("none", 8, copies=0, **moved("front", 4)),
        event("back", "duplicate", None, 1_000, message_id="again", **moved("front", 5)),
        event("orders", "duplicate", None, 1_000, message_id="waits"),
        event("orders", "duplicate", None, 1_000, message_id="waits"),
        event("notes", "published", None, 1_000, message_id="m", copies=2),
    ]
    receipts = [
        {"queue": BACKLOG, "number": 1, "message_id": "home", "outcome": "moved", "at_ms": 5},
        {"queue": BACKLOG, "number": 2, "message_id": "away", "outcome": "deferred", "at_ms": 5},
    ]
    told = frame(spark, EVENT_COLUMNS, events)

    copies = (
        frame(spark, PLACE_COLUMNS, places)
        .transform(marked, told)
        .transform(with_entity)
        .transform(signed, frame(spark, RECEIPTS, receipts))
        .transform(named)
        .transform(adopted)
        .transform(with_status)
        .transform(copies_of)
        .collect()
    )

    found = sorted((row["entity"], row["message_id"] or "", row["status"]) for row in copies)
    assert found == [
        ("back", "old hand", "waiting"),
        ("back", "x", "delivered"),
        ("front", "", "delivered"),
        ("front", "again", "dropped"),
        ("front", "all", "waiting"),
        ("front", "none", "unclaimed"),
        ("front", "x", "dead-lettered"),
        ("news", "half", "missing"),
        ("news", "n", "delivered"),
        ("news", "n", "expired"),
        ("news", "n", "waiting"),
        ("news", "nobody", "unclaimed"),
        ("news", "twin", "delivered"),
        ("notes", "m", "waiting"),
        ("orders", "away", "in-backlog"),
        ("orders", "bad", "dead-lettered"),
        ("orders", "home", "left-backlog"),
        ("orders", "later", "delivered"),
        ("orders", "lost", "missing"),
        ("orders", "old", "expired"),
        ("orders", "poison", "dead-lettered"),
        ("orders", "swept", "purged"),
        ("orders", "swept away", "missing"),
        ("orders", "swept away too", "missing"),
        ("orders", "swept too", "purged"),
        ("orders", "taken", "delivered"),
        ("orders", "waits", "dropped"),
        ("orders", "waits", "dropped"),
        ("orders", "waits", "waiting"),
        ("orders", "worse", "missing"),
        ("side", "", "waiting"),
        ("sour", "y", "dead-lettered"),
    ]
    assert [row["message_id"] for row in copies if row["is_signed"]] == ["home"]
    assert [row["message_id"] for row in copies if row["is_older"]] == ["old hand"]


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
        receipt(1, "deferred", 1),
        receipt(1, "moved", 2),
        receipt(2, "lock-lost", 1),
        receipt(3, "dead-lettered", 1),
        receipt(4, "deferred", 1),
        receipt(5, "moved", 1),
        receipt(5, "released", 2),
    ]

    copies = copies_in_receipts(frame(spark, RECEIPTS, receipts)).collect()

    assert sorted((row["message_id"], row["status"], row["is_signed"]) for row in copies) == [
        ("m1", "left-backlog", True),
        ("m2", "in-backlog", True),
        ("m3", "dead-lettered", False),
        ("m4", "in-backlog", False),
        ("m5", "left-backlog", True),
    ]

"""From events to stays of messages in places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.reconciliation.rows import BACKLOG, event, frame, place
from twinbus.spark.reconciliation.log_tables import EVENT_COLUMNS
from twinbus.spark.reconciliation.message_locations import (
    PLACE_COLUMNS,
    SCAN_COLUMNS,
    SCANNED_COLUMNS,
    compared_with_scan,
    ended_with_their_entity,
    places_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def shown(places: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in places.select(*columns).collect()), key=repr)


def test_a_stay_begins_when_it_is_stored_and_ends_once(spark: SparkSession) -> None:
    """C3: the books follow a message from place to place; numbers may be given out again."""
    events = [
        # Handed out, given back, handed out and completed.
        event("orders", "stored", 1, 10, message_id="a"),
        event("orders", "delivered", 1, 11, message_id="a"),
        event("orders", "abandoned", 1, 12),
        event("orders", "delivered", 1, 13, message_id="a"),
        event("orders", "completed", 1, 14),
        # Still there.
        event(BACKLOG, "stored", 1, 10, message_id="b", destination="orders"),
        # The line of its storing was lost in a kill; and one of which only the end is known.
        event("orders", "delivered", 2, 15, message_id="c"),
        event("orders", "completed", 3, 15),
        # Deleted and made anew: the number comes again. One more time, and nobody says why.
        event("bills", "stored", 1, 10, message_id="d"),
        event("bills", "deleted", None, 20),
        event("bills", "stored", 1, 30, message_id="e"),
        event("bills", "dead-lettered", 1, 31, reason="bad"),
        event("bills", "stored", 2, 32, message_id="f"),
        event("bills", "stored", 2, 40, message_id="g"),
    ]
    told = frame(spark, EVENT_COLUMNS, events)

    places = places_of(told).transform(ended_with_their_entity, told)

    assert shown(
        places, "place", "number", "generation", "message_id", "born_ms", "last", "end", "end_ms"
    ) == [
        ("bills", 1, 1, "d", 10, "stored", "deleted", 20),
        ("bills", 1, 2, "e", 30, "dead-lettered", "dead-lettered", 31),
        ("bills", 2, 1, "f", 32, "stored", "replaced", 40),
        ("bills", 2, 2, "g", 40, "stored", None, None),
        (BACKLOG, 1, 1, "b", 10, "stored", None, None),
        ("orders", 1, 1, "a", 10, "completed", "completed", 14),
        ("orders", 2, 0, "c", 15, "delivered", None, None),
    ]


def test_what_a_look_does_not_find_is_gone(spark: SparkSession) -> None:
    """C3: a message that the queues no longer hold although the logs say it waits is missing."""
    places = [
        place("orders", 1, message_id="a"),
        place("orders", 2, message_id="lost"),
        place("orders", 3, "completed", message_id="done"),
        place("orders", 4, message_id="later", last_ms=9_000),
        place("orders", 5, message_id="replaced"),
        place("orders", 6, message_id="00ff"),
        # Somebody holds it, although its time is over: its line comes when it is free.
        place("orders", 8, message_id="held", last="delivered", expires_ms=4_000),
        place("orders", 9, message_id="lost early", expires_ms=6_000),
        place("unasked", 1, message_id="b"),
    ]
    seen = {"side": "primary", "place": "orders", "generation": 0, "born_ms": 500}
    scan = [
        {**seen, "number": 1, "message_id": "a"},
        {**seen, "number": 5, "message_id": "another"},
        {**seen, "number": 6, "message_id": "AP8="},
        {**seen, "number": 7, "message_id": "older than the log"},
    ]
    scanned = [{"side": "primary", "place": "orders", "scanned_ms": 5_000}]

    compared = compared_with_scan(
        frame(spark, PLACE_COLUMNS, places),
        frame(spark, SCAN_COLUMNS, scan),
        frame(spark, SCANNED_COLUMNS, scanned),
    )

    assert shown(compared, "place", "number", "message_id", "end", "end_ms", "generation") == [
        ("orders", 1, "a", None, None, 1),
        ("orders", 2, "lost", "gone", 5_000, 1),
        ("orders", 3, "done", "completed", 2_000, 1),
        ("orders", 4, "later", None, None, 1),
        ("orders", 5, "replaced", "gone", 5_000, 1),
        ("orders", 6, "00ff", None, None, 1),
        ("orders", 7, "older than the log", None, None, 0),
        ("orders", 8, "held", "expired", 4_000, 1),
        ("orders", 9, "lost early", "gone", 5_000, 1),
        ("unasked", 1, "b", None, None, 1),
    ]

"""What is told of messages that do not add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.spark.reconciliation.rows import BACKLOG, event, frame, place
from twinbus.spark.reconciliation.copies import signed, with_entity
from twinbus.spark.reconciliation.differences import TRACES_MAX, traces, with_traces
from twinbus.spark.reconciliation.log_tables import EVENT_COLUMNS, RECEIPTS, SENT_COLUMNS
from twinbus.spark.reconciliation.message_locations import PLACE_COLUMNS, marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIFFERENCES = "entity string, message_id string, missing bigint, unexpected bigint, doubled bigint"


def missing(message_id: str | None, entity: str = "orders") -> dict[str, Any]:
    counts = {"missing": 1, "unexpected": 0, "doubled": 0}
    return {"entity": entity, "message_id": message_id, **counts}


def test_each_difference_has_its_own_last_traces(spark: SparkSession) -> None:
    """C3: a difference is listed with what the logs say, and also if they say nothing."""
    places = [
        place("orders", 1, "completed", message_id="closed"),
        place("orders", 2, message_id="many"),
        # Of what has no id only what nothing explains.
        place(BACKLOG, 1, "completed", destination="orders"),
        place(BACKLOG, 2, "purged", destination="orders"),
        place("orders", 3, "completed"),
        # The same id in another entity is another message.
        place("bills", 1, message_id="many"),
    ]
    took = {"publication": "r#1", "line": "r#2", "copies": 2}
    events = [
        event("news", "published", None, 1_000, message_id="half", **took),
        event("orders", "duplicate", None, 1_000, message_id="many", line="r#3"),
    ]
    sends = [
        {"entity": "orders", "message_id": "many", "via": "", "at_ms": 2_000 + at}
        for at in range(TRACES_MAX)
    ]
    moved = {"queue": BACKLOG, "number": 1, "entity": "orders", "outcome": "moved", "at_ms": 5}
    receipts = frame(spark, RECEIPTS, [moved])
    stays = (
        frame(spark, PLACE_COLUMNS, places)
        .transform(marked, frame(spark, EVENT_COLUMNS, events))
        .transform(with_entity)
        .transform(signed, receipts)
    )
    differing = [missing("many"), missing(None), missing("half", "news"), missing("silent")]

    found = with_traces(
        frame(spark, DIFFERENCES, differing),
        traces(stays, frame(spark, SENT_COLUMNS, sends), receipts),
    ).collect()

    told = {
        row["message_id"]: [(each["kind"], each["place"], each["number"]) for each in row["traces"]]
        for row in found
    }
    assert len(found) == len(differing)
    assert told == {
        "many": [("sent", "", None)] * TRACES_MAX,
        None: [("stay", BACKLOG, 2)],
        "half": [("published", "news", 2)],
        "silent": [],
    }

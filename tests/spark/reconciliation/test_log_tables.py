"""From files to tables: every line once, and those of the pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.reconciliation.rows import BACKLOG, frame
from twinbus.spark.reconciliation.log_tables import (
    audit_lines,
    census,
    events_of,
    receipt_lines,
    receipts_of,
    run_parts,
    sent_of,
    without_copies,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = (
    "given string, file string, is_damaged boolean, source string, run string, line bigint, "
    "namespace string, place string, event string, number bigint, message_id string, "
    "at_ms bigint, reason string, destination string, original bigint, from_place string, "
    "from_number bigint, publication bigint, copies int, expires_ms bigint, via string"
)
RECEIPT_LINES = (
    "queue string, sequence_number bigint, message_id string, destination string, "
    "outcome string, reason string, enqueued_ms bigint, settled_ms bigint"
)
OF_OTHERS = "other/x-servicebus-transfer/0"


def line(at: int | None, **more: Any) -> dict[str, Any]:
    """A line of the primary's broker."""
    usual = {"given": "primary", "file": "one", "is_damaged": False, "source": "broker",
             "run": "aa", "namespace": "home", "place": "orders", "event": "stored",
             "at_ms": 10, "via": ""}  # fmt: skip
    return {**usual, "line": at, **more}


ROWS = [
    line(1, event="opened", place=""),
    line(2, number=1, message_id="a"),
    line(3, number=2, message_id="b", publication=4),
    line(3, number=2, message_id="b", publication=4, file="copy"),
    line(5, event="closed", place="", file="copy"),
    # Older logs number nothing: the same again may be another one.
    line(None, run=None, number=9, message_id="old"),
    line(None, run=None, number=9, message_id="old"),
    line(4, is_damaged=True, number=3),
    line(1, run="bb", namespace="spare", place=BACKLOG, number=7, message_id="c"),
    # Of other pairs: a backlog that the primary holds, and another entity of the secondary.
    line(6, file="copy", place=OF_OTHERS, number=1),
    line(2, run="bb", namespace="spare", place="orders", number=8),
    line(1, run="cc", source="client", event="sent", message_id="a"),
    line(2, run="cc", source="client", event="sent", message_id="c", via=BACKLOG),
    line(3, run="cc", source="client", event="sent", message_id="z", namespace="other"),
]


def test_every_line_counts_once_and_for_its_pair(spark: SparkSession) -> None:
    """C3: copies of logs, damaged lines and lines of other pairs do no harm."""
    lines = frame(spark, LINES, ROWS)

    once = without_copies(lines)

    parts = {tuple(row)[:4]: tuple(row)[4:] for row in run_parts(lines).collect()}
    assert parts == {
        ("broker", "home", "aa", "one"): (1, 3, 3, False),
        ("broker", "home", "aa", "copy"): (3, 6, 3, True),
        ("broker", "spare", "bb", "one"): (1, 2, 2, False),
        ("client", "home", "cc", "one"): (1, 2, 2, False),
        ("client", "other", "cc", "one"): (3, 3, 1, False),
    }
    counted = {
        (row["source"], row["namespace"], row["event"], row["is_damaged"]): row["lines"]
        for row in census(once).collect()
        if row["place"] == "orders"
    }
    assert counted == {
        ("broker", "home", "stored", False): 4,
        ("broker", "home", "stored", True): 1,
        ("broker", "spare", "stored", False): 1,
        ("client", "home", "sent", False): 2,
        ("client", "other", "sent", False): 1,
    }
    events = events_of(once, "home").select("side", "number", "publication", "line").collect()
    assert sorted(map(tuple, events), key=repr) == [
        ("backlog", 7, None, "bb#1"),
        ("primary", 1, None, "aa#2"),
        ("primary", 2, "aa#4", "aa#3"),
        ("primary", 9, None, None),
        ("primary", 9, None, None),
    ]
    sent = sent_of(once, "home").collect()
    assert sorted((row["entity"], row["message_id"], row["via"]) for row in sent) == [
        ("orders", "a", ""),
        ("orders", "c", BACKLOG),
    ]


def test_lines_are_read_as_brokers_write_them(spark: SparkSession, tmp_path: Path) -> None:
    """C3: names in small letters, times in milliseconds, what cannot be read is told from what can;
    a file that is below two directories is read once."""
    whole = {"version": 1, "run": "aa", "number": 1, "at": "2026-11-16T12:00:00.250Z",
             "namespace": "Home", "entity": "Orders", "event": "stored", "sequence_number": 5,
             "message_id": "A", "expires": "2026-11-16T12:00:01.000Z"}  # fmt: skip
    texts = [json.dumps(whole), json.dumps(whole | {"at": "soon"}), '{"run":"aa","nu']
    (tmp_path / "logs" / "home").mkdir(parents=True)
    (tmp_path / "logs" / "home" / "audit-2026-11-16.jsonl").write_text("\n".join(texts))

    found = audit_lines(spark, {"primary": tmp_path / "logs", "client": tmp_path}).collect()

    [good] = [row for row in found if not row["is_damaged"]]
    assert len(found) == 3
    told = {name: good[name] for name in ("given", "source", "namespace", "place", "message_id")}
    assert told == {
        "given": "primary,client", "source": "broker", "namespace": "home", "place": "orders",
        "message_id": "A",
    }  # fmt: skip
    assert (good["number"], good["line"], good["via"]) == (5, 1, "")
    assert (good["at_ms"], good["expires_ms"] - good["at_ms"]) == (1_794_830_400_250, 750)


def test_a_dry_run_has_moved_nothing(spark: SparkSession) -> None:
    """C3: receipts are those of the pair's backlog, and of moves that were made."""
    usual = {"queue": BACKLOG.upper(), "message_id": "a", "destination": "Orders",
             "outcome": "moved", "settled_ms": 9, "enqueued_ms": 3}  # fmt: skip
    changes: list[dict[str, Any]] = [{}, {"outcome": "would-move"}, {"queue": OF_OTHERS}]
    rows = [
        {**usual, "sequence_number": at, **change} for at, change in enumerate(changes, start=1)
    ]

    [found] = receipts_of(frame(spark, RECEIPT_LINES, rows), "home").collect()

    assert (found["queue"], found["number"], found["entity"]) == (BACKLOG, 1, "orders")
    assert (found["at_ms"], found["enqueued_ms"]) == (9, 3)


def test_receipts_of_an_earlier_version_have_the_outcomes_of_today(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = ["moved", "parked", "unsure", "left", "lock-lost"]
    line = {"queue": BACKLOG, "message_id": "a", "destination": "orders", "settled_ms": 9}
    lines = [
        json.dumps({**line, "sequence_number": at, "outcome": word})
        for at, word in enumerate(words)
    ]
    path = tmp_path / "receipts.jsonl"
    path.write_text("\n".join(lines) + "\n")

    found = receipts_of(receipt_lines(spark, path), "home").orderBy("number").collect()

    now = ["moved", "deferred", "ambiguous", "released", "lock-lost"]
    assert [row["outcome"] for row in found] == now

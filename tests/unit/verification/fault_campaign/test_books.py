"""What was in a queue when it was deleted: stored, and not settled since."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verification.fault_campaign.books import Books


class Log:
    """An audit log that grows."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "primary" / "audit-2030-01-01.jsonl"
        self._path.parent.mkdir()

    def write(self, entity: str, event: str, number: int, message_id: str = "") -> None:
        line: dict[str, Any] = {"entity": entity, "event": event, "sequence_number": number}
        line["at"] = "2030-01-01T00:00:00.500Z"
        if message_id:
            line["message_id"] = message_id
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_what_was_stored_and_not_settled_went_with_the_queue(tmp_path: Path) -> None:
    log, books = Log(tmp_path), Books(tmp_path)
    for number in range(4):
        log.write("returns", "stored", number, f"s-{number}")
    log.write("returns", "delivered", 0, "s-0")
    log.write("returns", "completed", 1)
    log.write("returns", "dead-lettered", 2)
    log.write("returns/$DeadLetterQueue", "stored", 9, "s-2")
    log.write("orders", "stored", 0, "s-9")
    assert sorted(books.removed_with("returns")) == ["s-0", "s-2", "s-3"]


def test_a_queue_that_is_made_again_begins_a_new_book(tmp_path: Path) -> None:
    log, books = Log(tmp_path), Books(tmp_path)
    log.write("returns", "stored", 1, "s-1")
    assert books.removed_with("returns") == ["s-1"]
    log.write("returns", "stored", 1, "s-2")
    log.write("returns", "stored", 2, "s-3")
    log.write("returns", "completed", 2)
    assert books.removed_with("returns") == ["s-2"]


def test_who_tells_of_a_copy_by_its_number_alone_is_understood(tmp_path: Path) -> None:
    log, books = Log(tmp_path), Books(tmp_path)
    log.write("quotes", "stored", 1, "s-1")
    log.write("quotes", "expired", 1)
    log.write("quotes", "stored", 2, "s-2")
    at_s = datetime(2030, 1, 1, tzinfo=UTC).timestamp() + 0.5
    assert list(books.told("expired")) == [(at_s, "quotes", 1, "s-1")]
    assert [value for *_, value in books.told("stored")] == ["s-1", "s-2"]


def test_numbers_that_begin_again_keep_their_names_apart(tmp_path: Path) -> None:
    log, books = Log(tmp_path), Books(tmp_path)
    log.write("returns", "stored", 1, "s-1")
    log.write("returns", "stored", 1, "s-2")
    assert [value for *_, value in books.told("stored")] == ["s-1", "s-2"]

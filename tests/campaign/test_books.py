"""What was in a queue when it was deleted: stored, and not settled since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from campaign.books import Books


class Log:
    """An audit log that grows."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "primary" / "audit-2030-01-01.jsonl"
        self._path.parent.mkdir()

    def write(self, entity: str, event: str, number: int, message_id: str = "") -> None:
        line: dict[str, Any] = {"entity": entity, "event": event, "sequence_number": number}
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

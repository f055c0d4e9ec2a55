"""M15: a repair holds the rows of a page in memory, and not those of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.broker.storage.repair.test_damaged_data import leaf_pages
from twinbus.broker.storage import schema
from twinbus.broker.storage.repair.page_file import PageFile
from twinbus.broker.storage.repair.salvage import Salvage
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import chunk, counters, entity

PAGE = schema.PAGE_BYTES
BODY = 1_000
CHUNKS = 1_500
# What is certain comes in batches of so many rows.
BATCH = 512


class Sink:
    """Counts the rows that come at once."""

    def __init__(self) -> None:
        self.largest = 0
        self.found: set[int] = set()

    def put(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if table == "chunk":
            self.largest = max(self.largest, len(rows))
            self.found |= {row[0] for row in rows}


def test_rows_of_damaged_pages_are_handed_on_page_by_page(tmp_path: Path) -> None:
    """M15: every page of a table is damaged a little, and each of its other rows is found."""
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    store.open()
    rows = [chunk(seq, 1, blob=b"%06d" % seq + bytes(BODY)) for seq in range(1, CHUNKS + 1)]
    store.commit([entity(), *rows, counters(CHUNKS + 1, CHUNKS)])
    store.close()
    content = bytearray(path.read_bytes())
    pages = leaf_pages(path, "chunk")
    for number in pages:
        # The last cell of a page begins where its content does.
        start = (number - 1) * PAGE
        content[start + int.from_bytes(content[start + 5 : start + 7], "big") + 100] ^= 1
    path.write_bytes(content)
    sink = Sink()
    with PageFile(path) as file:
        Salvage(file, sink).run()
    assert len(pages) > 50
    assert len(sink.found) == CHUNKS - len(pages)
    assert sink.largest <= BATCH

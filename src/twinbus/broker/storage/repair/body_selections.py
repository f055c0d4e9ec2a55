"""What a chunk selected from a sheet, when the row that says so is lost.

A chunk without bytes has a checksum over its numbers, the id of its sheet and its selection. A
CRC-32 is linear: of all selections of up to 32 bits, one at most has a given checksum, and it can
be computed. Of longer ones only those can be checked that somebody proposes.

Rule 1: what is found has the right checksum and as many messages as the chunk.
Rule 2: sheets are tried in the order of their ids, between those of the chunk's neighbours in its
        queue: both grow with the commits. All tries together are bounded.
Rule 3: where nothing is found, the sheets that it may have been are named, if they are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple
from zlib import crc32

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX
from twinbus.broker.storage.repair.new_store_file import Draft
from twinbus.broker.storage.shared_bodies import reference

SOLVED_BYTES_MAX: Final = 4
# Up to here a computed selection is nobody's by chance, as good as never.
_CERTAIN_MESSAGES_MAX: Final = 16
# So many sheets behind the first that fits are looked at for another one.
_SHEETS_AFTER_MAX: Final = 1_000
_TRIES_MAX: Final = 2_000_000
DOUBTFUL_SHEETS_MAX: Final = 4
_FIRST_ROWS: Final = 16
_ROWS_MAX: Final = 4_096
_LAST_ID: Final = (1 << 63) - 1
_HEAD_BYTES: Final = 32


class SharedChunk(NamedTuple):
    """A chunk without bytes."""

    row_id: int
    messages: int
    enqueued_ms: int
    crc: int


class SharedBodyFound(NamedTuple):
    """What a chunk may have selected."""

    sheet_id: int
    sheet_count: int
    selection: bytes


class Search(NamedTuple):
    """What came of looking for a chunk's sheet."""

    found: list[SharedBodyFound]
    """Those that the checksum is right for; more than one only by chance."""
    doubtful: list[SharedBodyFound]
    """Whole sheets of which the chunk may be a part; none when they are too many."""


def solve(chunk: SharedChunk, sheet_id: int, sheet_count: int) -> bytes | None:
    """The one selection from a small sheet that has the chunk's checksum, if there is one."""
    size = (sheet_count + 7) // 8
    without = reference(chunk.row_id, chunk.messages, chunk.enqueued_ms, sheet_id, bytes(size))
    rest, mask = row_checksum.of_bytes(without) ^ chunk.crc, 0
    for vector, bits in _basis(size):
        if rest ^ vector < rest:
            rest ^= vector
            mask ^= bits
    if rest or mask >> sheet_count or mask.bit_count() != chunk.messages:
        return None
    return mask.to_bytes(size, "little")


@cache
def _basis(size: int) -> list[tuple[int, int]]:
    """What each bit of a selection does to a checksum, solved: the highest bits first."""
    nothing = crc32(bytes(_HEAD_BYTES + size))
    rows: list[tuple[int, int]] = []
    for bit in range(8 * size):
        vector = crc32(bytes(_HEAD_BYTES) + (1 << bit).to_bytes(size, "little")) ^ nothing
        bits = 1 << bit
        for known, known_bits in rows:
            if vector ^ known < vector:
                vector ^= known
                bits ^= known_bits
        rows.append((vector, bits))
        rows.sort(reverse=True)
    return rows


class SharedBodySearch:
    """Looks for the sheets of chunks that lost their selection."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tries_left = _TRIES_MAX
        self._selections: dict[int, list[bytes]] | None = None

    def look(self, chunk: SharedChunk) -> Search:
        """Which sheet the chunk selected what from."""
        first, last = self._between(chunk.row_id)
        result = Search([], [])
        sheets_after = 0
        for sheet_id, sheet_count in self._sheets(first, last, chunk.messages):
            sheets_after += bool(result.found)
            if self._tries_left <= 0 or sheets_after > _SHEETS_AFTER_MAX:
                break
            selection = self._selection(chunk, sheet_id, sheet_count)
            if selection is not None:
                result.found.append(SharedBodyFound(sheet_id, sheet_count, selection))
                if not _CERTAIN_MESSAGES_MAX < sheet_count <= 8 * SOLVED_BYTES_MAX:
                    return Search(result.found[-1:], [])
            elif sheet_count > max(8 * SOLVED_BYTES_MAX, chunk.messages):
                result.doubtful.append(SharedBodyFound(sheet_id, sheet_count, b""))
        if result.found:
            return Search(result.found, [])
        # Chunks of one queue share a sheet with each other only where there are sessions.
        own = [each for each in result.doubtful if each.sheet_id not in (first, last)]
        doubtful = own or result.doubtful
        return Search([], doubtful if len(doubtful) <= DOUBTFUL_SHEETS_MAX else [])

    def _between(self, row_id: int) -> tuple[int, int]:
        """The sheets of the neighbours in the queue that have one."""
        queue = row_id >> SEQ_BITS << SEQ_BITS
        sql = "SELECT sheet_id FROM share WHERE id BETWEEN ? AND ? ORDER BY id {} LIMIT 1"
        first = self._draft.number(sql.format("DESC"), (queue, row_id - 1))
        last = self._draft.number(sql.format("ASC"), (row_id + 1, queue | SEQ_MAX)) or _LAST_ID
        return (first, last) if first <= last else (0, _LAST_ID)

    def _sheets(self, first: int, last: int, count: int) -> Iterator[tuple[int, int]]:
        sql = (
            "SELECT id, count FROM sheet WHERE id BETWEEN ? AND ? AND count >= ?"
            " ORDER BY id LIMIT ?"
        )
        limit = _FIRST_ROWS
        while rows := self._draft.execute(sql, (first, last, count, limit)):
            yield from rows
            first, limit = rows[-1][0] + 1, min(4 * limit, _ROWS_MAX)

    def _selection(self, chunk: SharedChunk, sheet_id: int, sheet_count: int) -> bytes | None:
        self._tries_left -= 1
        if sheet_count == chunk.messages:
            return b"" if _fits(chunk, sheet_id, b"") else None
        if sheet_count <= 8 * SOLVED_BYTES_MAX:
            return solve(chunk, sheet_id, sheet_count)
        for selection in self._proposed(sheet_id, sheet_count):
            self._tries_left -= 1
            mask = int.from_bytes(selection, "little")
            if mask.bit_count() == chunk.messages and _fits(chunk, sheet_id, selection):
                return selection
        return None

    def _proposed(self, sheet_id: int, sheet_count: int) -> Iterable[bytes]:
        """What others selected from the sheet, and what they left."""
        if self._selections is None:
            sql = "SELECT DISTINCT sheet_id, selection FROM share WHERE length(selection) > ?"
            self._selections = defaultdict(list)
            for each_id, selection in self._draft.execute(sql, (SOLVED_BYTES_MAX,)):
                self._selections[each_id].append(selection)
        everything = (1 << sheet_count) - 1
        size = (sheet_count + 7) // 8
        for selection in self._selections.get(sheet_id, ()):
            yield selection
            mask = int.from_bytes(selection, "little")
            if mask <= everything:
                yield (everything ^ mask).to_bytes(size, "little")


def _fits(chunk: SharedChunk, sheet_id: int, selection: bytes) -> bool:
    content = reference(chunk.row_id, chunk.messages, chunk.enqueued_ms, sheet_id, selection)
    return row_checksum.of_bytes(content) == chunk.crc

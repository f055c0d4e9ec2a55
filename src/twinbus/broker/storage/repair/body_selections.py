"""Finds what a chunk selected from a shared body when the row of the selection is lost.

A chunk without bytes has a checksum over its numbers, the id of its shared body and its selection.
A CRC-32 is linear: of all selections of up to 32 bits, at most one has a given checksum, and it can
be computed. Longer selections can only be checked, so other chunks' selections are tried.

Rule 1: a selection that is found has the right checksum and as many messages as the chunk.
Rule 2: shared bodies are tried in the order of their ids, between those of the adjacent chunks in
        the queue: both grow with the commits. The total number of attempts is bounded.
Rule 3: if no selection is found, the candidate shared bodies are returned, if they are few.
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
from twinbus.broker.storage.shared_bodies import encode_reference

SOLVED_BYTES_MAX: Final = 4
# Up to here it is practically impossible that a computed selection matches by chance.
_CERTAIN_MESSAGES_MAX: Final = 16
# After the first match, this many more shared bodies are searched for another one.
_BODIES_AFTER_MATCH_MAX: Final = 1_000
_ATTEMPTS_MAX: Final = 2_000_000
CANDIDATES_MAX: Final = 4
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
    """A selection that a chunk may have had."""

    sheet_id: int
    sheet_count: int
    selection: bytes


class Search(NamedTuple):
    """The result of the search for a chunk's shared body."""

    found: list[SharedBodyFound]
    """Those with the right checksum; more than one only by chance."""
    candidates: list[SharedBodyFound]
    """Whole shared bodies from which the chunk may select; empty when they are too many."""


def solve(chunk: SharedChunk, sheet_id: int, sheet_count: int) -> bytes | None:
    """The one selection from a small shared body that has the chunk's checksum, if there is one."""
    size = (sheet_count + 7) // 8
    without = encode_reference(
        chunk.row_id, chunk.messages, chunk.enqueued_ms, sheet_id, bytes(size)
    )
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
    """The effect of each bit of a selection on the checksum, solved: the highest bits first."""
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
    """Searches the shared bodies of chunks that lost their selection."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._attempts_left = _ATTEMPTS_MAX
        self._selections: dict[int, list[bytes]] | None = None

    def find(self, chunk: SharedChunk) -> Search:
        """The shared body and the selection of a chunk."""
        first, last = self._between(chunk.row_id)
        result = Search([], [])
        sheets_after = 0
        for sheet_id, sheet_count in self._sheets(first, last, chunk.messages):
            sheets_after += bool(result.found)
            if self._attempts_left <= 0 or sheets_after > _BODIES_AFTER_MATCH_MAX:
                break
            selection = self._selection(chunk, sheet_id, sheet_count)
            if selection is not None:
                result.found.append(SharedBodyFound(sheet_id, sheet_count, selection))
                if not _CERTAIN_MESSAGES_MAX < sheet_count <= 8 * SOLVED_BYTES_MAX:
                    return Search(result.found[-1:], [])
            elif sheet_count > max(8 * SOLVED_BYTES_MAX, chunk.messages):
                result.candidates.append(SharedBodyFound(sheet_id, sheet_count, b""))
        if result.found:
            return Search(result.found, [])
        # Chunks of one queue use the same shared body only if the queue has sessions.
        own = [each for each in result.candidates if each.sheet_id not in (first, last)]
        candidates = own or result.candidates
        return Search([], candidates if len(candidates) <= CANDIDATES_MAX else [])

    def _between(self, row_id: int) -> tuple[int, int]:
        """The shared bodies of the nearest chunks in the queue that have one."""
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
        self._attempts_left -= 1
        if sheet_count == chunk.messages:
            return b"" if _matches(chunk, sheet_id, b"") else None
        if sheet_count <= 8 * SOLVED_BYTES_MAX:
            return solve(chunk, sheet_id, sheet_count)
        for selection in self._selections_to_try(sheet_id, sheet_count):
            self._attempts_left -= 1
            mask = int.from_bytes(selection, "little")
            if mask.bit_count() == chunk.messages and _matches(chunk, sheet_id, selection):
                return selection
        return None

    def _selections_to_try(self, sheet_id: int, sheet_count: int) -> Iterable[bytes]:
        """What other chunks selected from the shared body, and the rest of it."""
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


def _matches(chunk: SharedChunk, sheet_id: int, selection: bytes) -> bool:
    content = encode_reference(chunk.row_id, chunk.messages, chunk.enqueued_ms, sheet_id, selection)
    return row_checksum.of_bytes(content) == chunk.crc

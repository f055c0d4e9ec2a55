"""SQLite's file format read without SQLite: pages, the log, table trees and their rows.

SQLite stops at the first damaged page of a table. The pages after it are intact, and are read here.

    store.db      pages, numbered from 1; page 1 begins with a header of 100 bytes
    store.db-wal  frames, each a newer version of one page; a commit ends with a marked frame
    tree          interior pages refer to leaf pages, which contain rows in the order of their ids
    pointer map   for each page its kind and the page that refers to it (auto_vacuum is on)

Rule 1: files are opened for reading only, and no file is created beside them.
Rule 2: no content raises: what cannot be read is recorded in ``flaws`` and left out.
Rule 3: from the log this reads what SQLite would, the committed frames up to the first wrong
        checksum. A lenient reader continues after a damaged frame, and uses no frame of an earlier
        log: SQLite restarts a log in place, so old frames follow new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from struct import Struct, iter_unpack
from types import TracebackType
from typing import Any, Final, NamedTuple

MAGIC: Final = b"SQLite format 3\x00"
HEADER_BYTES: Final = 100
INTERIOR: Final = 0x05
LEAF: Final = 0x0D
_INDEX_PAGES: Final = (0x02, 0x0A)
_PAGE_SIZES: Final = (16384, 4096, 8192, 32768, 65536, 2048, 1024, 512)

_LOG_HEADER: Final = Struct(">8I")
_FRAME: Final = Struct(">6I")
_LOG_MAGICS: Final = {0x377F0682: "<II", 0x377F0683: ">II"}
_MASK: Final = 0xFFFFFFFF

# The kinds of pages in the pointer map.
MAP_ROOT, MAP_FREE, MAP_OVERFLOW_FIRST, MAP_OVERFLOW, MAP_TREE = 1, 2, 3, 4, 5

# No tree of ours is deeper, unless a page refers to itself.
_DEPTH_MAX: Final = 24
_INTEGER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)


class Row(NamedTuple):
    """One row of a table: its id and the values of its columns."""

    row_id: int
    values: list[Any]


class Flaw(NamedTuple):
    """A place that could not be read, between the rows before and after it."""

    page: int
    reason: str
    after_id: int | None
    """The row before it; None when the place is not known."""
    row_id: int | None = None
    """The id of the row itself, if that could be read."""
    messages: int | None = None
    """The number of messages according to the row."""
    is_loss: bool = True
    """Whether rows may be missing; otherwise they were found in another place."""


class LogFrame(NamedTuple):
    offset: int
    is_sound: bool
    older_offset: int | None
    """The version before an unsound one, if the log has it."""


class _Places:
    """A file of which some places may be unreadable; their content counts as lost."""

    def __init__(self) -> None:
        self.unreadable: set[int] = set()
        """Where reading failed."""

    def read(self, file: int | None, count: int, offset: int) -> bytes:
        """Read bytes; empty where there are none or where the disk cannot read."""
        if file is None:
            return b""
        try:
            return os.pread(file, count, offset)
        except OSError:
            self.unreadable.add(offset)
            return b""


class Log:
    """The log of a database: the newest committed version of each page in it."""

    def __init__(self, path: Path, *, is_lenient: bool = False, page_bytes: int = 0) -> None:
        """``page_bytes`` is the page size of the database, if the log's own header is damaged."""
        self.page_bytes = 0
        self.page_count = 0
        """The number of pages after the last commit; 0 when the log contains none."""
        self.commit_count = 0
        self.frames: dict[int, LogFrame] = {}
        self.unsound: list[int] = []
        """The pages whose newest version is damaged; only a lenient reader has any."""
        self.ambiguous: set[int] = set()
        """Those of them whose newest version may belong to another page."""
        self.file: int | None = None
        self.places = _Places()
        self._database = path.with_name(path.name.removesuffix("-wal"))
        has_database = self._database.exists()
        self._database_bytes = self._database.stat().st_size if has_database else 0
        try:
            self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._read(is_lenient, page_bytes)

    def _read(self, is_lenient: bool, page_bytes_expected: int) -> None:
        assert self.file is not None
        file_bytes = os.fstat(self.file).st_size
        head = self.places.read(self.file, 32, 0)
        if file_bytes < 32:
            return
        head = head.ljust(32, b"\x00")
        log_head = _read_head(head)
        if log_head is None:
            if not is_lenient or page_bytes_expected not in _PAGE_SIZES:
                return
            log_head = self._reconstruct_head(head, page_bytes_expected)
        order, page_bytes, salts, sums = log_head
        pages_max = (file_bytes + self._database_bytes) // page_bytes
        self.page_bytes = page_bytes
        pending: dict[int, LogFrame] = {}
        limit = pages_max if is_lenient else 0
        for offset in range(32, file_bytes - 23 - page_bytes, 24 + page_bytes):
            frame = self.places.read(self.file, 24 + page_bytes, offset)
            if len(frame) < 24 + page_bytes:
                if not is_lenient:
                    return
                continue
            read = _read_frame(order, frame, sums, salts, limit)
            if read.is_sound or (is_lenient and read.number > 0):
                number = read.number
                if read.stored_number:
                    number = self._more_similar(frame[24:], (number, read.stored_number), pending)
                    self.ambiguous.add(number)
                if read.is_sound:
                    self.ambiguous.discard(number)
                known = pending.get(number) or self.frames.get(number)
                older = None if known is None or read.is_sound else known.offset
                pending[number] = LogFrame(offset + 24, read.is_sound, older)
                if read.page_count:
                    self.frames.update(pending)
                    pending.clear()
                    self.commit_count += 1
                    # If the size is damaged, the larger one is used: pages after it are lost.
                    before = self.page_count or self._database_bytes // page_bytes
                    size_min = 0 if read.is_sound else before
                    self.page_count = max(read.page_count, size_min)
            elif not is_lenient:
                return
            sums = read.sums

    def _more_similar(
        self, page: bytes, numbers: tuple[int, int], pending: dict[int, LogFrame]
    ) -> int:
        """Which of two pages this is a newer version of: the one whose number differs by one bit
        from the number in the frame, or the one with that number.

        Most bytes of a page stay the same. A page has a thousand times the bits of its number,
        so the number counts as damaged only if the other page is far more similar.
        """
        corrected, stored = (self._similarity(page, number, pending) for number in numbers)
        return numbers[0] if corrected > 0.25 and corrected > 2 * stored else numbers[1]

    def _similarity(self, page: bytes, number: int, pending: dict[int, LogFrame]) -> float:
        """The share of a page's bytes that are the same in its previous version. Zeros do not
        count: any two pages have many of them in the same place."""
        known = pending.get(number) or self.frames.get(number)
        older = self._stored(number, len(page))
        if known is not None:
            older = self.places.read(self.file, len(page), known.offset)
        equal = sum(byte == other != 0 for byte, other in zip(page, older, strict=False))
        return equal / max(1, len(page) - page.count(0))

    def _stored(self, number: int, page_bytes: int) -> bytes:
        """A page of the database itself."""
        try:
            with self._database.open("rb") as file:
                return os.pread(file.fileno(), page_bytes, (number - 1) * page_bytes)
        except OSError:
            return b""

    def _reconstruct_head(self, head: bytes, page_bytes: int) -> _LogHead:
        """The log's own header before it was damaged, as far as it can be reconstructed."""
        salts = self._salts_of_frames(head, page_bytes)
        # Several bits may have the same effect on the checksum: the salts of the frames decide.
        likely = [fixed for flipped in _flips_of(head) if (fixed := _read_head(flipped))]
        if likely:
            return min(likely, key=lambda fixed: _bits_apart(fixed.salts, salts))
        magic, *_, sum_1, sum_2 = _LOG_HEADER.unpack(head)
        # Nearly all machines are little-endian.
        order = _LOG_MAGICS.get(magic, "<II")
        return _LogHead(order, page_bytes, salts, [(sum_1, sum_2)])

    def _salts_of_frames(self, head: bytes, page_bytes: int) -> tuple[int, int]:
        """The salts on which two of the header and the first two frames agree; otherwise those of
        the first frame. The second one may be of an earlier log, with salts of its own.
        """
        found = [head[16:24]]
        for at in (0, 1):
            frame = self.places.read(self.file, 24, 32 + at * (24 + page_bytes))
            found += [frame[8:16]] if len(frame) == 24 else []
        agreed = next((each for each in found if found.count(each) > 1), found[:2][-1])
        return int.from_bytes(agreed[:4], "big"), int.from_bytes(agreed[4:], "big")

    def finish(self) -> None:
        self.unsound = [number for number, frame in self.frames.items() if not frame.is_sound]

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


class _LogHead(NamedTuple):
    order: str
    """The byte order of the words of a checksum."""
    page_bytes: int
    salts: tuple[int, int]
    """Every frame of the current log has them; frames of earlier logs have others."""
    sums: list[tuple[int, int]]
    """The possible checksums from which that of the first frame continues."""


def _read_head(head: bytes) -> _LogHead | None:
    """The header of a log, if its checksum is right."""
    magic, _version, page_bytes, _sequence, *salts, sum_1, sum_2 = _LOG_HEADER.unpack(head)
    order = _LOG_MAGICS.get(magic)
    if order is None or page_bytes not in _PAGE_SIZES:
        return None
    if _checksum(order, head[:24], 0, 0) != (sum_1, sum_2):
        return None
    return _LogHead(order, page_bytes, (salts[0], salts[1]), [(sum_1, sum_2)])


def _flips_of(data: bytes) -> Iterator[bytes]:
    """The data with each single bit flipped."""
    value = int.from_bytes(data, "big")
    for bit in range(8 * len(data)):
        yield (value ^ 1 << bit).to_bytes(len(data), "big")


def _bits_apart(salts: tuple[int, int], others: tuple[int, int]) -> int:
    return (salts[0] ^ others[0]).bit_count() + (salts[1] ^ others[1]).bit_count()


class _ReadFrame(NamedTuple):
    number: int
    """0 when the frame belongs to no page."""
    page_count: int
    """Of the database, when a commit ends here."""
    is_sound: bool
    sums: list[tuple[int, int]]
    """The possible checksums from which that of the next frame continues."""
    stored_number: int = 0
    """The number in the frame, if ``number`` differs from it by one bit; one of them is right."""


def _read_frame(
    order: str,
    frame: bytes,
    sums: list[tuple[int, int]],
    salts: tuple[int, int],
    pages_max: int,
) -> _ReadFrame:
    """Read one frame. With ``pages_max`` a damaged one is read too, as far as possible."""
    is_lenient = pages_max > 0
    number, size, salt_1, salt_2, next_1, next_2 = _FRAME.unpack(frame[:24])
    if _bits_apart((salt_1, salt_2), salts) > (1 if is_lenient else 0):
        # A frame of an earlier log, which newer frames have not overwritten: its page is old. Its
        # checksum must not be continued either, or the frames after it would seem sound.
        return _ReadFrame(0, 0, False, sums)
    body = memoryview(frame)[24:]
    stored = (next_1, next_2)
    page_sum = _PageChecksum(order, body)
    computed = []
    for first in sums:
        computed.append(page_sum.after(*_checksum(order, frame[:8], *first)))
        if computed[-1] == stored and number > 0:
            return _ReadFrame(number, size, True, [stored])
    if not is_lenient:
        return _ReadFrame(0, 0, False, [])
    if len(sums) < 4:
        # Perhaps only one bit of the page's number or of the database's size is wrong. High bits
        # of the page sometimes have the same effect on this checksum, so it is not a proof.
        for bit in range(64):
            flipped = (int.from_bytes(frame[:8], "big") ^ 1 << bit).to_bytes(8, "big")
            for first in sums:
                if page_sum.after(*_checksum(order, flipped, *first)) == stored:
                    fixed, ends = (int.from_bytes(flipped[at : at + 4], "big") for at in (0, 4))
                    if 0 < fixed <= pages_max and ends <= pages_max:
                        stored_number = number if fixed != number <= pages_max else 0
                        return _ReadFrame(
                            fixed,
                            max(ends, size if size <= pages_max else 0),
                            False,
                            [stored],
                            stored_number,
                        )
    # Perhaps only the checksum itself is damaged: the next frame then continues the right one.
    is_likely = number <= pages_max and size <= pages_max
    return _ReadFrame(number if is_likely else 0, size, False, [stored, *computed])


class _PageChecksum:
    """The checksum of a page after any given sums: its steps only add."""

    def __init__(self, order: str, page: memoryview) -> None:
        self._alone = _checksum(order, page, 0, 0)
        self._first, self._second = _growth(len(page))

    def after(self, sum_1: int, sum_2: int) -> tuple[int, int]:
        """The checksum that continues from these sums."""
        return (
            (self._alone[0] + sum_1 * self._first[0] + sum_2 * self._second[0]) & _MASK,
            (self._alone[1] + sum_1 * self._first[1] + sum_2 * self._second[1]) & _MASK,
        )


@cache
def _growth(page_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The effect of this many zero bytes on each of the two sums."""
    nothing = bytes(page_bytes)
    return _checksum("<II", nothing, 1, 0), _checksum("<II", nothing, 0, 1)


def _checksum(order: str, data: bytes | memoryview, sum_1: int, sum_2: int) -> tuple[int, int]:
    for word_1, word_2 in iter_unpack(order, data):
        sum_1 = (sum_1 + word_1 + sum_2) & _MASK
        sum_2 = (sum_2 + word_2 + sum_1) & _MASK
    return sum_1, sum_2


class PageFile:
    """A database with its log, page by page."""

    def __init__(self, path: Path, *, is_lenient: bool = False) -> None:
        self._file: int | None = None
        self._file_bytes = 0
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._file_bytes = os.fstat(self._file).st_size
        except FileNotFoundError:
            pass
        self.places = _Places()
        self.header = self.places.read(self._file, HEADER_BYTES, 0)
        self.page_bytes = self._find_page_bytes()
        log_path = path.with_name(path.name + "-wal")
        self.log = Log(log_path, is_lenient=is_lenient, page_bytes=self.page_bytes)
        self.log.finish()
        if self.log.frames:
            self.page_bytes = self.log.page_bytes
        first = self.page(1)
        if first.startswith(MAGIC):
            self.header = first[:HEADER_BYTES]
        self.page_count = self._count_pages()

    def __enter__(self) -> PageFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.log.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _count_pages(self) -> int:
        in_file = self._file_bytes // self.page_bytes
        if self.log.frames:
            return min(self.log.page_count, max(in_file, *self.log.frames))
        # After the end that the header names, a crash may have left anything.
        stored = int.from_bytes(self.header[28:32], "big")
        is_valid = self.header.startswith(MAGIC) and self.header[24:28] == self.header[92:96]
        return stored if is_valid and 0 < stored <= in_file else in_file

    def _find_page_bytes(self) -> int:
        if self.header.startswith(MAGIC):
            size = int.from_bytes(self.header[16:18], "big")
            size = 65536 if size == 1 else size
            if size in _PAGE_SIZES:
                return size
        likely = {size: self._likelihood(size) for size in _PAGE_SIZES}
        # Every page of a size begins where a page of half that size does: the smallest is right.
        best = max(likely.values())
        return min((size for size in likely if likely[size] >= 0.9 * best > 0), default=16384)

    def _likelihood(self, page_bytes: int) -> float:
        """The share of pages that are valid if they have this size."""
        count = min(self._file_bytes // page_bytes, 512)
        if count < 2 or self._file is None:
            return 0.0
        kinds = [self.places.read(self._file, 8, at * page_bytes) for at in range(1, count)]
        likely = sum(
            kind[:1] in (b"\x02", b"\x05", b"\x0a", b"\x0d")
            and int.from_bytes(kind[3:5], "big") * 4 < page_bytes
            and int.from_bytes(kind[5:7], "big") <= page_bytes
            for kind in kinds
        )
        return likely / (count - 1)

    def page(self, number: int) -> bytes:
        """The newest version of a page; empty if it does not exist."""
        frame = self.log.frames.get(number)
        if frame is not None:
            return self.log.places.read(self.log.file, self.page_bytes, frame.offset)
        return self._stored(number)

    def _stored(self, number: int) -> bytes:
        return self.places.read(self._file, self.page_bytes, (number - 1) * self.page_bytes)

    def older_page(self, number: int) -> bytes:
        """The version before the newest, if that is damaged in the log."""
        frame = self.log.frames.get(number)
        if frame is not None and frame.older_offset is not None:
            return self.log.places.read(self.log.file, self.page_bytes, frame.older_offset)
        return self._stored(number)

    # -- kinds of pages -------------------------------------------------------------------

    def is_map(self, number: int) -> bool:
        """Whether the page belongs to the pointer map."""
        return number > 1 and (number - 2) % (self.page_bytes // 5 + 1) == 0

    def pointer_map(self) -> dict[int, tuple[int, int]]:
        """Page -> its kind and the page that refers to it; wrong entries are left out."""
        entries: dict[int, tuple[int, int]] = {}
        each = self.page_bytes // 5
        for number in range(2, self.page_count + 1, each + 1):
            page = self.page(number)
            if len(page) < self.page_bytes:
                continue
            for at in range(min(each, self.page_count - number)):
                kind = page[at * 5]
                parent = int.from_bytes(page[at * 5 + 1 : at * 5 + 5], "big")
                if MAP_ROOT <= kind <= MAP_TREE and parent <= self.page_count:
                    entries[number + 1 + at] = kind, parent
        return entries

    def free_pages(self) -> set[int]:
        """The pages in the list of free pages, as far as it can be read."""
        found: set[int] = set()
        trunk = int.from_bytes(self.header[32:36], "big") if len(self.header) >= 36 else 0
        while 1 < trunk <= self.page_count and trunk not in found:
            found.add(trunk)
            page = self.page(trunk)
            if len(page) < self.page_bytes:
                break
            count = min(int.from_bytes(page[4:8], "big"), self.page_bytes // 4 - 2)
            leaves = (int.from_bytes(page[8 + at * 4 : 12 + at * 4], "big") for at in range(count))
            found.update(leaf for leaf in leaves if 1 < leaf <= self.page_count)
            trunk = int.from_bytes(page[:4], "big")
        return found


class TreeReader:
    """The rows of a table tree, in order, and the places where some are missing."""

    def __init__(self, pages: PageFile) -> None:
        self.pages = pages
        self.owners: dict[int, str] = {}
        """Page -> the table whose tree contains it."""
        self.misplaced: set[int] = set()
        """Pages that a tree refers to although they may belong to another one."""
        self._parents: dict[int, tuple[int, int]] | None = None
        self.flaws: dict[str, list[Flaw]] = {}
        usable = pages.page_bytes
        self._local_max = usable - 35
        self._local_min = (usable - 12) * 32 // 255 - 23

    def note(self, table: str, flaw: Flaw) -> None:
        self.flaws.setdefault(table, []).append(flaw)

    def leaves(self, table: str, root: int) -> Iterator[tuple[int, bytes]]:
        """The leaf pages of a tree in order, each of them once.

        A page of another tree is returned as well, as ``misplaced``: its rows show which of the two
        trees refers to it by a wrong number.
        """
        seen: set[int] = set()
        pending = [(root, 0, 0)]
        while pending:
            number, depth, parent = pending.pop()
            if not 1 <= number <= self.pages.page_count or depth > _DEPTH_MAX:
                self.note(table, Flaw(number, "a page refers to one that does not exist", None))
                continue
            if number in seen or self.pages.is_map(number):
                self.note(table, Flaw(number, "two pages refer to the same one", None))
                continue
            seen.add(number)
            self._claim(table, number, parent)
            page = self.pages.page(number)
            start = HEADER_BYTES if number == 1 else 0
            kind = page[start] if len(page) == self.pages.page_bytes else None
            if kind == INTERIOR:
                children = self._children(table, number, page, start)
                pending += [(child, depth + 1, number) for child in reversed(children)]
            else:
                yield number, page

    def _claim(self, table: str, number: int, parent: int) -> None:
        """Record the owner of a page; the pointer map decides between two trees."""
        if self._parents is None:
            self._parents = self.pages.pointer_map()
        expected = (MAP_TREE, parent) if parent else (MAP_ROOT, 0)
        is_denied = parent in self.misplaced or self._parents.get(number, expected) != expected
        owner = self.owners.get(number, table)
        if owner != table:
            self.note(table, Flaw(number, "two pages refer to the same one", None, is_loss=False))
        if is_denied or owner != table:
            self.misplaced.add(number)
        if not is_denied or number not in self.owners:
            self.owners[number] = table

    def _children(self, table: str, number: int, page: bytes, start: int) -> list[int]:
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        children = []
        for at in range(start + 12, start + 12 + 2 * count, 2):
            place = int.from_bytes(page[at : at + 2], "big")
            if place < start + 12 or place + 5 > len(page):
                self.note(table, Flaw(number, "a page of the tree is damaged", None))
                continue
            children.append(int.from_bytes(page[place : place + 4], "big"))
        return [*children, int.from_bytes(page[start + 8 : start + 12], "big")]

    def read_leaf(self, number: int, page: bytes) -> tuple[list[Row | int | None], bool]:
        """The cells of a leaf page: rows, ids whose row cannot be read, or nothing at all.

        The flag shows whether the page itself is valid.
        """
        start = HEADER_BYTES if number == 1 else 0
        if len(page) < self.pages.page_bytes or page[start] != LEAF:
            return [], False
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        ends = start + 8 + 2 * count
        if ends > len(page):
            return [], False
        cells: list[Row | int | None] = []
        is_sound = True
        for at in range(start + 8, ends, 2):
            place = page[at] << 8 | page[at + 1]
            if place < ends or place >= len(page):
                cells.append(None)
                is_sound = False
            else:
                cells.append(self.cell(page, place))
        # After the last entry a deleted row may have left its own; only then a check is needed.
        if is_sound and page[ends : ends + 2] >= page[start + 5 : start + 7] > b"\x00\x00":
            is_sound = not self._lacks_cell(page, start, count)
        return cells, is_sound

    def _lacks_cell(self, page: bytes, start: int, count: int) -> bool:
        """Whether the page contains bytes that are neither one of its cells nor free."""
        first_free, content = (
            int.from_bytes(page[start + at : start + at + 2], "big") for at in (1, 5)
        )
        known = page[start + 7]
        try:
            for at in range(start + 8, start + 8 + 2 * count, 2):
                place = page[at] << 8 | page[at + 1]
                size, behind = _varint(page, place)
                local = self.local_bytes(size)
                _row_id, behind = _varint(page, behind)
                known += max(4, behind - place + local + (4 if local < size else 0))
        except IndexError:
            return False
        for _ in range(len(page) // 4):
            if not first_free:
                break
            known += int.from_bytes(page[first_free + 2 : first_free + 4], "big")
            first_free = int.from_bytes(page[first_free : first_free + 2], "big")
        return content + known < len(page)

    def cell(self, page: bytes, at: int) -> Row | int | None:
        """The row of the cell at this offset; only its id if nothing else can be read."""
        try:
            size = page[at]
            at += 1
            if size > 127:
                size, at = _varint(page, at - 1)
            row_id = page[at]
            at += 1
            if row_id > 127:
                row_id, at = _varint(page, at - 1)
        except IndexError:
            return None
        payload = self._payload(page, at, size)
        values = None if payload is None else record_values(payload)
        return row_id if values is None else Row(row_id, values)

    def _payload(self, page: bytes, at: int, size: int) -> bytes | None:
        """The payload of a row that begins at this offset; None if it is incomplete."""
        if size > self._local_max:
            return self._with_overflow(page, at, size)
        payload = page[at : at + size]
        return payload if len(payload) == size else None

    def local_bytes(self, size: int) -> int:
        """The number of bytes of a payload that are in the cell itself."""
        if size <= self._local_max:
            return size
        local = self._local_min + (size - self._local_min) % (self.pages.page_bytes - 4)
        return local if local <= self._local_max else self._local_min

    def _with_overflow(self, page: bytes, at: int, size: int) -> bytes | None:
        local = self.local_bytes(size)
        each = self.pages.page_bytes - 4
        if size > self.pages.page_count * each or at + local + 4 > len(page):
            return None
        parts = [page[at : at + local]]
        left = size - local
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        while left > 0:
            if not 1 < following <= self.pages.page_count:
                return None
            overflow = self.pages.page(following)
            if len(overflow) < self.pages.page_bytes:
                return None
            parts.append(overflow[4 : 4 + min(left, each)])
            left -= each
            following = int.from_bytes(overflow[:4], "big")
        return b"".join(parts)

    def search_page(self, page: bytes, is_row: Callable[[Row], bool]) -> list[Row]:
        """Rows anywhere in a page whose own directory is damaged; ``is_row`` recognises them."""
        found: list[Row] = []
        free = _free_ranges(page)
        at, end = 8, len(page)
        while at < end - 3:
            if at in free:
                # The content was deleted.
                at = max(free[at], at + 1)
                continue
            behind = at + 1
            for row, ends in self._rows_if_likely(page, at):
                if is_row(row):
                    found.append(row)
                    behind = ends
                    break
            at = behind
        return found

    def _rows_if_likely(self, page: bytes, at: int) -> Iterator[tuple[Row, int]]:
        """The row of a cell that may begin at this offset, and where the cell ends.

        Its length is stored before it and follows from its own header; one may be damaged.
        """
        try:
            stored, start = _varint(page, at)
            row_id, start = _varint(page, start)
            # A record begins with the length of its own header, which is short in our tables.
            if not 3 <= page[start] <= 40:
                return
        except IndexError:
            return
        for size in dict.fromkeys((stored, _record_bytes(page, start))):
            payload = self._payload(page, start, size) if size >= 4 else None
            values = None if payload is None else record_values(payload)
            if values is not None:
                local = self.local_bytes(size)
                yield Row(row_id, values), start + local + (4 if local < size else 0)


def _free_ranges(page: bytes) -> dict[int, int]:
    """Where the free ranges of a leaf page begin and end, as far as the page is consistent."""
    count, content = int.from_bytes(page[3:5], "big"), int.from_bytes(page[5:7], "big")
    ranges: dict[int, int] = {}
    directory_end = 8 + 2 * count
    if directory_end <= content <= len(page):
        ranges[8] = content
    at = int.from_bytes(page[1:3], "big")
    last = content if 8 in ranges else 7
    while at:
        following = int.from_bytes(page[at : at + 2], "big")
        size = int.from_bytes(page[at + 2 : at + 4], "big")
        if at < last or size < 4 or at + size > len(page):
            break
        ranges[at] = last = at + size
        at = following
    return ranges


def record_values(data: bytes) -> list[Any] | None:
    """The values of a stored row; None when it is not a row."""
    try:
        head, at = data[0], 1
        if head > 127:
            head, at = _varint(data, 0)
        body = head
        values: list[Any] = []
        while at < head:
            kind = data[at]
            at += 1
            if kind > 127:
                kind, at = _varint(data, at - 1)
            if kind >= 12:
                size = (kind - 12) >> 1
                part = data[body : body + size]
                if len(part) != size:
                    return None
                values.append(part.decode() if kind & 1 else part)
                body += size
            elif kind == 0:
                values.append(None)
            elif kind < 7:
                size = _INTEGER_BYTES[kind]
                values.append(int.from_bytes(data[body : body + size], "big", signed=True))
                body += size
            elif kind in (8, 9):
                values.append(kind - 8)
            else:
                # We store no fractions, and the other kinds do not exist.
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return values if body == len(data) and at == head else None


def _record_bytes(data: bytes, at: int) -> int:
    """The length of the record at this offset by its own header; 0 if it is not a record."""
    total, end = data[at], at + data[at]
    at += 1
    try:
        while at < end:
            kind, at = _varint(data, at)
            if kind < 0 or kind in (10, 11):
                return 0
            total += (kind - 12) >> 1 if kind >= 12 else _INTEGER_BYTES[kind]
    except IndexError:
        return 0
    return total


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    value = value << 8 | data[at]
    return value - (1 << 64) if value >> 63 else value, at + 1


def is_table_page(page: bytes, start: int = 0) -> bool:
    return len(page) > start and page[start] in (LEAF, INTERIOR)


def is_index_page(page: bytes) -> bool:
    return bool(page) and page[0] in _INDEX_PAGES

"""Messages that several chunks have in common, stored once.

A topic copies one message to many subscriptions. Their chunks of one commit select from one
*shared body*, a blob like a chunk's (table ``sheet``), and have no bytes themselves.

    shared body:  [m0][m1][m2][m3]
    chunk of subscription a: all of it          share (shared body, everything)
    chunk of subscription b: m1 and m3          share (shared body, 1010)

Rule 1: a shared body belongs to one commit. It is deleted with the last chunk that selects from it.
Rule 2: sharing must pay. Small selections are copied, so that one slow subscription does not keep
        the messages of all others on disk.
Rule 3: the store relies on one property of a blob: it begins with the lengths of its messages,
        four bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple

from twinbus.broker.storage.interface import Op, PutChunk, SharedBody, SharedBodySelection

# A row that refers to a shared body needs about this much space.
SHARED_BYTES_MIN: Final = 256
# Of the bytes of a shared body; the smallest selections are copied while all copies stay below it.
COPIED_PART_MAX: Final = 0.25
# The commit number is the high part of a shared body's id, so that no id is ever reused.
SHEET_BITS: Final = 20

_WHOLE: Final = b""
_REFERENCE: Final = Struct(">qqqq")


class SharedBodyPlan(NamedTuple):
    """The shared bodies of one commit."""

    ids: dict[int, int]
    """id(share) -> id of the shared body, for the chunks that select from one."""
    bodies: list[tuple[int, SharedBody]]


_NO_SHARED_BODIES: Final = SharedBodyPlan({}, [])


def plan_shared_bodies(ops: Iterable[Op], commit_number: int) -> SharedBodyPlan:
    """The shares in these ops that save space."""
    users: dict[int, list[PutChunk]] = {}
    for op in ops:
        if type(op) is PutChunk and op.share is not None:
            users.setdefault(id(op.share.sheet), []).append(op)
    if not users:
        return _NO_SHARED_BODIES
    plan = SharedBodyPlan({}, [])
    for chunks in users.values():
        shares = _worthwhile(chunks)
        if shares:
            sheet_id = commit_number << SHEET_BITS | len(plan.bodies)
            plan.bodies.append((sheet_id, shares[0].sheet))
            plan.ids.update((id(share), sheet_id) for share in shares)
    return plan


def _worthwhile(chunks: list[PutChunk]) -> list[SharedBodySelection]:
    """The shares of one shared body that stay shares; the others become copies."""
    sized = sorted((len(op.row.blob), at) for at, op in enumerate(chunks))
    sheet_bytes = len(chunks[0].share.sheet.blob) if chunks[0].share else 0
    copied_bytes = 0
    while sized:
        size = sized[0][0]
        copied_bytes += size
        if size >= SHARED_BYTES_MIN and copied_bytes > sheet_bytes * COPIED_PART_MAX:
            break
        del sized[0]
    if sum(size for size, _at in sized) <= sheet_bytes:
        return []
    shares = [chunks[at].share for _size, at in sized]
    return [share for share in shares if share is not None]


def select(blob: bytes, count: int, selection: bytes) -> bytes:
    """The blob of a chunk that selects from a shared body; raises ValueError if it is invalid."""
    if selection == _WHOLE:
        return blob
    mask = int.from_bytes(selection, "little")
    if mask.bit_length() > count or len(blob) < 4 * count:
        raise ValueError("a selection exceeds its shared body")
    lengths = unpack_from(f">{count}I", blob)
    starts = list(accumulate(lengths, initial=4 * count))
    if starts[-1] != len(blob):
        raise ValueError("the message lengths in a shared body are wrong")
    places = [place for place in range(count) if mask >> place & 1]
    chosen = [blob[starts[place] : starts[place + 1]] for place in places]
    return pack(f">{len(chosen)}I", *map(len, chosen)) + b"".join(chosen)


def pack_selection(share: SharedBodySelection) -> bytes:
    """The stored form of a selection: a bit mask, lowest byte first; empty selects everything."""
    count = share.sheet.count
    if share.selection == (1 << count) - 1:
        return _WHOLE
    return share.selection.to_bytes((count + 7) // 8, "little")


def check_share(share: SharedBodySelection, count: int) -> None:
    """Raise ValueError unless the selection has ``count`` messages of the shared body."""
    if share.selection < 0 or share.selection >> share.sheet.count:
        raise ValueError("a selection exceeds its shared body")
    if share.selection.bit_count() != count:
        raise ValueError(
            f"a chunk of {count} messages selects {share.selection.bit_count()} messages"
        )


def encode_reference(
    row_id: int, count: int, enqueued_ms: int, sheet_id: int, selection: bytes
) -> bytes:
    """The bytes that the checksum of a chunk without a blob covers instead."""
    return _REFERENCE.pack(row_id, count, enqueued_ms, sheet_id) + selection

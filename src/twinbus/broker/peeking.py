"""Looking messages up by sequence number: what to read, and how a found message is shown.

The ``read_`` functions run on the reader's thread and see what is on disk. The others run on
the loop with the queue machine, which knows what has changed since.
"""

from __future__ import annotations

from typing import Any

from twinbus.broker.delivery import (
    STATE_SCHEDULED,
    delivered_message,
    encode_record,
    token_uuid,
)
from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.consumer import Grant
from twinbus.broker.entities.facts import facts_of
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.record import unpack_record
from twinbus.broker.ingest import SCHEDULED
from twinbus.broker.store.port import SEQ_MAX, LoadedChunk, ScheduledRow, Store
from twinbus.clock import Instant

# A reply grows no larger than this, except for one message that is larger alone.
REPLY_BYTES_MAX = 1 << 20
# Deferred messages may lie far apart; this much is read for one request.
DEFERRED_BYTES_MAX = 32 << 20
_READ_BYTES = 1 << 20
_READ_CHUNKS = 64
_READ_ROWS = 64

Found = tuple[list[LoadedChunk], list[ScheduledRow]]


def read_peek(
    queue: Queue, first: int, count: int, session: str | None, now_ms: int, store: Store
) -> Found:
    """Chunks and scheduled messages from ``first`` on: enough for ``count`` live messages.

    With ``session``, only those of that session.
    """
    if first > SEQ_MAX:
        return [], []
    queue_id = queue.queue_id
    scheduled = _read_scheduled_from(queue_id, first, count, session, store)
    holding = store.load_chunk_holding(queue_id, first)
    after = first - 1 if holding is None else holding.row.last_seq
    if holding is not None and session is not None and holding.row.session != session:
        holding = None
    chunks = [] if holding is None else [holding]
    live = sum(_live_count(chunk, first, now_ms) for chunk in chunks)
    while live < count and sum(len(chunk.row.blob) for chunk in chunks) < REPLY_BYTES_MAX:
        more = store.load_chunks(queue_id, after, _READ_BYTES, _READ_CHUNKS, session)
        if not more:
            break
        after = more[-1].row.last_seq
        found = [chunk for chunk in more if _live_count(chunk, first, now_ms)]
        live += sum(_live_count(chunk, first, now_ms) for chunk in found)
        chunks += found
    return chunks, scheduled


def _read_scheduled_from(
    queue_id: int, first: int, count: int, session: str | None, store: Store
) -> list[ScheduledRow]:
    if session is None:
        return store.load_scheduled(queue_id, first - 1, count)
    found: list[ScheduledRow] = []
    after = first - 1
    while len(found) < count and (rows := store.load_scheduled(queue_id, after, _READ_ROWS)):
        after = rows[-1].seq
        found += [row for row in rows if facts_of(row.blob).session_id == session]
    return found


def _live_count(chunk: LoadedChunk, first: int, now_ms: int) -> int:
    """Messages from ``first`` on that are neither gone nor expired; some of these wait to be."""
    row = chunk.row
    begin = max(first, row.first_seq)
    gone = sum(max(0, last - max(begin, start) + 1) for start, last in chunk.gone)
    live = max(0, row.last_seq - begin + 1 - gone)
    if live and row.expires_ms is not None:
        expiries = Chunk.from_store(chunk).expiries.items()
        live -= sum(at <= now_ms and row.first_seq + index >= begin for index, at in expiries)
    return live


def peeked(
    queue: Queue, found: Found, first: int, count: int, now: Instant
) -> list[dict[str, Any]]:
    """The messages from ``first`` on as the reply holds them, active and scheduled by number."""
    chunks, scheduled = found
    shown = [
        (row.seq, message)
        for row in scheduled
        if queue.is_still_scheduled(row.seq) and (message := _scheduled_message(row)) is not None
    ]
    for loaded in chunks:
        chunk = queue.shelf.is_current(loaded) or Chunk.from_store(loaded)
        for index in range(max(0, first - chunk.first_seq), chunk.count):
            if chunk.gone >> index & 1 or chunk.expiries.get(index, now.wall_ms + 1) <= now.wall_ms:
                continue
            message = delivered_message(chunk, loaded.row.blob, index)
            shown.append((chunk.first_seq + index, message))
    shown.sort(key=lambda each: each[0])
    return _within_bytes([message for _seq, message in shown[:count]])


def _within_bytes(messages: list[bytes]) -> list[dict[str, Any]]:
    size = 0
    reply: list[dict[str, Any]] = []
    for message in messages:
        size += len(message)
        if reply and size > REPLY_BYTES_MAX:
            break
        reply.append({"message": message})
    return reply


def _scheduled_message(row: ScheduledRow) -> bytes | None:
    """A scheduled message; None if a fault hides it, which nobody scheduled (rule F3)."""
    record = unpack_record(row.blob, 0, len(row.blob))
    if SCHEDULED.encode() not in record.annotation_pairs:
        return None
    return encode_record(record, row.seq, row.due_ms, state=STATE_SCHEDULED)


def read_deferred(queue: Queue, seqs: list[int], store: Store) -> list[LoadedChunk | None] | None:
    """The chunk that holds each of ``seqs``; None when they are too much to be read at once."""
    found: dict[int, LoadedChunk | None] = {}
    size = 0
    last: LoadedChunk | None = None
    for seq in sorted(seqs):
        if last is None or seq > last.row.last_seq:
            last = store.load_chunk_holding(queue.queue_id, seq) if 1 <= seq <= SEQ_MAX else None
            size += 0 if last is None else len(last.row.blob)
            if size > DEFERRED_BYTES_MAX:
                return None
        found[seq] = last
    return [found[seq] for seq in seqs]


def read_scheduled(queue: Queue, seqs: list[int], store: Store) -> list[ScheduledRow | None]:
    """The scheduled message under each of ``seqs``."""
    found: list[ScheduledRow | None] = []
    for seq in set(seqs):
        rows = store.load_scheduled(queue.queue_id, seq - 1, 1) if 1 <= seq <= SEQ_MAX else []
        found.append(rows[0] if rows and rows[0].seq == seq else None)
    return found


def deferred_message(grant: Grant) -> dict[str, Any]:
    """A deferred message as the reply hands it over."""
    seq = grant.chunk.first_seq + grant.start
    if grant.run is None:
        return {"message": delivered_message(grant.chunk, grant.blob, grant.start)}
    token = grant.run.token(seq)
    message = delivered_message(
        grant.chunk,
        grant.blob,
        grant.start,
        token=token,
        locked_until_ms=grant.run.locked_until_ms,
    )
    return {"message": message, "lock-token": token_uuid(token)}

"""What a queue machine asks to have read, and which call to the store answers it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.entities.lane import READ_AHEAD_BYTES, READ_AHEAD_CHUNKS
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.requests import (
    FindTimes,
    LoadBlob,
    LoadDue,
    LoadExpired,
    LoadNext,
    Request,
)

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace

# Chunks or scheduled messages that one sweep reads, and their bytes; the next sweep follows at
# once. A sweep is also what the loop works off in one go: 64 KB are 2,500 messages at most.
SWEEP_COUNT_MAX = 256
SWEEP_BYTES_MAX = 64 * 1024


def submit_read(namespace: Namespace, queue: Queue, request: Request) -> None:
    """Read what the queue asks for, on the reader's thread, and answer it."""
    queue_id = queue.queue_id
    match request:
        case LoadNext():
            namespace.read(
                queue,
                lambda store: store.load_chunks(
                    queue_id,
                    request.after_seq,
                    READ_AHEAD_BYTES,
                    READ_AHEAD_CHUNKS,
                    request.stream.session,
                ),
                partial(queue.chunks_loaded, request),
            )
        case LoadBlob():
            namespace.read(
                queue,
                lambda store: store.load_chunk_holding(queue_id, request.chunk.first_seq),
                partial(queue.blob_loaded, request),
            )
        case LoadExpired():
            namespace.read(
                queue,
                lambda store: store.load_expired(
                    queue_id, request.now_ms, SWEEP_COUNT_MAX, SWEEP_BYTES_MAX
                ),
                lambda rows: queue.expired_loaded(rows, namespace.now()),
            )
        case LoadDue():
            namespace.read(
                queue,
                lambda store: store.load_due(
                    queue_id, request.now_ms, SWEEP_COUNT_MAX, SWEEP_BYTES_MAX
                ),
                queue.due_loaded,
            )
        case FindTimes():
            namespace.read(
                queue,
                lambda store: (store.next_expiry(queue_id), store.next_due(queue_id)),
                lambda times: queue.times_found(*times),
            )

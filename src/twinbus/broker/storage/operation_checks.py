"""Which operations a commit may contain; both drivers check here before they change anything.

Rule 1: an op that breaks the interface is a ValueError before anything is stored: a caller's
        mistake must not become a store that refuses to open.
Rule 2: an op for a queue that was deleted is dropped, because settlements may still arrive after
        the deletion; a *message* for it is refused, because it would be lost.
Rule 3: a queue that never existed can be deleted: its creation may have been refused, its
        deletion is not.
Rule 4: a path belongs to one entity: two rows of one path would be a store that refuses to open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twinbus.broker.storage.interface import (
    QUEUE_ID_MAX,
    SEQ_MAX,
    ClearState,
    DeleteChunks,
    DeleteEntity,
    DeleteScheduled,
    EntityRow,
    ForgetSeen,
    Op,
    PutChunk,
    PutCounters,
    PutEntity,
    PutMeta,
    PutScheduled,
    PutSeen,
    PutSessionState,
    PutState,
    SetChunkExpiry,
    Tombstone,
)
from twinbus.broker.storage.shared_bodies import check_share

# SQLite keeps signed 64-bit integers; a larger number would fail in the middle of a commit.
_NUMBER_MAX: Final = (1 << 63) - 1


class KnownQueues:
    """Which entities exist. Ids are never reused, so one number shows which ones ever did."""

    def __init__(self, entities: Iterable[EntityRow] = (), queue_id_last: int = 0) -> None:
        self.paths = {entity.queue_id: entity.path for entity in entities}
        """By id."""
        self.ids = {path: queue_id for queue_id, path in self.paths.items()}
        self.queue_id_last = queue_id_last

    def apply(self, changes: KnownQueueChanges) -> None:
        """Apply the changes of a commit that is durable."""
        for queue_id, path in changes.paths.items():
            if path is None:
                self.paths.pop(queue_id, None)
            else:
                self.paths[queue_id] = path
        for name, owner in changes.ids.items():
            if owner is None:
                self.ids.pop(name, None)
            else:
                self.ids[name] = owner
        self.queue_id_last = changes.queue_id_last


class KnownQueueChanges:
    """The known queues after the ops of one commit."""

    def __init__(self, known_queues: KnownQueues) -> None:
        self._known_queues = known_queues
        self.paths: dict[int, str | None] = {}
        self.ids: dict[str, int | None] = {}
        self.queue_id_last = known_queues.queue_id_last

    def path_of(self, queue_id: int) -> str | None:
        if queue_id in self.paths:
            return self.paths[queue_id]
        return self._known_queues.paths.get(queue_id)

    def put(self, queue_id: int, path: str) -> None:
        """An entity is new, or its description changes; a path belongs to one at a time."""
        old = self.path_of(queue_id)
        if old is None and queue_id <= self.queue_id_last:
            raise ValueError(f"queue id {queue_id} was already used; ids are never reused")
        if old == path:
            return
        owner = self.ids[path] if path in self.ids else self._known_queues.ids.get(path)
        if owner is not None:
            raise ValueError(f"path {path!r} already belongs to entity {owner}")
        if old is not None:
            self.ids[old] = None
        self.paths[queue_id] = path
        self.ids[path] = queue_id
        self.queue_id_last = max(self.queue_id_last, queue_id)

    def drop(self, queue_id: int, path: str) -> None:
        self.paths[queue_id] = None
        self.ids[path] = None


def validate_operations(
    ops: Sequence[Op], known_queues: KnownQueues
) -> tuple[list[Op], KnownQueueChanges | None]:
    """The ops that are to be applied, and how they change the known queues, if at all."""
    try:
        return _admit(ops, known_queues)
    except (TypeError, AttributeError, KeyError) as error:
        # A value of another type fails in the comparisons: it is as invalid as a wrong number.
        raise ValueError(f"an operation has a value of the wrong type: {error}") from error


def _admit(
    ops: Sequence[Op], known_queues: KnownQueues
) -> tuple[list[Op], KnownQueueChanges | None]:
    admitted: list[Op] = []
    # Most commits change no entity, and only read the known queues.
    changes: KnownQueueChanges | None = None
    live, last_id = known_queues.paths, known_queues.queue_id_last
    for op in ops:
        kind = type(op)
        queue_id = _CHECKS[kind](op)
        path = live.get(queue_id) if changes is None else changes.path_of(queue_id)
        if kind is PutEntity or kind is DeleteEntity:
            changes = changes or KnownQueueChanges(known_queues)
            if isinstance(op, PutEntity):
                changes.put(queue_id, op.entity.path)
                last_id = changes.queue_id_last
                admitted.append(op)
            elif path is not None:
                changes.drop(queue_id, path)
                admitted.append(op)
        elif path is not None or kind is PutMeta:
            admitted.append(op)
        elif kind is PutChunk or kind is PutScheduled or queue_id > last_id:
            raise ValueError(f"{kind.__name__} refers to queue {queue_id}, which does not exist")
    return admitted, changes


def _check_queue_id(queue_id: int) -> None:
    if not 1 <= queue_id <= QUEUE_ID_MAX:
        raise ValueError(f"queue id must be 1 to {QUEUE_ID_MAX}, got {queue_id}")


def _check_range(queue_id: int, first_seq: int, last_seq: int) -> None:
    _check_queue_id(queue_id)
    if not 1 <= first_seq <= last_seq <= SEQ_MAX:
        raise ValueError(
            f"sequence numbers must be an ascending range within 1 to {SEQ_MAX}, "
            f"got {first_seq} to {last_seq}"
        )


def _check_number(name: str, value: int) -> None:
    if type(value) is not int:
        # SQLite would refuse it in the middle of a commit, which looks like a disk failure.
        raise ValueError(f"{name} must be an integer, got {type(value).__name__}")
    if not -_NUMBER_MAX <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} must fit into 64 bits, got {value}")


def _check_blob(blob: bytes) -> None:
    if type(blob) is not bytes:
        raise ValueError(f"a blob must be bytes, got {type(blob).__name__}")


def _put_chunk(op: PutChunk) -> int:
    row = op.row
    if row.count < 1:
        raise ValueError(f"a chunk must have at least 1 message, got {row.count}")
    _check_range(row.queue_id, row.first_seq, row.first_seq + row.count - 1)
    _check_number("enqueued_ms", row.enqueued_ms)
    if row.expires_ms is not None:
        _check_number("expires_ms", row.expires_ms)
    _check_blob(row.blob)
    if op.share is not None:
        check_share(op.share, row.count)
    if row.session is not None:
        _check_session(row.session)
    return row.queue_id


def _range(op: DeleteChunks | Tombstone | ClearState) -> int:
    _check_range(op.queue_id, op.first_seq, op.last_seq)
    return op.queue_id


def _put_state(op: PutState) -> int:
    _check_range(op.queue_id, op.seq, op.seq)
    if not 0 <= op.delivery_count <= _NUMBER_MAX:
        raise ValueError(f"delivery count must be 0 or more, got {op.delivery_count}")
    return op.queue_id


def _set_chunk_expiry(op: SetChunkExpiry) -> int:
    _check_range(op.queue_id, op.first_seq, op.first_seq)
    if op.expires_ms is not None:
        _check_number("expires_ms", op.expires_ms)
    return op.queue_id


def _put_scheduled(op: PutScheduled) -> int:
    _check_range(op.queue_id, op.seq, op.seq)
    _check_number("due_ms", op.due_ms)
    _check_blob(op.blob)
    return op.queue_id


def _delete_scheduled(op: DeleteScheduled) -> int:
    _check_range(op.queue_id, op.seq, op.seq)
    return op.queue_id


def _put_seen(op: PutSeen) -> int:
    row = op.row
    _check_range(row.queue_id, row.page, row.page)
    _check_number("at_ms", row.at_ms)
    _check_blob(row.digests)
    return row.queue_id


def _forget_seen(op: ForgetSeen) -> int:
    _check_range(op.queue_id, op.through_page, op.through_page)
    return op.queue_id


def _check_session(session: str) -> None:
    if not isinstance(session, str):
        raise ValueError(f"a session id must be text, got {type(session).__name__}")
    try:
        session.encode()
    except UnicodeEncodeError:
        raise ValueError("a session id contains an unpaired surrogate") from None


def _put_session_state(op: PutSessionState) -> int:
    _check_queue_id(op.queue_id)
    _check_session(op.session)
    _check_number("updated_ms", op.updated_ms)
    if op.state is not None:
        _check_blob(op.state)
    return op.queue_id


def _put_counters(op: PutCounters) -> int:
    counters = op.counters
    _check_queue_id(counters.queue_id)
    if not 1 <= counters.next_seq <= SEQ_MAX + 1:
        raise ValueError(f"next_seq must be 1 to {SEQ_MAX + 1}, got {counters.next_seq}")
    for name in ("message_count", "byte_count", "deferred_count", "scheduled_count"):
        if not 0 <= getattr(counters, name) <= _NUMBER_MAX:
            raise ValueError(f"{name} must be 0 or more, got {getattr(counters, name)}")
    return counters.queue_id


def _put_entity(op: PutEntity) -> int:
    _check_queue_id(op.entity.queue_id)
    for text in (op.entity.path, op.entity.kind, op.entity.description_json):
        if not isinstance(text, str):
            raise ValueError(f"the values of an entity must be text, got {type(text).__name__}")
    return op.entity.queue_id


def _delete_entity(op: DeleteEntity) -> int:
    _check_queue_id(op.queue_id)
    return op.queue_id


def _put_meta(op: PutMeta) -> int:
    if isinstance(op.value, bool) or not isinstance(op.value, str | int | bytes):
        kind = type(op.value).__name__
        raise ValueError(f"a meta value must be text, an integer or bytes, got {kind}")
    if isinstance(op.value, int):
        _check_number(op.key, op.value)
    return 0


_CHECKS: Final[dict[type[Any], Callable[[Any], int]]] = {
    PutChunk: _put_chunk,
    DeleteChunks: _range,
    Tombstone: _range,
    PutState: _put_state,
    ClearState: _range,
    SetChunkExpiry: _set_chunk_expiry,
    PutScheduled: _put_scheduled,
    DeleteScheduled: _delete_scheduled,
    PutSeen: _put_seen,
    ForgetSeen: _forget_seen,
    PutSessionState: _put_session_state,
    PutCounters: _put_counters,
    PutEntity: _put_entity,
    DeleteEntity: _delete_entity,
    PutMeta: _put_meta,
}

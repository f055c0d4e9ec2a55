"""Stores that cannot be opened, or that hold what no broker would write: one recipe for each.

    path = broken_store(tmp_path / "store.db", "two queues of one path")

A good store is made first, through the port: a queue ``orders`` with two messages, a topic
``news`` with the subscription ``red`` (one message, the rule ``$default``), and ``billing``, which
forwards to ``orders``. Then rows are added or taken away below the port, with good checksums,
because the port refuses such rows. All but the last few are what a namespace wrote after a refused
reset, at the time when a reset changed the machines first and wrote afterwards.

Every recipe but "a rule without its subscription" keeps each message that is named in ``MESSAGES``:
a repair has to find them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from twinbus.amqp.message.message import Message
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import default_rule
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record
from twinbus.broker.engine.write_batch import packed
from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import (
    ChunkRow,
    EntityRow,
    Op,
    PutChunk,
    PutCounters,
    PutEntity,
    QueueCounters,
)
from twinbus.broker.storage.sqlite_store import SqliteStore

SEQ_BITS: Final = 40
AT_MS: Final = 1_700_000_000_000
DEAD: Final = "/$deadletterqueue"
RED: Final = "news/subscriptions/red"
MESSAGES: Final = {"orders": ["first", "second"], RED: ["news"]}
"""What the good store holds, by entity."""
MORE: Final = ["third"]
"""What the second of two entities of one path holds, in the recipes that have one with messages."""


def good_store(path: Path) -> Path:
    """A store with nothing wrong about it; ids 1 to 8 are taken."""
    store = SqliteStore(path)
    store.open()
    try:
        store.commit(_good_ops())
    finally:
        store.close()
    return path


def broken_store(path: Path, recipe: str) -> Path:
    """A store with one thing wrong about it; ``recipe`` is a key of RECIPES."""
    good_store(path)
    connection = apsw.Connection(str(path))
    try:
        with connection:
            RECIPES[recipe](_Rows(connection))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()
    return path


class _Rows:
    """Rows of a store file, sealed as the store seals them, without its checks."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def put_entity(self, queue_id: int, path: str, kind: str, description_json: str) -> None:
        values = (queue_id, path, kind, description_json)
        sql = "INSERT OR REPLACE INTO entity VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, (*values, row_checksum.of_values(*values)))
        self._raise_last_id(queue_id)

    def put_counters(self, counters: QueueCounters) -> None:
        values = counters.values()
        sql = "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._connection.execute(sql, (*values, row_checksum.of_values(*values)))

    def put_messages(self, queue_id: int, *bodies: str) -> None:
        """One chunk with these messages, and the counters for it."""
        row, counters = _chunk(queue_id, *bodies)
        row_id = queue_id << SEQ_BITS | row.first_seq
        crc = row_checksum.of_blob(row_id, row.count, row.enqueued_ms, row.blob)
        values = (row_id, row.count, row.enqueued_ms, crc, row.blob)
        self._connection.execute("INSERT INTO chunk VALUES (?, ?, ?, ?, ?)", values)
        self.put_counters(counters)

    def drop_entity(self, queue_id: int) -> None:
        """The entity alone: its counters stay, unless they are dropped too."""
        self._connection.execute("DELETE FROM entity WHERE queue_id = ?", (queue_id,))

    def drop_counters(self, queue_id: int) -> None:
        self._connection.execute("DELETE FROM counters WHERE queue_id = ?", (queue_id,))

    def drop_chunks(self, queue_id: int) -> None:
        self._connection.execute("DELETE FROM chunk WHERE id >> 40 = ?", (queue_id,))

    def _raise_last_id(self, queue_id: int) -> None:
        ledger = self._connection.execute(
            "SELECT commit_number, queue_id_last, store_id FROM ledger"
        )
        number, last_id, store_id = ledger.get
        last_id = max(last_id, queue_id)
        crc = row_checksum.of_values(number, last_id, store_id)
        self._connection.execute("UPDATE ledger SET queue_id_last = ?, crc = ?", (last_id, crc))


# -- the good store ---------------------------------------------------------------------------


def _good_ops() -> list[Op]:
    billing = QueueDescription(path="billing", forward_to="orders", created_at_ms=AT_MS)
    return [
        *_queue_ops(1, QueueDescription(path="orders", created_at_ms=AT_MS), "first", "second"),
        _put(3, TopicDescription(path="news", created_at_ms=AT_MS)),
        PutCounters(QueueCounters(3)),
        *_queue_ops(4, SubscriptionDescription(path=RED, created_at_ms=AT_MS), "news"),
        PutEntity(EntityRow(6, f"{RED}/rules/$default", "rule", _default_rule())),
        *_queue_ops(7, billing),
    ]


def _queue_ops(queue_id: int, description: QueueDescription, *bodies: str) -> list[Op]:
    dead = EntityRow(queue_id + 1, description.path + DEAD, "dead-letter", "")
    ops: list[Op] = [
        _put(queue_id, description),
        PutCounters(QueueCounters(queue_id)),
        PutEntity(dead),
        PutCounters(QueueCounters(queue_id + 1)),
    ]
    if bodies:
        row, counters = _chunk(queue_id, *bodies)
        ops += [PutChunk(row), PutCounters(counters)]
    return ops


def _put(queue_id: int, description: QueueDescription) -> PutEntity:
    text = description.to_json()
    return PutEntity(EntityRow(queue_id, description.path, description.kind, text))


def _chunk(queue_id: int, *bodies: str) -> tuple[ChunkRow, QueueCounters]:
    records = [pack_record(Record(Message(body=body.encode()).encode())) for body in bodies]
    blob, _share = packed([IncomingMessage(record, None) for record in records])
    count, size = len(bodies), sum(map(len, records))
    counters = QueueCounters(queue_id, 1 + count, count, size, 0, 0)
    return ChunkRow(queue_id, 1, count, AT_MS, None, blob), counters


def _default_rule() -> str:
    return json.dumps(default_rule(AT_MS).to_dict(), sort_keys=True)


# -- what is wrong ----------------------------------------------------------------------------


def _put_queue(rows: _Rows, queue_id: int, description: QueueDescription) -> None:
    rows.put_entity(queue_id, description.path, description.kind, description.to_json())
    rows.put_counters(QueueCounters(queue_id))
    if not isinstance(description, TopicDescription):
        rows.put_entity(queue_id + 1, description.path + DEAD, "dead-letter", "")
        rows.put_counters(QueueCounters(queue_id + 1))


def _two_queues(rows: _Rows) -> None:
    _put_queue(rows, 9, QueueDescription(path="orders", created_at_ms=AT_MS))
    rows.put_messages(9, *MORE)


def _two_topics(rows: _Rows) -> None:
    _put_queue(rows, 9, TopicDescription(path="news", created_at_ms=AT_MS))


def _two_subscriptions(rows: _Rows) -> None:
    _put_queue(rows, 9, SubscriptionDescription(path=RED, created_at_ms=AT_MS))
    rows.put_messages(9, *MORE)
    _two_rules(rows, 11)


def _two_rules(rows: _Rows, rule_id: int = 9) -> None:
    rows.put_entity(rule_id, f"{RED}/rules/$default", "rule", _default_rule())


def _updated_only(rows: _Rows) -> None:
    """A queue that was made in memory alone and changed afterwards: one row, nothing else."""
    changed = QueueDescription(path="orders", max_delivery_count=3, created_at_ms=AT_MS)
    rows.put_entity(9, "orders", "queue", changed.to_json())


def _queue_and_topic(rows: _Rows) -> None:
    _put_queue(rows, 9, TopicDescription(path="orders", created_at_ms=AT_MS))


def _no_topic(rows: _Rows) -> None:
    rows.drop_entity(3)
    rows.drop_counters(3)


def _no_subscription(rows: _Rows) -> None:
    for queue_id in (4, 5):
        rows.drop_entity(queue_id)
        rows.drop_counters(queue_id)
        rows.drop_chunks(queue_id)


def _no_dead_letters(rows: _Rows) -> None:
    rows.drop_entity(2)
    rows.drop_counters(2)


def _dead_letters_alone(rows: _Rows) -> None:
    rows.put_entity(9, f"gone{DEAD}", "dead-letter", "")
    rows.put_counters(QueueCounters(9))


def _no_target(rows: _Rows) -> None:
    lost = QueueDescription(path="billing", forward_to="gone", created_at_ms=AT_MS)
    rows.put_entity(7, "billing", "queue", lost.to_json())


def _circle(rows: _Rows) -> None:
    back = QueueDescription(path="orders", forward_to="billing", created_at_ms=AT_MS)
    rows.put_entity(1, "orders", "queue", back.to_json())


def _unreadable(rows: _Rows) -> None:
    rows.put_entity(7, "billing", "queue", '{"version": 1, "path": "billing", "colour": "red"}')


def _unknown_kind(rows: _Rows) -> None:
    rows.put_entity(9, "relay", "relay", "{}")


RECIPES: Final[dict[str, Callable[[_Rows], None]]] = {
    "two queues of one path": _two_queues,
    "two topics of one path": _two_topics,
    "two subscriptions of one path": _two_subscriptions,
    "two rules of one path": _two_rules,
    "a queue that was only updated": _updated_only,
    "a queue and a topic of one path": _queue_and_topic,
    "a subscription without its topic": _no_topic,
    "a rule without its subscription": _no_subscription,
    "a queue without its dead-letter queue": _no_dead_letters,
    "a dead-letter queue without its queue": _dead_letters_alone,
    "a forward to nowhere": _no_target,
    "a circle of forwards": _circle,
    "a description that cannot be read": _unreadable,
    "an entity of an unknown kind": _unknown_kind,
}

"""One transaction of a namespace, and its parts when the store refuses an op of it as invalid.

    a b c d --refused--> a b | c d --refused--> c | d --refused--> d: refused, later tried alone
                         stored                 stored

A store refuses an op that breaks its rules before it writes anything
(broker/storage/operation_checks.py). That is a defect of the broker or an unchecked value of a
client, and not a failed disk.

Rule 1: queues between which messages move are one group and stay together, whatever is refused: a
        queue and its dead letters, a topic and its subscriptions, source and target of a forward.
        If they were written separately, a crash between the writes would lose or duplicate a
        message (rule M8).
Rule 2: the group with the invalid op is refused. All others are stored, each in its own part.
Rule 3: a group that was refused is written separately from the others until it is stored again,
        with a pause before each attempt: changes that the broker itself began are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from twinbus.broker.engine.audit_hooks import audited_path
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Topic
from twinbus.broker.metering import AuditLine
from twinbus.broker.namespace.administrative_changes import PlannedChanges
from twinbus.broker.storage.interface import Op, PutChunk, PutCounters, PutSeen

__all__ = ["Move", "RefusedQueues", "Transaction", "groups_of"]

Move = tuple[Queue, Queue]
"""Where a forwarded message was, and where it goes."""


@dataclass(slots=True)
class Transaction:
    """The changes of one commit."""

    queues: list[Queue]
    queue_ops: list[Op]
    planned: PlannedChanges | None
    ops: list[Op]
    """All of it, in order."""
    is_large: bool = False
    """It is put together, applied and reported in steps."""
    moves: list[Move] = field(default_factory=list)
    audit_lines: list[AuditLine] = field(default_factory=list)
    """Written once it is on disk."""

    def halves(self) -> list[Transaction]:
        """Two transactions with half of the groups each; none if there is one group."""
        groups = groups_of(self.queues, self.moves)
        if len(groups) < 2:
            return []
        middle = len(groups) // 2
        return [self._part(groups[:middle]), self._part(groups[middle:])]

    def _part(self, groups: list[list[Queue]]) -> Transaction:
        queues = {queue: None for group in groups for queue in group}
        ids = {queue.queue_id for queue in queues}
        names = {audited_path(queue) for queue in queues}
        ops = [op for op in self.queue_ops if _queue_id_of(op) in ids]
        return Transaction(
            list(queues),
            ops,
            None,
            ops,
            self.is_large,
            [move for move in self.moves if move[0] in queues],
            [line for line in self.audit_lines if line["entity"] in names],
        )


def groups_of(queues: Iterable[Queue], moves: Iterable[Move]) -> list[list[Queue]]:
    """The queues, in their order, those that have to be written together in one list."""
    leaders: dict[Queue, Queue] = {queue: queue for queue in queues}

    def leader_of(queue: Queue) -> Queue:
        while leaders[queue] is not queue:
            queue = leaders[queue]
        return queue

    def join(one: Queue, other: Queue | None) -> None:
        if one in leaders and other in leaders:
            leaders[leader_of(other)] = leader_of(one)

    for queue in leaders:
        join(queue, queue.dead_letters)
        if isinstance(queue, Topic):
            for subscription in queue.subscriptions.values():
                join(queue, subscription)
    for source, target in moves:
        join(source, target)
    groups: dict[Queue, list[Queue]] = {}
    for queue in leaders:
        groups.setdefault(leader_of(queue), []).append(queue)
    return list(groups.values())


def _queue_id_of(op: Op) -> int:
    if isinstance(op, PutChunk | PutSeen):
        return op.row.queue_id
    if isinstance(op, PutCounters):
        return op.counters.queue_id
    queue_id: int = getattr(op, "queue_id", 0)
    return queue_id


class RefusedQueues:
    """The queues whose last batch was refused."""

    def __init__(self) -> None:
        self._until_s: dict[Queue, float] = {}
        """Before then they are not tried again."""
        self._was_apart = False

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def refused(self, queues: Iterable[Queue], until_s: float) -> None:
        self._until_s.update(dict.fromkeys(queues, until_s))

    def stored(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._until_s.pop(queue, None)

    def try_now(self) -> None:
        """Try all of them with the next transaction: the namespace is closing."""
        self.refused(list(self._until_s), 0.0)

    def choose(self, dirty: list[Queue], moves: Iterable[Move], now_s: float) -> list[Queue]:
        """The queues of the next transaction: refused ones or others, alternately."""
        due: dict[Queue, None] = {}
        resting: dict[Queue, None] = {}
        for group in groups_of(dirty, moves):
            until_s = [self._until_s[queue] for queue in group if queue in self._until_s]
            if until_s:
                (due if max(until_s) <= now_s else resting).update(dict.fromkeys(group))
        others = [queue for queue in dirty if queue not in due and queue not in resting]
        self._was_apart = bool(due) and not (self._was_apart and others)
        return [queue for queue in dirty if queue in due] if self._was_apart else others

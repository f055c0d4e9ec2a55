"""One namespace: its queues, its store, and the commits of their changes.

    clients --> queue machines --touch()--> settle down: deliver, request reads, flush
                                                  |
              acknowledgements <-- committed <-- writer thread (one transaction at a time)

Rule 1: at most one transaction is in progress. All changes meanwhile go into the next one, so the
        busier the broker is, the more messages share a commit.
Rule 2: nothing is acknowledged before its commit has returned (rule M8).
Rule 3: on a full disk, changes of clients are refused and the namespace continues. A failed disk
        ends the namespace: after a failed fsync its content is unknown. An op that the store
        refuses as invalid is neither: what it belongs to is refused, all else is stored
        (transaction.py).
Rule 4: entities are created, changed and deleted by changes that are planned, written, and only
        then applied (administrative_changes.py); in a transaction they come behind the messages
        that were sent before.
Rule 5: a transaction of thousands of changes is put together, applied and reported in steps of a
        few milliseconds, with turns of others between them. Until the last one is done there is no
        other transaction. The batches of its queues are closed a few at a time, each with its dead
        letters; nothing moves from one queue to another before all of them are closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.rules import RuleSet
from twinbus.broker.access.sas import Audience
from twinbus.broker.engine.audit_hooks import audited_path
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.write_batch import QUEUE_COST, TICKET_COST, CommitCallback, Frozen
from twinbus.broker.fairness.buffered_bytes import INPUT_BYTES_MAX, OUTPUT_BYTES_MAX
from twinbus.broker.fairness.loop_turns import Loop, Turns
from twinbus.broker.fairness.read_turns import ReaderTurns
from twinbus.broker.fairness.shares import SharedCapacity
from twinbus.broker.faults.effects import FaultEffects
from twinbus.broker.faults.injection import holds_back, inject_commit
from twinbus.broker.faults.registry import FaultRegistry
from twinbus.broker.metering import NamespaceMetering
from twinbus.broker.namespace.administrative_changes import (
    FutureCommit,
    NamespaceChange,
    PendingChanges,
    PlannedChanges,
)
from twinbus.broker.namespace.background_tasks import BackgroundTasks, entities_kept_by
from twinbus.broker.namespace.catalogue import Applied, Catalogue
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.store_access import StoreThread, submit_read
from twinbus.broker.namespace.transaction import Move, RefusedQueues, Transaction
from twinbus.broker.options import BrokerOptions
from twinbus.broker.storage.interface import Op, Store
from twinbus.broker.throttle import Throttle
from twinbus.broker.violation_log import ViolationLog
from twinbus.common.clock import Clock, Instant
from twinbus.errors import ConfigurationError, StoreFailed, StoreFull, StoreRefused

logger = logging.getLogger("twinbus.broker")

# After a full disk refused a transaction, the broker's own changes are tried again after this.
FULL_DISK_PAUSE_S = 1.0
# How long a topic passes messages on before others have their turn. One step of it, which can
# take 3 ms at worst, comes on top.
FAN_OUT_TURN_S = 0.001
# How long a queue delivers messages before others have their turn.
DELIVER_TURN_S = 0.002
# How long queues are served before others have their turn.
SERVE_TURN_S = 0.002
# What costs more than this (in microseconds or so) is done in steps, each about as long.
STEP_COST = 2_000.0
# A step ends after this time, also if it costs more than estimated.
STEP_S = 0.002
# Between two checks of the time: callbacks that are called, or queues that are closed.
REPORTED_COUNT = 64
CLOSED_COUNT = 64
# Runs of locks of a deleted entity that are freed in one step.
LOCKS_AT_ONCE = 256
# Links whose drain is answered in one go.
DRAINED_COUNT = 128
# What it costs, in microseconds or so, to create or remove an entity.
ENTITY_COST = 20.0
# To free a rule; and an op of a change.
RULE_COST = 3.0
OP_COST = 0.3
# Ops of a change that are freed in one step.
OPS_FREED_COUNT = 4_096
# After this time in a callback, the next part has a callback of its own.
ENOUGH_S = 0.001
# How long links are checked, after a change of rights, before others have their turn.
RECHECK_TURN_S = 0.002
# How often the free disk space is read.
DISK_CHECK_S = 2.0
# How many entities of a refused part are named in the log.
REFUSED_PATHS_SHOWN = 3


def disk_failed() -> AmqpError:
    """The error for clients after the disk failed."""
    return AmqpError(
        Condition.INTERNAL_ERROR,
        "The broker stopped because its disk failed. Contact the operator of the broker.",
    )


class Namespace:
    """A running namespace. All methods are called on the event loop's thread."""

    def __init__(
        self,
        name: str,
        store: Store,
        rules: RuleSet,
        options: BrokerOptions,
        clock: Clock,
        chance: Random,
        *,
        loop: Loop | None = None,
        turns: Turns | None = None,
        start_thread: Callable[..., StoreThread] = StoreThread,
    ) -> None:
        self.name = name
        self.rules = rules
        self.options = options
        self.clock = clock
        self.throttle = Throttle(options.thresholds)
        self.links = SharedCapacity(options.links_max)
        self.unsettled = SharedCapacity(options.unsettled_max)
        self.input = SharedCapacity(INPUT_BYTES_MAX)
        self.output = SharedCapacity(OUTPUT_BYTES_MAX)
        self.metering = NamespaceMetering(
            name,
            options.metering_path,
            clock,
            chance,
            audit=options.audit,
            keep_days=options.keep_days,
        )
        self.meter = self.metering.meter
        self.violations = ViolationLog(name)
        self.failure: Exception | None = None
        self.on_failure: set[Callable[[Exception], None]] = set()
        """Called when the disk has failed, for waiting callers without a connection."""
        self.audience = Audience(frozenset({"localhost"}), 0)
        self.peers: set[Any] = set()
        self.linked: Counter[str] = Counter()
        """Links that are open, by the entities that they are a use of (background_tasks.py)."""
        self.rights_version = 0
        """Changes whenever a key, a rule or an entity has changed that links may depend on."""
        self._store = store
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self.reader_turns = ReaderTurns(later=self._loop.call_soon)
        self.turns = turns or Turns(self._loop)
        self.fault_effects = FaultEffects(self)
        self.faults = FaultRegistry(clock, self._loop, chance, self.fault_effects)
        self.catalogue = Catalogue(store.open(), chance, self.metering.audit)
        self._writer = start_thread(
            f"twinbus-writer-{name}", self._loop.call_soon_threadsafe, store.maintain
        )
        self._reader = start_thread(f"twinbus-reader-{name}", self._loop.call_soon_threadsafe)
        self._read_count = 0
        self._touched: dict[Queue, None] = {}
        self._is_settling = False
        self._is_flushing_soon = False
        self._is_closing = False
        """The batches of a large transaction are being closed."""
        self._changes = PendingChanges()
        self._committing: Transaction | None = None
        self._parts: list[Transaction] = []
        """The parts of a transaction that the store refused as invalid: each is committed alone."""
        self._refused = RefusedQueues()
        self._refused_retry: asyncio.TimerHandle | None = None
        self._moves: dict[Move, None] = {}
        """Forwards in the open batches."""
        self._reporting: Iterator[float] | None = None
        """The results of a large transaction that are still to be reported."""
        self._timers: dict[Queue, tuple[float, asyncio.TimerHandle]] = {}
        self._drains: dict[Queue, list[Callable[[], None]]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event = asyncio.Event()
        self._disk_check: asyncio.TimerHandle | None = None
        self.metering.start(self._loop, self.run_beside_commits)
        for queue in self.catalogue.machines():
            self.touch(queue)
        self.background_tasks = BackgroundTasks(self)
        self._check_disk_space()

    def run_beside_commits(self, job: Callable[[], None]) -> None:
        """Run a blocking job between two transactions; it handles its own errors."""
        self._writer.submit(job, _done)

    def now(self) -> Instant:
        return self.clock.now()

    def note_link(self, path: str, change: int) -> None:
        """A link was opened (1) or closed (-1)."""
        linked = self.linked
        for entity in entities_kept_by(path):
            linked[entity] += change
            if not linked[entity]:
                del linked[entity]

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def store_statistics(self) -> dict[str, Any]:
        """Sizes and versions of the store."""
        return self._store.statistics()._asdict()

    def rules_for(self, path: str) -> RuleSet | None:
        """The access rules of the namespace ("") or of one entity."""
        if not path:
            return self.rules
        queue = self.catalogue.find(path)
        return None if queue is None else queue.description.authorization_rules

    # -- serving queues -------------------------------------------------------------------

    def touch(self, queue: Queue) -> None:
        """Something about the queue changed: serve it once this turn of the loop is over."""
        self._touched[queue] = None
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle_down)

    def submit(
        self, plan: Callable[[Draft], object], done: Callable[[Exception | None], None]
    ) -> None:
        """Plan an administrative change with the next transaction, write it, and apply it."""
        if self.failure is not None:
            done(self.failure)
            return
        self._changes.add(NamespaceChange(plan, done))
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle_down)

    def _settle_down(self, serve_s: float | None = None) -> None:
        self._is_settling = False
        if self._is_closing:
            return  # It continues when all batches of the transaction are closed.
        touched, self._touched = self._touched, {}
        now = self.now()
        turn_s = SERVE_TURN_S if serve_s is None else serve_s
        began_s = time.monotonic()
        waiting = iter(touched)
        for queue in waiting:
            self._serve(queue, now)
            if time.monotonic() - began_s > turn_s:
                break
        # One frame may touch a thousand queues: the others are served before those come again.
        if rest := dict.fromkeys(waiting):
            self._touched = {**rest, **self._touched}
            self._settle_soon()
        if self._committing is None and self._retry is None:
            if time.monotonic() - began_s > ENOUGH_S:
                self._flush_soon()
            else:
                self._flush(now)

    def _flush_soon(self) -> None:
        if not self._is_flushing_soon:
            self._is_flushing_soon = True
            self._loop.call_soon(self._flush_if_free)

    def _flush_if_free(self) -> None:
        self._is_flushing_soon = False
        if self._committing is None and self._retry is None:
            self._flush(self.now())

    def _serve(self, queue: Queue, now: Instant) -> None:
        if queue.is_deleted:
            return
        if queue.wants_turn:
            self._give_turn(queue, now)
        if self.faults.has_no_faults or not holds_back(self, queue):
            for grant in queue.deliver(now):
                grant.consumer.deliver(grant)
            if queue.has_more:
                self._deliver_more(queue, now)
        if queue.sessions is not None and queue.sessions.notify_some():
            self.touch(queue)
        for request in queue.take_requests():
            submit_read(self, queue, request)
        if queue.is_dirty:
            self.catalogue.dirty[queue] = None
        if self._drains and not (queue.is_reading or queue.has_more):
            self._report_drained(queue)
        self._set_timer(queue, now)

    def _report_drained(self, queue: Queue) -> None:
        """Notify the waiting receivers that they have all messages, a few at a time."""
        waiting = self._drains.pop(queue, [])
        if len(waiting) > DRAINED_COUNT:
            self._drains[queue] = waiting[DRAINED_COUNT:]
            self.touch(queue)
        for drained in waiting[:DRAINED_COUNT]:
            drained()

    def _deliver_more(self, queue: Queue, now: Instant) -> None:
        """Deliver messages for a while; the rest follows after the turns of others."""
        stop_s = time.monotonic() + DELIVER_TURN_S
        while queue.has_more:
            if time.monotonic() > stop_s:
                self.touch(queue)
                return
            for grant in queue.deliver(now):
                grant.consumer.deliver(grant)
            if queue.sessions is not None:
                queue.sessions.notify_some()

    def _give_turn(self, queue: Queue, now: Instant) -> None:
        """Let a topic pass messages on for a while; the rest follows after the turns of others."""
        stop_s = time.monotonic() + FAN_OUT_TURN_S
        while queue.wants_turn:
            queue.take_turn(now)
            if time.monotonic() > stop_s:
                self.touch(queue)
                return

    @property
    def is_quiet(self) -> bool:
        """No read or commit is in progress, and everything that was due has happened."""
        return not (self._has_to_write or self._read_count or self._touched)

    @property
    def _has_to_write(self) -> bool:
        """A transaction is in progress, or may be put together soon."""
        return bool(self._is_settling or self._is_flushing_soon or self._committing)

    def drain(self, queue: Queue, drained: Callable[[], None]) -> None:
        """Call ``drained`` once everything that the queue has in memory was delivered."""
        self._drains.setdefault(queue, []).append(drained)
        self.touch(queue)

    def _set_timer(self, queue: Queue, now: Instant) -> None:
        at_s = queue.next_timer_s(now)
        known = self._timers.get(queue)
        if at_s is None or (known is not None and known[0] <= at_s):
            return
        if known is not None:
            known[1].cancel()
        delay_s = max(0.0, at_s - now.monotonic_s)
        handle = self._loop.call_later(delay_s, self._on_timer, queue)
        self._timers[queue] = (at_s, handle)

    def _on_timer(self, queue: Queue) -> None:
        self._timers.pop(queue, None)
        queue.handle_timer(self.now())
        self.touch(queue)

    def clock_moved(self) -> None:
        """The clock was moved: every timer was set by the old time."""
        self.faults.run_due()
        for queue, (_at_s, handle) in list(self._timers.items()):
            handle.cancel()
            self._on_timer(queue)
        for peer in list(self.peers):
            peer.clock_moved()
        self.background_tasks.clock_moved()

    # -- writing --------------------------------------------------------------------------

    def _flush(self, now: Instant) -> None:
        planned = self._plan_changes()
        is_alone = planned is not None and planned.is_alone
        queues = [] if is_alone else self._take_dirty(now)
        if self.failure is not None or not (queues or planned is not None):
            self._drained.set()
            return
        self._drained.clear()
        self.throttle.commit_began_at_s = now.monotonic_s
        ops: list[Op] = []
        cost = 0.0
        for queue in queues:
            cost += queue.closing_cost
            if cost > STEP_COST:
                break
        if planned is not None:
            cost += len(planned.draft.changed) * ENTITY_COST
            cost += planned.draft.removed_rule_count * RULE_COST
        transaction = Transaction(queues, ops, planned, ops, cost > STEP_COST)
        if self._moves:
            transaction.moves = self._take_moves(queues)
        if transaction.is_large:
            self._committing = transaction
            self._is_closing = True
            self._loop.call_soon(self._take_steps, self._close_in_steps(transaction, now))
            return
        for queue in queues:
            ops += queue.close_batch(now)
        for _cost in self._write_plan(transaction):
            pass
        self._begin_commit(transaction)

    def _close_in_steps(self, transaction: Transaction, now: Instant) -> Iterator[float]:
        closed: list[Queue] = []
        frozen: list[Frozen] = []
        for number, queue in enumerate(transaction.queues, 1):
            # An entity and its dead letters at the same moment, also if one of them had no changes
            # when this began: a message may be dead-lettered between two steps.
            for machine in (queue.family, queue.family.dead_letters):
                if machine is not None and machine.is_dirty:
                    closed.append(machine)
                    frozen.append(machine.freeze(now))
            if number % CLOSED_COUNT == 0:
                yield CLOSED_COUNT * QUEUE_COST
        transaction.queues = closed
        self._is_closing = False
        if self._touched:
            self._settle_soon()
        for queue, each in zip(closed, frozen, strict=True):
            yield from queue.write_down(each, now, transaction.queue_ops)
            yield QUEUE_COST
        yield from self._write_plan(transaction)
        self._begin_commit(transaction)

    def _write_plan(self, transaction: Transaction) -> Iterator[float]:
        if transaction.planned is not None:
            # Behind the messages: those that were sent to an entity are deleted with it.
            transaction.ops = list(transaction.queue_ops)
            for count in transaction.planned.draft.write_down(transaction.ops):
                yield count * OP_COST

    def _begin_commit(self, transaction: Transaction) -> None:
        transaction.audit_lines = self.metering.take_lines()
        self._submit_commit(transaction)

    def _take_steps(self, steps: Iterator[float]) -> None:
        """Continue a long operation; the rest of it follows after the turns of others."""
        spent, stop_s = 0.0, time.monotonic() + STEP_S
        for cost in steps:
            spent += cost
            if spent >= STEP_COST or time.monotonic() > stop_s:
                self._loop.call_soon(self._take_steps, steps)
                return

    def _plan_changes(self) -> PlannedChanges | None:
        """The administrative changes of the next transaction, if any is waiting and valid."""
        if not self._changes or self.failure is not None:
            return None
        planned = self._changes.plan(self.catalogue.plan())
        if self._changes:
            self._settle_soon()
        if planned.changes and not planned.draft.ops:
            # There is nothing to write.
            planned.notify(None)
        return planned if planned.draft.ops else None

    def _submit_commit(self, transaction: Transaction) -> None:
        self._committing = transaction
        commit = self.metering.commit_with_audit(
            partial(self._store.commit, transaction.ops), transaction.audit_lines
        )
        self._writer.submit(
            commit if self.faults.has_no_faults else inject_commit(self.faults, commit),
            self._on_committed,
        )

    def _take_dirty(self, now: Instant) -> list[Queue]:
        """The queues with something to write, each with those that must be written with it."""
        dirty, self.catalogue.dirty = self.catalogue.dirty, {}
        # Those that are still to be served may share changes with others: a topic with its
        # subscriptions, a queue with its dead letters. They are stored together or not at all.
        dirty.update((queue, None) for queue in self._touched if not queue.is_deleted)
        machines: dict[Queue, None] = {}
        for queue in dirty:
            # Also of a dead-letter queue: its new messages have left the entity of that queue.
            machines[queue.family] = None
            for companion in queue.family.joined_queues(now):
                machines[companion] = None
        changed = [machine for machine in machines if machine.is_dirty]
        if not self._refused:
            return changed
        taken = self._refused.choose(changed, self._moves, now.monotonic_s)
        self.catalogue.dirty = dict.fromkeys(changed)
        for queue in taken:
            del self.catalogue.dirty[queue]
        return taken

    def note_move(self, source: Queue, target: Queue) -> None:
        """A message goes from one queue to another with the next transaction of both."""
        self._moves[source, target] = None

    def _take_moves(self, queues: list[Queue]) -> list[Move]:
        taken = [move for move in self._moves if move[0] in queues]
        for move in taken:
            del self._moves[move]
        return taken

    def _on_committed(self, _result: None, error: Exception | None) -> None:
        transaction = self._committing
        if transaction is None:
            return
        began_s = time.monotonic()
        if isinstance(error, ValueError):
            # Nothing was stored, and the disk works.
            logger.error("Namespace %s: the store refused a change: %s", self.name, error)
            parts = self._parts_of(transaction, error)
            self._parts[:0] = parts
            if parts or not transaction.queues:
                self._end_commit()
                if self._committing is None and self._retry is None:
                    self._settle_down()
                return
            error = StoreRefused(str(error))
        if transaction.is_large:
            self._reporting = self._report_in_steps(transaction, error)
            self._take_steps(self._reporting)
            return
        self._committing = None
        if error is None:
            self._report_stored(transaction)
        else:
            self._note_refusal(transaction, error)
            self._report_refused(transaction, error)
        self._end_commit()
        if self._committing is None and self._retry is None:
            if time.monotonic() - began_s > ENOUGH_S:
                self._settle_soon()
            else:
                self._settle_down()

    def _end_commit(self) -> None:
        """The transaction was reported, or split; commit the next part of it, if any."""
        self._committing = None
        if self._parts:
            self._submit_commit(self._parts.pop(0))
        else:
            self.throttle.commit_began_at_s = None

    def _report_in_steps(
        self, transaction: Transaction, error: Exception | None
    ) -> Iterator[float]:
        """The same as for a small transaction, which is in progress until all is reported."""
        try:
            if error is None:
                yield from self._report_stored_in_steps(transaction)
            else:
                yield from self._report_refused_in_steps(transaction, error)
        finally:
            # Also if a callback has raised an error: the namespace continues.
            self._reporting = None
            self._end_commit()
        if self._committing is None and self._retry is None:
            self._settle_soon()

    def _parts_of(self, transaction: Transaction, error: ValueError) -> list[Transaction]:
        """What to try separately; nothing when it is known what the invalid op belongs to."""
        planned = transaction.planned
        if planned is None:
            return transaction.halves()
        if not transaction.queues and len(planned.changes) == 1:
            planned.notify(StoreRefused(str(error)))
            return []
        self._changes.try_alone(planned)
        if not transaction.queues:
            return []
        transaction.planned, transaction.ops = None, transaction.queue_ops
        return [transaction]

    def _report_stored(self, transaction: Transaction) -> None:
        for queue in transaction.queues:
            for waiting, seqs in queue.committed():
                try:
                    waiting.stored(seqs)
                except Exception as error:
                    self._note_mistake(error)
            self._touched[queue] = None
        for _cost in self._apply_planned(transaction):
            pass

    def _report_stored_in_steps(self, transaction: Transaction) -> Iterator[float]:
        for queue in transaction.queues:
            callbacks: list[tuple[CommitCallback, range]] = []
            yield from queue.commit_in_steps(callbacks)
            for at in range(0, len(callbacks), REPORTED_COUNT):
                for waiting, seqs in callbacks[at : at + REPORTED_COUNT]:
                    try:
                        waiting.stored(seqs)
                    except Exception as error:
                        self._note_mistake(error)
                yield REPORTED_COUNT * TICKET_COST
            self.touch(queue)
        yield from self._apply_planned(transaction)

    def _apply_planned(self, transaction: Transaction) -> Iterator[float]:
        if self._refused:
            self._refused.stored(transaction.queues)
        if transaction.planned is not None:
            # Before the next transaction is put together: it must not use deleted entities.
            notify = partial(transaction.planned.notify, None)
            yield from self._apply(transaction.planned.draft, notify)
            while transaction.ops:
                del transaction.ops[-OPS_FREED_COUNT:]
                yield STEP_COST
            for count in transaction.planned.draft.free_rules():
                yield count * RULE_COST

    def _note_refusal(self, transaction: Transaction, error: Exception) -> None:
        self._moves.update(dict.fromkeys(transaction.moves))
        if isinstance(error, StoreRefused):
            self._set_apart(transaction.queues, error)
            return
        if not isinstance(error, StoreFull):
            self._fail(error)
        logger.error("Namespace %s: a change could not be stored: %s", self.name, error)
        if transaction.planned is not None:
            transaction.planned.notify(error)

    def _set_apart(self, queues: list[Queue], error: StoreRefused) -> None:
        now_s = self.now().monotonic_s
        paths = ", ".join(audited_path(queue) for queue in queues[:REFUSED_PATHS_SHOWN])
        self.violations.note(f"changes of {paths} were refused: {error.detail}", now_s)
        self._refused.refused(queues, now_s + FULL_DISK_PAUSE_S)
        if self._refused_retry is None:
            self._refused_retry = self._loop.call_later(FULL_DISK_PAUSE_S, self._try_refused)

    def _try_refused(self) -> None:
        self._refused_retry = None
        self._settle_soon()

    def _report_refused(self, transaction: Transaction, error: Exception) -> None:
        for queue in transaction.queues:
            for waiting in queue.failed():
                self._report_failed(waiting, error)
            self._touched[queue] = None
        self._pause(error)

    def _report_refused_in_steps(
        self, transaction: Transaction, error: Exception
    ) -> Iterator[float]:
        self._note_refusal(transaction, error)
        # All at once: a message that was moved between two queues is active in its source again.
        refused = [waiting for queue in transaction.queues for waiting in queue.failed()]
        for at in range(0, len(refused), REPORTED_COUNT):
            for waiting in refused[at : at + REPORTED_COUNT]:
                self._report_failed(waiting, error)
            yield 2 * REPORTED_COUNT * TICKET_COST
        for queue in transaction.queues:
            self._touched[queue] = None
        self._pause(error)

    def _report_failed(self, waiting: CommitCallback, error: Exception) -> None:
        try:
            waiting.failed(error)
        except Exception as mistake:
            self._note_mistake(mistake)

    def _note_mistake(self, error: Exception) -> None:
        """A callback of a commit has raised an error. The others are called all the same: a queue
        without its result would wait for the commit for ever."""
        self.violations.note_mistake(
            "the result of a commit could not be reported",
            error,
            self.now().monotonic_s,
            address="",
            is_stranger=False,
        )

    def _pause(self, error: Exception) -> None:
        """On a full disk nothing is tried for a while; invalid changes have their own pause."""
        if self.failure is None and self._retry is None and not isinstance(error, StoreRefused):
            self._retry = self._loop.call_later(FULL_DISK_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._settle_down()

    def _fail(self, error: Exception) -> None:
        """The disk failed: nothing more is acknowledged, and all clients and callers get the error.

        A send in progress is not answered: it may be on disk or not.
        """
        if self.failure is not None:
            return
        self.failure = error
        for peer in list(self.peers):
            peer.cut(disk_failed())
        self._changes.fail(error)
        for callback in list(self.on_failure):
            callback(error)

    # -- reading --------------------------------------------------------------------------

    def read(
        self,
        queue: Queue,
        job: Callable[[Store], Any],
        done: Callable[[Any], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Read on the reader's thread; ``done`` gets the result before chunks are dropped.

        A job that may take long is a generator (store_access.py): queues take turns.
        ``lost`` is called instead if there will be none.
        """
        read = queue.chunk_cache.grace.begin_read()
        self._read_count += 1

        def answered(result: Any, error: Exception | None) -> None:
            try:
                if error is None:
                    done(result)
                elif not queue.is_deleted:
                    # Of a deleted queue, housekeeping may have removed a part: that is no damage.
                    logger.critical("Namespace %s: the store cannot be read: %s", self.name, error)
                    self._fail(error)
                if error is not None and lost is not None:
                    lost()
            finally:
                self._read_count -= 1
                queue.chunk_cache.grace.end_read(read)
            self.touch(queue)

        self._reader.submit(partial(job, self._store), answered, queue)

    # -- entities -------------------------------------------------------------------------

    async def create_queue(
        self, description: QueueDescription, rules: Sequence[RuleDescription] | None = None
    ) -> Queue:
        """Create a queue, topic or subscription; it exists on disk when this returns."""
        await self.changed(lambda draft: draft.create(description, rules, self.now().wall_ms))
        queue = self.catalogue.find(description.path)
        if queue is None or queue.description.kind != description.kind:
            # The namespace was reset, or the entity deleted, as soon as it existed.
            raise ConfigurationError(
                f"The {description.kind} {description.path!r} no longer exists"
            )
        return queue

    async def update_queue(
        self,
        queue: Queue,
        description: QueueDescription,
        check: Callable[[QueueDescription], None] | None = None,
    ) -> None:
        """Change an entity's properties; the new ones are in effect when this returns.

        ``check`` gets the properties that are replaced, when they are known, and may raise.
        """
        queue_id, old = queue.queue_id, queue.description

        def plan(draft: Draft) -> None:
            if check is not None:
                check(draft.expect(queue_id, old).description)
            draft.update(queue_id, old, description, self.now().wall_ms)

        await self.changed(plan)

    async def delete_queue(self, queue: Queue) -> None:
        """Delete an entity and everything in it; links to it are detached.

        On a full disk it is refused, and the entity is unchanged.
        """
        path = queue.description.path
        await self.changed(lambda draft: draft.delete(queue.queue_id, path))

    async def changed(self, plan: Callable[[Draft], object]) -> None:
        """Return once the change is on disk and applied; if it is refused nothing has changed."""
        done: asyncio.Future[None] = self._loop.create_future()
        self.submit(plan, FutureCommit(done).finish)
        await done

    def _apply(self, draft: Draft, done: Callable[[], None]) -> Iterator[float]:
        """The plan is on disk: machines are removed, created and changed, and links are checked.

        ``done`` is called when no link to a deleted entity is left. A step is an entity.
        """
        applied = Applied()
        for _step in self.catalogue.apply_in_steps(draft, applied):
            yield ENTITY_COST
        for queue in applied.removed:
            self._withdraw(queue)
            yield ENTITY_COST
            for machine in (queue, queue.dead_letters):
                while machine is not None and machine.locks.let_go(LOCKS_AT_ONCE):
                    yield LOCKS_AT_ONCE * TICKET_COST
        for queue in (*applied.created, *applied.updated):
            self.background_tasks.entity_changed(queue)
            yield QUEUE_COST
        for queue in applied.updated:
            self.touch(queue)
        if applied.removed or applied.ends_rights:
            self._recheck_peers(done)
        else:
            done()

    def _recheck_peers(self, done: Callable[[], None]) -> None:
        """Have every connection check its links, at the latest before its next operation."""
        self.rights_version += 1
        self._recheck_some(deque(self.peers), done)

    def _recheck_some(self, peers: deque[Any], done: Callable[[], None]) -> None:
        stop_s = time.monotonic() + RECHECK_TURN_S
        while peers:
            if peers[0].recheck(stop_s):
                peers.popleft()
            if peers and time.monotonic() > stop_s:
                self._loop.call_soon(self._recheck_some, peers, done)
                return
        done()

    def _withdraw(self, queue: Queue) -> None:
        """An entity was deleted: waiting operations fail, and background tasks end."""
        kind, path = queue.description.kind, queue.description.display_path
        gone = AmqpError(Condition.NOT_FOUND, f"The {kind} {path!r} was deleted.")
        for machine in (queue, queue.dead_letters):
            if machine is not None:
                self._forget(machine, gone)
                if machine.audit_sink is not None:
                    machine.audit_sink.deleted(machine)
        self.background_tasks.entity_changed(queue)
        self.throttle.forget(queue.queue_id)
        self.meter.note_deleted(queue.description.path, self.catalogue.entries.__contains__)

    def _forget(self, queue: Queue, reason: AmqpError) -> None:
        for ticket in queue.discard():
            self._report_failed(ticket, reason)
        self._refused.stored([queue])
        self.catalogue.dirty.pop(queue, None)
        self._drains.pop(queue, None)
        _at_s, timer = self._timers.pop(queue, (0.0, None))
        if timer is not None:
            timer.cancel()

    def replace_rules(self, rules: RuleSet) -> None:
        """The namespace's keys changed: links that used an old one are detached."""
        self.rules = rules
        self._recheck_peers(_nothing)

    # -- the disk, and closing ------------------------------------------------------------

    def _check_disk_space(self) -> None:
        """Read the free disk space for as long as the namespace runs. While it cannot be read (a
        mount is unavailable for a moment) the last value stays."""
        directory: Path | None = self.options.data_directory
        if directory is None:
            return
        try:
            self.throttle.disk_free_bytes = shutil.disk_usage(directory).free
        except OSError as error:
            now_s = self.now().monotonic_s
            self.violations.note(f"free disk space cannot be read: {error.strerror}", now_s)
        self._disk_check = self._loop.call_later(DISK_CHECK_S, self._check_disk_space)

    async def close(self) -> None:
        """Store what was accepted, answer waiting clients, and close the store."""
        self.fault_effects.network.close()
        self.faults.clear()
        for peer in list(self.peers):
            peer.stop_reading()
        self.background_tasks.stop()
        self._refused.try_now()
        self._settle_down(math.inf)
        try:
            await asyncio.wait_for(self._until_drained(), self.options.close_timeout_s)
        except TimeoutError:
            logger.warning("Namespace %s: closing while changes wait for the disk", self.name)
        self._report_the_rest()
        for peer in list(self.peers):
            peer.leave()
        for _at_s, handle in self._timers.values():
            handle.cancel()
        for timer in (self._retry, self._refused_retry, self._disk_check):
            if timer is not None:
                timer.cancel()
        self._changes.fail(StoreFailed(path=self.name, detail="the namespace was closed"))
        self.metering.stop()
        await asyncio.to_thread(self._stop_threads)
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)
        await self.metering.close()

    def _report_the_rest(self) -> None:
        """Report what is on disk before the connections are closed."""
        while self._reporting is not None:
            next(self._reporting, None)

    async def _until_drained(self) -> None:
        while self._has_to_write or self._retry is not None:
            self._drained.clear()
            await self._drained.wait()

    def _stop_threads(self) -> None:
        self._reader.stop()
        self._writer.stop()
        self._store.close()


def _done(_result: None, _error: Exception | None) -> None:
    """No caller waits for it."""


def _nothing() -> None:
    """No caller waits."""

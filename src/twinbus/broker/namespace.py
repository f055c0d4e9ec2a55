"""One namespace: its queues, its store, and the rhythm in which changes reach the disk.

    peers --> queue machines --touch()--> settle down: pump, ask reads, flush
                                                  |
              acknowledgements <-- committed <-- writer thread (one transaction at a time)

Rule 1: at most one transaction is on its way. Everything that changes meanwhile goes into the
        next one, so the busier the broker is, the more messages share a commit.
Rule 2: nobody is told anything before the commit that carries it has returned (rule M8).
Rule 3: a disk that is full refuses what came from peers and goes on. A disk that failed ends
        the namespace: after a failed fsync nobody knows what is on it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.claims import RuleSet
from twinbus.broker.access.sas import Audience
from twinbus.broker.caretakers import Caretakers
from twinbus.broker.catalogue import Catalogue
from twinbus.broker.entities.batch import Ticket
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Topic
from twinbus.broker.faults.board import FaultBoard
from twinbus.broker.faults.commits import faulty
from twinbus.broker.faults.receives import holds_back
from twinbus.broker.faults.stage import FaultStage
from twinbus.broker.lookups import look_up
from twinbus.broker.metering.books import Books
from twinbus.broker.offences import OffenceLog
from twinbus.broker.options import BrokerOptions
from twinbus.broker.own_changes import FutureTicket, Loop, OwnChange
from twinbus.broker.store.port import Op, Store
from twinbus.broker.store_thread import StoreThread
from twinbus.broker.throttle import Throttle
from twinbus.clock import Clock, Instant
from twinbus.errors import StoreFull, TwinbusError

logger = logging.getLogger("twinbus.broker")

# After a full disk refused a transaction, the broker's own changes are tried again this late.
FULL_DISK_PAUSE_S = 1.0
# How long a topic passes messages on before others have their turn; a peer's own turn is as long.
FAN_OUT_TURN_S = 0.003
# How often the free room on the disk is looked at.
DISK_LOOK_S = 2.0


def disk_failed() -> AmqpError:
    """What peers hear when the disk failed, then and ever after."""
    return AmqpError(
        Condition.INTERNAL_ERROR,
        "The broker's disk failed and it stopped to be safe. Ask its operator.",
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
        start_thread: Callable[..., StoreThread] = StoreThread,
    ) -> None:
        self.name = name
        self.rules = rules
        self.options = options
        self.clock = clock
        self.throttle = Throttle(options.thresholds)
        self.books = Books(name, options.metering_path, clock, chance, audit=options.audit)
        self.meter = self.books.meter
        self.offences = OffenceLog(name)
        self.failure: Exception | None = None
        self.audience = Audience(frozenset({"localhost"}), 0)
        self.peers: set[Any] = set()
        self._store = store
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self.stage = FaultStage(self)
        self.faults = FaultBoard(clock, self._loop, chance, self.stage)
        self.catalogue = Catalogue(store.open(), chance, self.books.audit)
        self._writer = start_thread(
            f"twinbus-writer-{name}", self._loop.call_soon_threadsafe, store.maintain
        )
        self._reader = start_thread(f"twinbus-reader-{name}", self._loop.call_soon_threadsafe)
        self._read_count = 0
        self._touched: dict[Queue, None] = {}
        self._is_settling = False
        self._own_changes: list[OwnChange] = []
        self._committing: tuple[list[Queue], list[OwnChange]] | None = None
        self._timers: dict[Queue, tuple[float, asyncio.TimerHandle]] = {}
        self._drains: dict[Queue, list[Callable[[], None]]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event = asyncio.Event()
        self._disk_look: asyncio.TimerHandle | None = None
        self.books.start(self._loop, self.run_beside_commits)
        for queue in self.catalogue.machines():
            self.touch(queue)
        self.caretakers = Caretakers(self)
        self._look_at_disk()

    def run_beside_commits(self, job: Callable[[], None]) -> None:
        """Run a blocking job between two transactions; it says itself what goes wrong with it."""
        self._writer.submit(job, _done)

    def now(self) -> Instant:
        return self.clock.now()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def store_statistics(self) -> dict[str, Any]:
        """Sizes and versions of the store, for people."""
        return self._store.statistics()._asdict()

    def rules_for(self, path: str) -> RuleSet | None:
        """The access rules of the namespace ("") or of one entity."""
        if not path:
            return self.rules
        queue = self.catalogue.find(path)
        return None if queue is None else queue.description.authorization_rules

    # -- the rhythm -----------------------------------------------------------------------

    def touch(self, queue: Queue) -> None:
        """Something about the queue changed: look at it once this turn of the loop is over."""
        self._touched[queue] = None
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle_down)

    def write(self, ops: list[Op], ticket: Ticket | None, *, is_kept: bool = False) -> None:
        """Put changes that belong to no queue's batch into the next transaction."""
        self._own_changes.append(OwnChange(ops, ticket, is_kept))
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle_down)

    def _settle_down(self) -> None:
        self._is_settling = False
        touched, self._touched = self._touched, {}
        now = self.now()
        for queue in touched:
            self._serve(queue, now)
        if self._committing is None and self._retry is None:
            self._flush(now)

    def _serve(self, queue: Queue, now: Instant) -> None:
        if queue.is_deleted:
            return
        if queue.wants_turn:
            self._give_turn(queue, now)
        if self.faults.is_calm or not holds_back(self, queue):
            for grant in queue.pump(now):
                grant.consumer.deliver(grant)
        if queue.sessions is not None:
            for tell in queue.sessions.take_news():
                tell()
        for request in queue.take_requests():
            look_up(self, queue, request)
        if queue.is_dirty:
            self.catalogue.dirty[queue] = None
        if not queue.is_reading:
            for drained in self._drains.pop(queue, ()):
                drained()
        self._set_timer(queue, now)

    def _give_turn(self, queue: Queue, now: Instant) -> None:
        """Let a topic pass messages on for a while; the rest comes after the others had theirs."""
        stop_s = time.monotonic() + FAN_OUT_TURN_S
        while queue.wants_turn:
            queue.take_turn(now)
            if time.monotonic() > stop_s:
                self.touch(queue)
                return

    @property
    def is_quiet(self) -> bool:
        """Nothing is on its way to or from the disk; everything that was due has happened."""
        return not (self._is_settling or self._read_count or self._committing or self._touched)

    def drain(self, queue: Queue, drained: Callable[[], None]) -> None:
        """Call ``drained`` once everything the queue has at hand was handed out."""
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
        """Somebody moved the clock: every timer was set by the old one."""
        self.faults.look()
        for queue, (_at_s, handle) in list(self._timers.items()):
            handle.cancel()
            self._on_timer(queue)
        for peer in list(self.peers):
            peer.clock_moved()
        self.caretakers.clock_moved()

    # -- writing --------------------------------------------------------------------------

    def _flush(self, now: Instant) -> None:
        queues = self._take_dirty(now)
        if self.failure is not None or not (queues or self._own_changes):
            self._drained.set()
            return
        ops: list[Op] = []
        own, self._own_changes = self._own_changes, []
        for change in own:
            ops += change.ops
        for queue in queues:
            ops += queue.close_batch(now)
        self._drained.clear()
        self._committing = (queues, own)
        self.throttle.commit_began_at_s = now.monotonic_s
        commit = self.books.written_with(partial(self._store.commit, ops))
        self._writer.submit(
            commit if self.faults.is_calm else faulty(self.faults, commit), self._on_committed
        )

    def _take_dirty(self, now: Instant) -> list[Queue]:
        """The queues with something to write, each with those that must be written with it."""
        dirty, self.catalogue.dirty = self.catalogue.dirty, {}
        machines: dict[Queue, None] = {}
        for queue in dirty:
            machines[queue] = None
            for companion in queue.companions(now):
                machines[companion] = None
        return [machine for machine in machines if machine.is_dirty]

    def _on_committed(self, _result: None, error: Exception | None) -> None:
        if self._committing is None:
            return
        queues, own = self._committing
        self._committing = None
        self.throttle.commit_began_at_s = None
        if error is None:
            self._tell_stored(queues, own)
        elif isinstance(error, StoreFull):
            self._tell_refused(queues, own, error)
        else:
            self._fail(error)
            self._tell_refused(queues, own, error)
        if self._retry is None:
            self._settle_down()

    def _tell_stored(self, queues: Iterable[Queue], own: Iterable[OwnChange]) -> None:
        for change in own:
            if change.ticket is not None:
                change.ticket.stored(range(0))
        for queue in queues:
            for waiting, seqs in queue.committed():
                waiting.stored(seqs)
            self._touched[queue] = None

    def _tell_refused(
        self, queues: Iterable[Queue], own: Iterable[OwnChange], error: Exception
    ) -> None:
        logger.error("namespace %s could not store a change: %s", self.name, error)
        self._own_changes[:0] = [OwnChange(each.ops, None, True) for each in own if each.is_kept]
        for change in own:
            if change.ticket is not None:
                change.ticket.failed(error)
        for queue in queues:
            for waiting in queue.failed():
                waiting.failed(error)
            self._touched[queue] = None
        if self.failure is None:
            self._retry = self._loop.call_later(FULL_DISK_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._settle_down()

    def _fail(self, error: Exception) -> None:
        """The disk failed: nothing more is acknowledged, and everybody is told.

        A send that was under way is not answered at all: it may be on disk or not.
        """
        if self.failure is not None:
            return
        self.failure = error
        for peer in list(self.peers):
            peer.cut(disk_failed())
        waiting, self._own_changes = self._own_changes, []
        for change in waiting:
            if change.ticket is not None:
                change.ticket.failed(error)

    # -- reading --------------------------------------------------------------------------

    def read(
        self,
        queue: Queue,
        job: Callable[[Store], Any],
        done: Callable[[Any], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Read on the reader's thread; ``done`` gets the result before anything is forgotten.

        ``lost`` is called instead if there will be none.
        """
        queue.shelf.grace.begin_read()
        self._read_count += 1

        def answered(result: Any, error: Exception | None) -> None:
            try:
                if error is None:
                    done(result)
                elif not queue.is_deleted:
                    # Of a deleted one, housekeeping may have taken half away: that is no damage.
                    logger.critical("namespace %s cannot be read: %s", self.name, error)
                    self._fail(error)
                if error is not None and lost is not None:
                    lost()
            finally:
                self._read_count -= 1
                queue.shelf.grace.end_read()
            self.touch(queue)

        self._reader.submit(partial(job, self._store), answered)

    # -- queues come and go ---------------------------------------------------------------

    async def create_queue(
        self, description: QueueDescription, rules: Sequence[RuleDescription] | None = None
    ) -> Queue:
        """Make a queue, topic or subscription; it exists on disk when this returns."""
        async with self.catalogue.one_way_at_a_time(description):
            queue, ops = self.make(description, rules)
            with self.catalogue.unborn(queue):
                try:
                    await self.written(ops)
                except TwinbusError:
                    self.withdraw(queue)
                    raise
        self.caretakers.look_at(queue)
        return queue

    def make(
        self, description: QueueDescription, rules: Sequence[RuleDescription] | None = None
    ) -> tuple[Queue, list[Op]]:
        """An entity that exists from now on, and what must be written for it."""
        at_ms = self.now().wall_ms
        described = replace(description, created_at_ms=at_ms, updated_at_ms=at_ms)
        return self.catalogue.create(described, rules)

    async def update_queue(self, queue: Queue, description: QueueDescription) -> None:
        """Change an entity's properties; the new ones hold when this returns."""
        description = replace(
            description,
            created_at_ms=queue.description.created_at_ms,
            updated_at_ms=self.now().wall_ms,
        )
        async with self.catalogue.one_way_at_a_time(description):
            await self.written(self.catalogue.ops_to_update(queue, description))
            self.catalogue.update(queue, description)
        self.caretakers.look_at(queue)
        for peer in list(self.peers):
            peer.recheck()
        self.touch(queue)

    async def delete_queue(self, queue: Queue) -> None:
        """Delete an entity and everything in it; links to it are detached.

        It is gone at once for everybody. If the disk is too full to note that, it is noted as
        soon as there is room, although the caller is told of the trouble.
        """
        await self.written(self.withdraw(queue), is_kept=True)

    def withdraw(self, queue: Queue) -> list[Op]:
        """Let nobody use the entity any more, nor what is below it; what deletes both on disk."""
        ops: list[Op] = []
        if isinstance(queue, Topic):
            for subscription in list(queue.subscriptions.values()):
                ops += self._withdraw(subscription)
        return [*ops, *self._withdraw(queue)]

    def _withdraw(self, queue: Queue) -> list[Op]:
        if queue.is_deleted:
            # Its topic was deleted while it was being made.
            return []
        kind, path = queue.description.kind, queue.description.display_path
        gone = AmqpError(Condition.NOT_FOUND, f"The {kind} {path!r} was deleted.")
        ops = self.catalogue.delete(queue)
        for machine in (queue, queue.dead_letters):
            if machine is not None:
                self._forget(machine, gone)
                if machine.witness is not None:
                    machine.witness.deleted(machine)
        self.caretakers.look_at(queue)
        for peer in list(self.peers):
            peer.recheck()
        self.throttle.forget(queue.queue_id)
        return ops

    def _forget(self, queue: Queue, reason: AmqpError) -> None:
        for ticket in queue.discard():
            ticket.failed(reason)
        self._drains.pop(queue, None)
        _at_s, timer = self._timers.pop(queue, (0.0, None))
        if timer is not None:
            timer.cancel()

    async def written(self, ops: list[Op], *, is_kept: bool = False) -> None:
        """Return once the changes are on disk."""
        if self.failure is not None:
            raise self.failure
        done: asyncio.Future[None] = self._loop.create_future()
        self.write(ops, FutureTicket(done), is_kept=is_kept)
        await done

    def replace_rules(self, rules: RuleSet) -> None:
        """The namespace's keys changed: who used an old one is cut off."""
        self.rules = rules
        for peer in list(self.peers):
            peer.recheck()

    # -- the disk, and the end ------------------------------------------------------------

    def _look_at_disk(self) -> None:
        directory: Path | None = self.options.data_directory
        if directory is not None:
            self.throttle.disk_free_bytes = shutil.disk_usage(directory).free
            self._disk_look = self._loop.call_later(DISK_LOOK_S, self._look_at_disk)

    async def close(self) -> None:
        """Store what was taken in, tell who waits, and close the store."""
        self.stage.contact.close()
        self.faults.clear()
        for peer in list(self.peers):
            peer.say_goodbye()
        self.caretakers.stop()
        self._settle_down()
        try:
            await asyncio.wait_for(self._until_drained(), self.options.close_timeout_s)
        except TimeoutError:
            logger.warning("namespace %s stops while changes wait for the disk", self.name)
        for peer in list(self.peers):
            peer.leave()
        for _at_s, handle in self._timers.values():
            handle.cancel()
        for timer in (self._retry, self._disk_look):
            if timer is not None:
                timer.cancel()
        self.books.stop()
        await asyncio.to_thread(self._stop_threads)
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)
        await self.books.close()

    async def _until_drained(self) -> None:
        while self._committing is not None or self._retry is not None:
            self._drained.clear()
            await self._drained.wait()

    def _stop_threads(self) -> None:
        self._reader.stop()
        self._writer.stop()
        self._store.close()


def _done(_result: None, _error: Exception | None) -> None:
    """Nobody waits for it."""

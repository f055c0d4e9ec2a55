"""A namespace with one queue, its clients and its disk, in a world that one seed decides.

The namespace, the queue machines and the management desk are the real ones. The world plays the
peers and the machine room: it decides when a commit reaches the disk, when the loop hears of it,
when the disk is full and when the lights go out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.catalogue_changes import create
from tests.support.queue_simulation.book import Book, Entry, Phase
from tests.support.queue_simulation.shadow import LABEL_BYTES, WatchedStore, insist
from tests.support.simulated_loop import SimLoop, SimThread
from twinbus.amqp.codec.types import Long
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.message.message import Message
from twinbus.broker.access.rules import RuleSet
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import RELEASE, SettlementOutcome
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.server.management_node import ManagementNode
from twinbus.broker.server.request_reply import Reply, Request
from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.clock import Instant
from twinbus.errors import StoreFull

PATH = "orders"


@dataclass
class Call:
    """A ticket: what happens when the change is stored, and when it is refused."""

    on_stored: Callable[[range], None]
    on_failed: Callable[[], None]
    is_answered: bool = False

    def stored(self, seqs: range) -> None:
        insist(not self.is_answered, "everybody is answered once")
        self.is_answered = True
        self.on_stored(seqs)

    def failed(self, error: Exception) -> None:
        insist(not self.is_answered, "everybody is answered once")
        insist(isinstance(error, StoreFull), "only a full disk refuses, not", error)
        self.is_answered = True
        self.on_failed()


@dataclass(eq=False)
class Client:
    """A receiver."""

    queue: Queue
    consumer: Consumer
    is_draining: bool = False


@dataclass
class Delivery:
    """Messages that were handed out under one lock."""

    queue: Queue
    run: LockRun
    entries: dict[int, Entry] = field(default_factory=dict)
    """By index in the chunk."""

    def token(self, index: int) -> bytes:
        return self.run.token(self.run.chunk.first_seq + index)

    def held(self, mask: int) -> dict[int, Entry]:
        """Those in ``mask`` that are still locked by this delivery."""
        return {
            index: entry
            for index, entry in self.entries.items()
            if mask >> index & 1
            and entry.phase is Phase.LOCKED
            and entry.token == self.token(index)
        }


class DeskPeer:
    """As much of a connection as the management desk looks at."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.limits = AmqpLimits()
        self.authorization = self.input = self
        self.reader_place = namespace.reader_turns.join(lambda: True)

    def demand(self, _path: str, _claim: object) -> None:
        """Everything is allowed."""

    def stop(self, _reason: int) -> None:
        """Nobody reads from it anyway."""


class World:
    """One story."""

    def __init__(self, seed: int, store: Store | None = None) -> None:
        self.random = Random(seed)
        self.seen: Counter[str] = Counter()
        self.trace: list[str] = []
        self.description = QueueDescription(
            path=PATH,
            lock_duration_ms=self.random.choice((1_000, 5_000, 30_000)),
            max_delivery_count=self.random.choice((1, 2, 3, 10)),
            dead_lettering_on_expiration=self.random.random() < 0.5,
        )
        self.book = Book(self.description)
        self.store = WatchedStore(MemoryStore() if store is None else store)
        self.loop = SimLoop()
        self.threads: list[SimThread] = []
        self.clients: list[Client] = []
        self.deliveries: list[Delivery] = []
        self._calls: list[Call] = []
        self._label = 0
        self.start()

    # -- the machine room -----------------------------------------------------------------

    def start(self) -> None:
        """Start the namespace on what is on disk."""
        self.threads = []
        self.clients, self.deliveries, self._calls = [], [], []
        self.namespace = Namespace(
            "sim",
            self.store,
            RuleSet(),
            BrokerOptions(),
            self.loop,
            Random(self.random.getrandbits(64)),
            loop=self.loop,
            start_thread=self._start_thread,
        )
        self.writer, self.reader = self.threads
        found = self.namespace.catalogue.find(PATH)
        if found is None:
            store: Any = self.store
            found = create(self.namespace.catalogue, store, self.description)
        assert found.dead_letters is not None
        self.queue, self.dead = found, found.dead_letters
        peer: Any = DeskPeer(self.namespace)
        self._desks = {
            queue: ManagementNode(peer, queue, PATH) for queue in (self.queue, self.dead)
        }

    def _start_thread(self, *args: Any) -> Any:
        thread = SimThread(*args)
        self.threads.append(thread)
        return thread

    def crash(self) -> None:
        """The process dies; what it had asked of the disk may just have been done."""
        self.note("crash")
        if self.writer.has_jobs and self.random.random() < 0.5:
            self.writer.run()
            self.seen["crash between commit and acknowledgement"] += 1
        self.store.close()
        self.loop = SimLoop(self.loop.now_s, self.loop.skew_ms)
        self.store.is_full = False
        self.start()
        self.store.compare()
        self.book.compare(self.store, self.queue, self.now(), crashed=True)
        self.check_counts()

    def note(self, what: str, *facts: object) -> None:
        """One line of the story."""
        self.trace.append(" ".join((f"{self.loop.now_s:.3f}", what, *map(str, facts))))
        self.seen[what] += 1

    def now(self) -> Instant:
        return self.loop.now()

    def advance(self, seconds: float, *, late: bool = False) -> None:
        """Let time pass; a loop that is late has not looked at its timers yet."""
        end_s = self.loop.now_s + seconds
        while not late:
            at_s = self.loop.next_timer_s()
            if at_s is None or at_s > end_s:
                break
            self.loop.now_s = max(self.loop.now_s, at_s)
            self.loop.turn()
        self.loop.now_s = end_s
        self.book.at(self.now())

    def rest(self) -> None:
        """Let everything finish that has begun; then compare all books."""
        self.store.is_full = False
        for machine in (self.queue, self.dead):
            # Timers follow a wall clock that was turned when something happens.
            self.namespace.touch(machine)
        for _ in range(10_000):
            if not self._one_thing():
                break
        else:
            raise AssertionError("the namespace never comes to rest")
        now = self.now()
        self.book.compare(self.store, self.queue, now, crashed=False)
        self.check_counts()
        insist(all(call.is_answered for call in self._calls), "everybody is answered")
        self._calls.clear()

    def _one_thing(self) -> bool:
        for thread in (self.writer, self.reader):
            if thread.has_answers:
                thread.tell()
                return True
            if thread.has_jobs:
                thread.run()
                return True
        at_s = self.loop.next_timer_s()
        if self.loop.is_busy or (at_s is not None and at_s <= self.loop.now_s):
            self.loop.turn()
            return True
        if self.namespace._retry is not None:
            self.advance(1.0)
            return True
        return False

    def check_counts(self) -> None:
        """What the machines say about themselves is what the book says."""
        for machine in (self.queue, self.dead):
            is_dead = machine is self.dead
            deferred = [e for e in self.book.entries.values() if e.is_dead is is_dead]
            locked = [e for e in deferred if e.phase is Phase.LOCKED]
            deferred = [e for e in deferred if e.is_deferred and e.phase is not Phase.GONE]
            shadow = self.store.shadow(machine.queue_id)
            insist(machine.message_count == len(shadow.held), "the message count is right")
            insist(machine.scheduled_count == len(shadow.scheduled), "scheduled count")
            insist(machine.deferred_count == len(deferred), "the deferred count is right")
            insist(machine.locked_count == len(locked), "the locked count is right")

    # -- senders --------------------------------------------------------------------------

    def send(self, count: int, *, ttl_ms: int | None = None, due_ms: int | None = None) -> None:
        """Send messages together; with ``due_ms`` every second one is scheduled."""
        now = self.now()
        entries = []
        messages = []
        for index in range(count):
            is_later = due_ms is not None and (index % 2 == 0)
            entry, message = self._message(now, ttl_ms, due_ms if is_later else None)
            entries.append(entry)
            messages.append(message)
        self.note("send", [e.label.decode() for e in entries], ttl_ms, due_ms)
        numbered = [e for e in entries if e.due_ms is not None] or entries
        self.queue.enqueue(
            messages,
            self._call(
                lambda seqs: self._sent(entries, numbered, seqs), lambda: self._refused(entries)
            ),
        )
        self.namespace.touch(self.queue)

    def _message(
        self, now: Instant, ttl_ms: int | None, due_ms: int | None
    ) -> tuple[Entry, IncomingMessage]:
        self._label += 1
        label = b"m%07d" % self._label
        start_ms = now.wall_ms if due_ms is None else due_ms
        expires_ms = None if ttl_ms is None else start_ms + ttl_ms
        entry = self.book.entries[label] = Entry(label, expires_ms, due_ms)
        body = bytes(self.random.randrange(60)) + label
        properties = {"color": "green"} if self.random.random() < 0.2 else None
        bare = Message(application_properties=properties, body=body).encode()
        record = Record(bare, expires_ms=expires_ms, ttl_ms=ttl_ms)
        return entry, IncomingMessage(pack_record(record), expires_ms, due_ms)

    def _call(self, stored: Callable[[range], None], failed: Callable[[], None]) -> Call:
        call = Call(stored, failed)
        self._calls.append(call)
        return call

    def _sent(self, entries: list[Entry], numbered: list[Entry], seqs: range) -> None:
        insist(len(seqs) == len(numbered), "every message of a send has its number")
        for entry, seq in zip(numbered, seqs, strict=True):
            self.book.stored(entry, seq)
        for entry in entries:
            insist(self._is_on_disk(entry), "an acknowledged message is on disk")
            if entry.phase is Phase.WAITING:
                entry.become(Phase.FREE)

    def _is_on_disk(self, entry: Entry) -> bool:
        shadow = self.store.shadow(self.queue.queue_id)
        rows = shadow.held if entry.due_ms is None else shadow.scheduled
        if entry.seq is not None:
            return entry.seq in rows and rows[entry.seq].label == entry.label
        return any(held.label == entry.label for held in rows.values())

    def _refused(self, entries: list[Entry]) -> None:
        self.seen["refused a send"] += 1
        for entry in entries:
            insist(entry.phase is Phase.WAITING, "a refused message was never shown")
            entry.become(Phase.REFUSED, is_certain=True)

    # -- receivers ------------------------------------------------------------------------

    def attach(self, queue: Queue, *, deletes: bool, unsettled_max: int, credit: int) -> Client:
        self.note("attach", "dead" if queue is self.dead else "main", deletes, credit)

        def deliver(grant: DeliveryBatch) -> None:
            self._delivered(client, grant)

        consumer = Consumer(deliver, unsettled_max, deletes, credit)
        client = Client(queue, consumer)
        self.clients.append(client)
        queue.attach(consumer)
        queue.credit_available(consumer)
        self.namespace.touch(queue)
        return client

    def detach(self, client: Client) -> None:
        self.note("detach")
        self.clients.remove(client)
        client.queue.detach(client.consumer)

    def grant_credit(self, client: Client, credit: int) -> None:
        self.note("credit", credit)
        client.consumer.credit = credit
        client.queue.credit_available(client.consumer)
        self.namespace.touch(client.queue)

    def set_paused(self, client: Client, is_paused: bool) -> None:
        self.note("pause", is_paused)
        client.consumer.is_paused = is_paused
        if not is_paused:
            client.queue.credit_available(client.consumer)
            self.namespace.touch(client.queue)

    def drain(self, client: Client) -> None:
        """Ask for what is at hand, and check that the end comes after it."""
        self.note("drain")
        self.grant_credit(client, client.consumer.credit)
        known = [e for e in self._free(client.queue) if e.is_certain]

        def drained() -> None:
            call.stored(range(0))
            self.book.at(self.now())
            if client not in self.clients or client.consumer.room() <= 0:
                return
            left = [e for e in known if e in self._free(client.queue)]
            insist(not left, "drained with messages at hand:", left)

        call = self._call(lambda _seqs: None, lambda: None)
        self.namespace.drain(client.queue, drained)

    def _free(self, queue: Queue) -> list[Entry]:
        free = self.book.of(Phase.FREE, is_dead=queue is self.dead)
        return [entry for entry in free if not self.book.may_be_expired(entry)]

    def _delivered(self, client: Client, grant: DeliveryBatch) -> None:
        now, chunk, consumer = self.now(), grant.chunk, client.consumer
        insist(client in self.clients, "a receiver that is gone gets nothing")
        insist(consumer.credit >= 0, "nobody gets more than its credit")
        insist(consumer.unsettled <= consumer.unsettled_max, "or more than it may hold")
        shadow = self.store.shadow(client.queue.queue_id)
        delivery = Delivery(client.queue, grant.run) if grant.run is not None else None
        for index in range(grant.start, grant.start + grant.count):
            seq = chunk.first_seq + index
            label = _label(grant, index)
            insist(seq in shadow.held, "nothing is shown before it is on disk")
            insist(shadow.held[seq].label == label, "the number belongs to the message")
            attempts = chunk.delivery_counts.get(index, 0)
            entry = self.book.handed_out(label, seq, attempts, now, client.queue)
            self._hold(delivery, entry, index, seq, now)
        self.note("deliver", grant.count, chunk.first_seq + grant.start)
        if delivery is not None:
            self.deliveries.append(delivery)

    def _hold(
        self, delivery: Delivery | None, entry: Entry, index: int, seq: int, now: Instant
    ) -> None:
        if delivery is None:
            entry.become(Phase.LEAVING)
            return
        until_s = now.monotonic_s + self.description.lock_duration_ms / 1_000
        insist(delivery.run.deadline_s == until_s, "a lock lasts as long as the queue says")
        if entry.attempts:
            self.seen["handed out again"] += 1
        self.book.locked(entry, delivery.run.token(seq), until_s)
        delivery.entries[index] = entry

    def settle(
        self, delivery: Delivery, mask: int, outcome: SettlementOutcome, *, answered: bool
    ) -> None:
        """Settle part of a delivery, which may have been settled before or have run out."""
        now = self.now()
        self.book.at(now)
        held = delivery.held(mask)
        self.note("settle", outcome, [e.label.decode() for e in held.values()], answered)
        for entry in held.values():
            self.book.decide(entry, outcome)
        versions = [(entry, entry.version) for entry in held.values()]

        def stored(_seqs: range) -> None:
            for entry, version in versions:
                self.book.acknowledged(entry, outcome, version)

        ticket = None
        if answered and held and outcome != RELEASE:
            ticket = self._call(stored, self._in_doubt)
        done = delivery.queue.settle(delivery.run, mask, outcome, now, ticket)
        insist(done == sum(1 << index for index in held), "a lock settles once, by its holder")
        if mask.bit_count() != len(held):
            self.seen["settled without a lock"] += 1
        self.namespace.touch(delivery.queue)

    def _in_doubt(self) -> None:
        self.seen["refused a settlement"] += 1

    def renew(self, delivery: Delivery, index: int) -> None:
        now = self.now()
        self.book.at(now)
        entry = delivery.held(1 << index).get(index)
        self.note("renew", delivery.entries[index].label.decode(), entry is not None)
        until_ms = delivery.queue.renew(delivery.token(index), now)
        insist((until_ms is not None) == (entry is not None), "only the holder renews a lock")
        if entry is not None:
            duration_ms = self.description.lock_duration_ms
            insist(until_ms == now.wall_ms + duration_ms, "a renewed lock is as long as the first")
            entry.locked_until_s = now.monotonic_s + duration_ms / 1_000
            self.seen["renewed"] += 1
        self.namespace.touch(delivery.queue)

    # -- the management desk --------------------------------------------------------------

    def _ask(
        self,
        queue: Queue,
        operation: str,
        body: dict[str, Any],
        answered: Callable[[Reply], None],
    ) -> None:
        call = self._call(lambda _seqs: None, lambda: None)

        def answer(reply: Reply) -> None:
            call.stored(range(0))
            answered(reply)

        request = Request(f"com.microsoft:{operation}", {}, body, Message())
        self._desks[queue].handle(request, answer)

    def take_deferred(self, queue: Queue, entries: list[Entry], *, deletes: bool) -> None:
        """Receive by sequence number; the numbers may be wrong by now."""
        seqs = [entry.seq or 0 for entry in entries]
        self.note("take", seqs, deletes)
        body = {
            "sequence-numbers": [Long(seq) for seq in seqs],
            "receiver-settle-mode": 0 if deletes else 1,
        }
        self._ask(
            queue,
            "receive-by-sequence-number",
            body,
            lambda reply: self._took(queue, entries, reply),
        )

    def _took(self, queue: Queue, entries: list[Entry], reply: Reply) -> None:
        now = self.now()
        self.book.at(now)
        is_dead = queue is self.dead
        deferred = [e for e in entries if e.phase is Phase.DEFERRED and e.is_dead is is_dead]
        fresh = [e for e in deferred if not self.book.may_be_expired(e)]
        if reply.properties["statusCode"] != 200:
            is_sure = len(fresh) == len(entries) and all(e.is_certain for e in fresh)
            insist(not is_sure, "a deferred message can be received by its number")
            self.seen["took nothing"] += 1
            return
        insist(len(deferred) == len(entries), "only deferred messages are received by number")
        for message in reply.body["messages"]:
            self._took_one(queue, message, entries, now)
        self.seen["took deferred"] += 1

    def _took_one(
        self, queue: Queue, message: dict[str, Any], entries: list[Entry], now: Instant
    ) -> None:
        label = message["message"][-LABEL_BYTES:]
        entry = self.book.entries[label]
        insist(entry in entries, "what was asked for is what comes")
        token = message.get("lock-token")
        if token is None:
            entry.become(Phase.LEAVING)
            return
        found = queue.locks.find(token.bytes_le, now.monotonic_s)
        assert found is not None
        run, index = found
        self.deliveries.append(Delivery(queue, run, {index: entry}))
        until_s = now.monotonic_s + self.description.lock_duration_ms / 1_000
        self.book.locked(entry, token.bytes_le, until_s)

    def cancel(self, entries: list[Entry]) -> None:
        """Cancel scheduled messages; they may be cancelled or due by now."""
        seqs = [entry.seq or 0 for entry in entries]
        self.note("cancel", seqs)
        for entry in entries:
            entry.cancels += 1
        body = {"sequence-numbers": [Long(seq) for seq in seqs]}
        self._ask(
            self.queue,
            "cancel-scheduled-message",
            body,
            lambda reply: self._cancelled(entries, reply),
        )

    def _cancelled(self, entries: list[Entry], reply: Reply) -> None:
        status = reply.properties["statusCode"]
        if status == 503:
            # In doubt: the broker goes on to remove them when there is room.
            return
        for entry in entries:
            entry.cancels -= 1
        if status == 200:
            for entry in entries:
                insist(entry.phase is Phase.SCHEDULED, "only a scheduled message is cancelled")
                entry.become(Phase.GONE, is_certain=True)
            self.seen["cancelled"] += 1
            return
        sure = [e for e in entries if e.phase is Phase.SCHEDULED and not self._may_be_gone(e)]
        insist(len(sure) < len(entries), "a scheduled message can be cancelled")

    def _may_be_gone(self, entry: Entry) -> bool:
        return entry.cancels > 0 or (entry.due_ms or 0) <= self.book.wall_ms_max

    def peek(self) -> None:
        """Look at everything; only what is there may be seen."""
        self.note("peek")
        body = {"from-sequence-number": Long(1), "message-count": 1_000}
        self._ask(self.queue, "peek-message", body, self._peeked)

    def _peeked(self, reply: Reply) -> None:
        self.book.at(self.now())
        for message in (reply.body or {}).get("messages", ()):
            entry = self.book.entries.get(message["message"][-LABEL_BYTES:])
            insist(entry is not None, "nothing comes from nowhere")
            assert entry is not None
            hidden = (Phase.REFUSED, Phase.GONE)
            insist(entry.phase not in hidden, "a peek shows what is there, not", entry)


def _label(grant: DeliveryBatch, index: int) -> bytes:
    return grant.blob[grant.chunk.starts[index + 1] - LABEL_BYTES : grant.chunk.starts[index + 1]]

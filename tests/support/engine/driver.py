"""One queue over a store in memory, driven by hand: nothing happens until the test says so.

    driver.send("a")            into the open batch
    driver.commit()             the batch reaches the disk, and whoever waits is told
    driver.read()               what the queue asked to have read is read and answered
    driver.receive(client)      what can be handed out is handed out

Time stands still at 1,000 s until ``at()`` moves it; both clocks then show the same distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.catalogue_changes import create
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.chunk import span_mask
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.delivery_stream import READ_AHEAD_BYTES, READ_AHEAD_CHUNKS
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import SettlementOutcome
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import (
    FindTimes,
    LoadBlob,
    LoadDue,
    LoadExpired,
    LoadNext,
    Request,
)
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record, unpack_record
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.storage.interface import Op
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.clock import Instant
from twinbus.errors import StoreFull

START_S = 1_000.0
START_MS = 1_700_000_000_000
FULL = StoreFull(path="the disk of this test")


@dataclass
class Answer:
    """A ticket that remembers what it was told."""

    seqs: list[int] | None = None
    error: Exception | None = None

    def stored(self, seqs: range) -> None:
        assert self.seqs is None and self.error is None
        self.seqs = list(seqs)

    def failed(self, error: Exception) -> None:
        assert self.seqs is None and self.error is None
        self.error = error

    @property
    def is_stored(self) -> bool:
        return self.seqs is not None


@dataclass
class Received:
    """One message as a receiver got it."""

    body: str
    seq: int
    delivery_count: int
    run: LockRun | None
    mask: int
    message: Message

    @property
    def token(self) -> bytes:
        assert self.run is not None
        return self.run.token(self.seq)


class Driver:
    """The queue ``orders`` and its dead-letter queue."""

    def __init__(self, **properties: Any) -> None:
        self.now = Instant(START_S, START_MS)
        self.description = QueueDescription(path="orders", **properties)
        self.store = MemoryStore()
        catalogue = Catalogue(self.store.open(), Random(7))
        self._use(create(catalogue, self.store, self.description))

    def _use(self, queue: Queue) -> None:
        assert queue.dead_letters is not None
        self.queue, self.dead = queue, queue.dead_letters

    def restart(self) -> None:
        """The process dies and begins again with what is on disk."""
        self.store.close()
        queue = Catalogue(self.store.open(), Random(8)).find("orders")
        assert queue is not None
        self._use(queue)
        self.read()

    def at(self, seconds: float) -> Instant:
        """So many seconds after the beginning."""
        self.now = Instant(START_S + seconds, START_MS + round(seconds * 1_000))
        return self.now

    # -- sending and writing --------------------------------------------------------------

    def send(self, *bodies: str, ttl_s: float | None = None, due_s: float | None = None) -> Answer:
        """Send messages together; ``due_s`` is counted from the beginning."""
        answer = Answer()
        due_ms = None if due_s is None else START_MS + round(due_s * 1_000)
        messages = [self.message(body, ttl_s, due_ms) for body in bodies]
        self.queue.enqueue(messages, answer)
        return answer

    def message(
        self,
        body: str,
        ttl_s: float | None = None,
        due_ms: int | None = None,
        session: str | None = None,
    ) -> IncomingMessage:
        expires_ms = None
        if ttl_s is not None:
            expires_ms = (self.now.wall_ms if due_ms is None else due_ms) + round(ttl_s * 1_000)
        properties = None if session is None else Properties(group_id=session)
        bare = Message(properties=properties, body=body.encode()).encode()
        record = Record(bare, expires_ms=expires_ms, ttl_ms=None)
        return IncomingMessage(pack_record(record), expires_ms, due_ms)

    def _close(self) -> tuple[list[Queue], list[Op]]:
        while self.queue.wants_turn:
            self.queue.take_turn(self.now)
        return self._close_now()

    def _close_now(self) -> tuple[list[Queue], list[Op]]:
        machines = [machine for machine in (self.queue, self.dead) if machine.is_dirty]
        return machines, [op for machine in machines for op in machine.close_batch(self.now)]

    def begin_commit(self) -> Callable[[], None]:
        """Write the open batches to disk; call the result to tell the queue of it."""
        return self._commit_of(*self._close())

    def begin_commit_of_now(self) -> Callable[[], None]:
        """The same without giving turns to what wants some."""
        return self._commit_of(*self._close_now())

    def _commit_of(self, machines: list[Queue], ops: list[Op]) -> Callable[[], None]:
        self.store.commit(ops)

        def tell() -> None:
            for machine in machines:
                for ticket, seqs in machine.committed():
                    ticket.stored(seqs)

        return tell

    def commit(self) -> None:
        self.begin_commit()()

    def refuse(self) -> None:
        """The disk is full: the store takes nothing of the open batches."""
        machines, _ops = self._close()
        for machine in machines:
            for ticket in machine.failed():
                ticket.failed(FULL)

    def sent(self, *bodies: str, **when: float) -> list[int]:
        """Send, commit and say which numbers the messages got."""
        answer = self.send(*bodies, **when)
        self.commit()
        assert answer.seqs is not None
        return answer.seqs

    # -- reading --------------------------------------------------------------------------

    def begin_read(self) -> list[Callable[[], None]]:
        """Do the reads that the queues ask for; each result, when called, answers one."""
        return [
            self._begin(machine, request)
            for machine in (self.queue, self.dead)
            for request in machine.take_requests()
        ]

    def _begin(self, machine: Queue, request: Request) -> Callable[[], None]:
        read = machine.chunk_cache.grace.begin_read()
        answer = self._look_up(machine, request)

        def tell() -> None:
            answer()
            machine.chunk_cache.grace.end_read(read)

        return tell

    def _look_up(self, machine: Queue, request: Request) -> Callable[[], None]:
        store, queue_id = self.store, machine.queue_id
        match request:
            case LoadNext():
                chunks = store.load_chunks(
                    queue_id,
                    request.after_seq,
                    READ_AHEAD_BYTES,
                    READ_AHEAD_CHUNKS,
                    request.stream.session,
                )
                return lambda: machine.chunks_loaded(request, chunks)
            case LoadBlob():
                chunk = store.load_chunk_holding(queue_id, request.chunk.first_seq)
                return lambda: machine.blob_loaded(request, chunk)
            case LoadExpired():
                expired = store.load_expired(queue_id, request.now_ms, 256)
                return lambda: machine.expired_loaded(expired, self.now)
            case LoadDue():
                rows = store.load_due(queue_id, request.now_ms, 256)
                return lambda: machine.due_loaded(rows)
            case FindTimes():
                times = store.next_expiry(queue_id), store.next_due(queue_id)
                return lambda: machine.times_found(*times)

    def read(self) -> None:
        """Answer reads until the queue asks for no more."""
        while tells := self.begin_read():
            for tell in tells:
                tell()

    def wake(self) -> None:
        """Call the timers that are due, with all that follows from it."""
        for _ in range(10):
            for machine in (self.queue, self.dead):
                machine.handle_timer(self.now)
            self.read()
            self.commit()
            self.read()

    # -- receiving and settling -----------------------------------------------------------

    def client(
        self,
        credit: int = 100,
        *,
        queue: Queue | None = None,
        unsettled_max: int = 1_000,
        deletes: bool = False,
    ) -> Consumer:
        """A receiver that is attached."""
        consumer = Consumer(_by_hand, unsettled_max, deletes, credit)
        machine = queue or self.queue
        machine.attach(consumer)
        machine.credit_available(consumer)
        return consumer

    def pump(self, queue: Queue | None = None) -> list[Received]:
        """What is handed out without another look at the disk."""
        machine = queue or self.queue
        grants = machine.deliver(self.now)
        while machine.has_more:
            grants += machine.deliver(self.now)
        return [message for grant in grants for message in _messages(grant)]

    def receive(
        self, consumer: Consumer | None = None, queue: Queue | None = None
    ) -> list[Received]:
        """Everything that can be handed out now."""
        machine = queue or self.queue
        if consumer is not None:
            machine.credit_available(consumer)
        received: list[Received] = []
        while True:
            more = self.pump(machine)
            received += more
            tells = self.begin_read()
            for tell in tells:
                tell()
            if not more and not tells:
                return received

    def settle(
        self, received: Received, outcome: SettlementOutcome, *, queue: Queue | None = None
    ) -> Answer:
        """Settle one message; the answer comes with the commit, if it still held its lock."""
        answer = Answer()
        assert received.run is not None
        machine = queue or self.queue
        applied = machine.settle(received.run, received.mask, outcome, self.now, answer)
        if not applied:
            answer.failed(KeyError("the lock is lost"))
        return answer

    def take(self, seq: int, *, deletes: bool = False) -> Received | None:
        """Receive a deferred message by its number, as the management desk does."""
        loaded = self.store.load_chunk_holding(self.queue.queue_id, seq)
        if loaded is None:
            return None
        chunk = self.queue.chunk_cache.adopt(loaded)
        index = seq - chunk.first_seq
        taken = None
        if self.queue.is_deferred(chunk, index, self.now):
            taker = Consumer(_by_hand, 1, deletes, 1)
            taken = self.queue.take_deferred(chunk, index, taker, self.now)
        self.queue.chunk_cache.put_back(chunk)
        return None if taken is None else _messages(taken)[0]


def _by_hand(_grant: DeliveryBatch) -> None:
    """Grants are looked at by the test."""


def _messages(grant: DeliveryBatch) -> list[Received]:
    messages = []
    for index in range(grant.start, grant.start + grant.count):
        starts = grant.chunk.starts
        record = unpack_record(grant.blob, starts[index], starts[index + 1])
        message = Message.decode(record.bare)
        assert isinstance(message.body, bytes)
        messages.append(
            Received(
                message.body.decode(),
                grant.chunk.first_seq + index,
                grant.chunk.delivery_counts.get(index, 0),
                grant.run,
                span_mask(index, 1),
                message,
            )
        )
    return messages


def bodies(messages: list[Received]) -> list[str]:
    return [message.body for message in messages]

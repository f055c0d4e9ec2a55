"""Jumping clocks and counts at their end (cases 81, 82 and 91): what a wire test cannot wait for.

The queue machine is driven by hand with instants of our choice, and one broker runs in this
process on a clock that jumps.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from tests.adversarial.talk import LOCK_LOST, ask, lock_token, put, refused, settling, take
from tests.support.catalogue_changes import create
from tests.support.wire_client import connected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec
from twinbus.broker.access.sas import make_token
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE
from twinbus.broker.engine.queue import RENEWALS_MAX, Queue
from twinbus.broker.engine.store_requests import FindTimes, LoadBlob, LoadNext, Request
from twinbus.broker.engine.stored_message import PLAIN, IncomingMessage
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.server.delivery_encoder import delivered_message
from twinbus.broker.storage.interface import PutState
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.clock import Instant
from twinbus.common.connection_string import parse_connection_string

INT_MAX = 2**31 - 1
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
NOON = Instant(1_000.0, 1_800_000_000_000)


class Machine:
    """A queue with its dead letters, on a store that answers and writes at once."""

    def __init__(self, **properties: int) -> None:
        self._store = MemoryStore()
        catalogue = Catalogue(self._store.open(), Random(1))
        description = QueueDescription(path="orders", **properties)
        self.queue = create(catalogue, self._store, description)
        assert self.queue.dead_letters is not None
        self.dead = self.queue.dead_letters

    def send(self, queue: Queue, *, delivery_count: int = 0) -> None:
        """Store the first message of a queue, as if it had been delivered that often."""
        queue.enqueue([IncomingMessage(PLAIN + Message(body=b"x").encode())], None)
        self.write(NOON)
        if delivery_count:
            self._store.commit([PutState(queue.queue_id, 1, delivery_count, False)])

    def write(self, now: Instant) -> None:
        """Bring the changes of both queues to the disk."""
        dirty = [queue for queue in (self.queue, self.dead) if queue.is_dirty]
        self._store.commit([op for queue in dirty for op in queue.close_batch(now)])
        for queue in dirty:
            queue.committed()

    def receive(self, queue: Queue, now: Instant) -> DeliveryBatch | None:
        """What a new receiver with one credit is given."""
        consumer = Consumer(lambda _grant: None, unsettled_max=10, credit=1)
        queue.attach(consumer)
        queue.credit_available(consumer)
        grants: list[DeliveryBatch] = []
        for _read in range(5):
            grants += queue.deliver(now)
            for request in queue.take_requests():
                self._answer(queue, request)
        return grants[0] if grants else None

    def fail(self, queue: Queue, grant: DeliveryBatch | None, now: Instant) -> None:
        """The receiver gives the message back."""
        run = held(grant)
        assert queue.settle(run, run.unsettled, ABANDON, now, None) == 1
        for request in queue.take_requests():
            self._answer(queue, request)
        self.write(now)

    def _answer(self, queue: Queue, request: Request) -> None:
        store, queue_id = self._store, queue.queue_id
        match request:
            case LoadNext():
                loaded = store.load_chunks(queue_id, request.after_seq, 1 << 20, 10)
                queue.chunks_loaded(request, loaded)
            case LoadBlob():
                holding = store.load_chunk_holding(queue_id, request.chunk.first_seq)
                queue.blob_loaded(request, holding)
            case FindTimes():
                queue.times_found(store.next_expiry(queue_id), store.next_due(queue_id))
            case _:
                raise AssertionError(f"nothing here expires or becomes due: {request}")


def held(grant: DeliveryBatch | None) -> LockRun:
    assert grant is not None and grant.run is not None
    return grant.run


def shown_delivery_count(grant: DeliveryBatch | None) -> int:
    """The delivery count as a receiver reads it."""
    assert grant is not None
    header = Message.decode(delivered_message(grant.chunk, grant.blob, grant.start)).header
    assert header is not None
    return header.delivery_count


def later(seconds: float, wall_jump_ms: int = 0) -> Instant:
    """That long after noon, on a wall clock that somebody has moved."""
    return Instant(NOON.monotonic_s + seconds, NOON.wall_ms + int(seconds * 1000) + wall_jump_ms)


@pytest.mark.parametrize(
    "jump_ms", [10 * YEAR_MS, -10 * YEAR_MS, HOUR_MS, -1], ids=lambda jump: f"case-81-{jump}-ms"
)
@pytest.mark.parametrize(("at_s", "is_held"), [(59.9, True), (60.0, False)])
def test_a_jump_of_the_wall_clock_neither_frees_nor_holds_a_message(
    jump_ms: int, at_s: float, is_held: bool
) -> None:
    """M2: a lock lasts its sixty seconds, whatever the date is meanwhile."""
    machine = Machine(lock_duration_ms=60_000)
    machine.send(machine.queue)
    run = held(machine.receive(machine.queue, NOON))
    now = later(at_s, jump_ms)
    found = machine.queue.locks.find(run.token(1), now.monotonic_s)
    assert (found is not None) is is_held
    machine.queue.handle_timer(now)
    assert machine.queue.locked_count == is_held
    assert machine.queue.settle(run, run.unsettled, COMPLETE, now, None) == is_held


def test_case_82_a_lock_ends_after_the_last_renewal() -> None:
    """M2: a stuck receiver that renews every half minute holds its message for half a day."""
    machine = Machine(lock_duration_ms=60_000)
    queue = machine.queue
    machine.send(queue)
    run = held(machine.receive(queue, NOON))
    token = run.token(1)
    for number in range(1, RENEWALS_MAX + 1):
        now = later(number * 30)
        assert queue.renew(token, now) == now.wall_ms + 60_000
    assert queue.renew(token, later(RENEWALS_MAX * 30)) is None
    assert queue.locked_count == 1

    # When the last renewal has run out, somebody else gets it, and the attempt was counted
    over = later(RENEWALS_MAX * 30 + 60)
    queue.handle_timer(over)
    machine.write(over)
    assert queue.renew(token, over) is None
    assert queue.settle(run, 1, COMPLETE, over, None) == 0
    again = machine.receive(queue, over)
    assert held(again).run_id != run.run_id
    assert shown_delivery_count(again) == 1


def test_case_91_the_last_attempt_of_all_leads_to_the_dead_letters() -> None:
    """M2: a backlog queue allows 2,147,483,647 attempts; the last one does not overflow."""
    machine = Machine(max_delivery_count=INT_MAX)
    queue = machine.queue
    machine.send(queue, delivery_count=INT_MAX - 2)
    grant = machine.receive(queue, NOON)
    assert shown_delivery_count(grant) == INT_MAX - 2
    machine.fail(queue, grant, later(1))
    grant = machine.receive(queue, later(2))
    assert shown_delivery_count(grant) == INT_MAX - 1
    machine.fail(queue, grant, later(3))
    assert machine.receive(queue, later(4)) is None
    assert (queue.message_count, machine.dead.message_count) == (0, 1)


def test_case_91_the_count_of_a_dead_letter_stops_at_the_end() -> None:
    """M2: nothing is behind the dead letters, so attempts go on and the count stays."""
    machine = Machine(max_delivery_count=1)
    dead = machine.dead
    machine.send(dead, delivery_count=INT_MAX - 1)
    for at_s in (1, 2, 3):
        machine.fail(dead, machine.receive(dead, later(at_s)), later(at_s))
    assert shown_delivery_count(machine.receive(dead, later(4))) == INT_MAX


class JumpyClock:
    """The machine's clocks, and what somebody has added to them."""

    def __init__(self) -> None:
        self.monotonic_added_s = 0.0
        self.wall_added_ms = 0

    def now(self) -> Instant:
        wall_ms = time.time_ns() // 1_000_000
        return Instant(time.monotonic() + self.monotonic_added_s, wall_ms + self.wall_added_ms)


async def test_case_81_a_broker_on_a_jumping_clock_keeps_its_locks() -> None:
    """M2: over a real socket; the wall clock goes an hour ahead, two back, then a minute passes."""
    clock = JumpyClock()
    async with Broker(BrokerOptions(admin_port=None), clock=clock) as broker:
        spec = NamespaceSpec("demo", queues=(QueueDescription(path="orders"),))
        namespace = await broker.add_namespace(spec)
        parsed = parse_connection_string(namespace.connection_string)
        token = make_token(
            resource=f"sb://localhost:{namespace.port}/",
            rule_name=parsed.shared_access_key_name or "",
            key=parsed.shared_access_key or "",
            expires_s=int(time.time()) + 8 * 3_600,
        )
        await asyncio.to_thread(hold_through_jumps, namespace.port, token, clock)


def hold_through_jumps(port: int, token: str, clock: JumpyClock) -> None:
    with connected(port, token) as client, connected(port, token) as other:
        put(client, "orders", b"one", b"two", b"three")
        first, second, third = take(client, "orders", 3)
        other.attach_receiver("orders").grant(10)

        # The wall clock jumps: the locks still hold, and nothing is handed to anybody else
        clock.wall_added_ms += HOUR_MS
        client.complete(first.delivery_id)
        clock.wall_added_ms -= 2 * HOUR_MS
        told = ask(client, "orders", "update-disposition", settling(lock_token(second)))
        assert told.status == 200
        other.pump(0.2)
        assert not [event for event in other.events if isinstance(event, DeliveryReceived)]

        # A minute passes on the clock that counts: the lock is lost
        clock.monotonic_added_s += 61
        late = settling(lock_token(third))
        assert refused(client, "orders", "update-disposition", late) == LOCK_LOST

"""What one callback of the loop does: large commits, hand-outs and requests take several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.adversarial.talk import BATCH, batch_of, lock_token, uuids
from tests.support.catalogue_changes import unheard
from tests.support.simulated_loop import Timer
from tests.unit.broker.fairness.test_turns import counted_turns
from tests.unit.broker.model.rig import MemoryClient, Rig, create_queue
from tests.unit.broker.model.station import LONGS, Station, encoded
from twinbus.amqp.codec.types import Array, Long, Symbol, UInt
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived, DispositionReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Source
from twinbus.broker.access.rules import RuleSet
from twinbus.broker.engine import delivery_stream, duplicate_detection, queue, topic, write_batch
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription, SqlFilter
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import Complete, DeadLetter
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import ScheduledSize
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record
from twinbus.broker.namespace import namespace
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.server import connection as peers
from twinbus.broker.server import management_node
from twinbus.broker.server.message_lookup import deferred_message
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.clock import SystemClock
from twinbus.errors import StoreFull

# What one callback may do of anything that costs microseconds.
AT_ONCE_MAX = 1_500


class Work:
    """How often something happened in the callback of the loop in which it happened most."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.total: dict[str, int] = {}
        run = Timer.run

        def begun(timer: Timer) -> None:
            self._now.clear()
            run(timer)

        patch.setattr(Timer, "run", begun)

    def count(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)
        key = f"{owner.__name__.rpartition('.')[2]}.{name}"

        def counted(*args: Any, **more: Any) -> Any:
            self._now[key] = self._now.get(key, 0) + 1
            self.total[key] = self.total.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self._now[key])
            return function(*args, **more)

        self._patch.setattr(owner, name, counted)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


class MoodyStore(MemoryStore):
    """A store whose disk can be full."""

    is_full = False

    def commit(self, ops: Any) -> None:
        if self.is_full:
            raise StoreFull(path="orders")
        super().commit(ops)


def rig_with(store: MemoryStore | None = None, **properties: Any) -> Rig:
    description = QueueDescription(path="orders", **properties)
    return Rig(store or MemoryStore(), lambda each: create_queue(each, description))


def queue_of(rig: Rig) -> Queue:
    found = rig.namespace.catalogue.find("orders")
    assert found is not None
    return found


def message(number: int, session: str | None = None) -> bytes:
    return Message(properties=Properties(group_id=session), body=b"%d" % number).encode()


def sessions(count: int) -> bytes:
    return batch_of(*[message(number, f"s{number}") for number in range(count)])


class Waiting:
    """A ticket that writes down its number when it is told."""

    def __init__(self, told: list[int], number: int) -> None:
        self._told = told
        self._number = number

    def stored(self, seqs: range) -> None:
        self._told.append(self._number)

    def failed(self, error: Exception) -> None:
        self._told.append(-1 - self._number)


def send_apart(machine: Queue, count: int) -> list[int]:
    """Single messages, each with somebody who waits for it; who was told is in the list."""
    told: list[int] = []
    record = pack_record(Record(message(1), expires_ms=None, ttl_ms=None))
    for number in range(count):
        machine.enqueue([IncomingMessage(record, None, None)], Waiting(told, number))
    return told


def received(client: MemoryClient) -> list[int]:
    got = [each for each in client.events if isinstance(each, DeliveryReceived)]
    return [int(Message.decode(each.payload).body) for each in got]  # type: ignore[call-overload]


def receive_all(rig: Rig, count: int) -> list[int]:
    client = rig.connect()
    client.attach_receiver("orders", snd_settle_mode=1).grant(count + 10)
    client.pump()
    return received(client)


# -- commits --------------------------------------------------------------------------------------


def test_a_batch_of_thousands_of_sessions_is_stored_and_shown_in_steps(work: Work) -> None:
    """M13: each session has a chunk of its own; all are in one transaction."""
    rig = rig_with(requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    work.count(write_batch, "_put_chunk")
    work.count(queue.Sessions, "arrived")
    work.count(MemoryStore, "commit")

    assert client.send(link, sessions(4_500), message_format=BATCH) == Accepted()

    assert work.total["write_batch._put_chunk"] == 4_500
    assert work.most["write_batch._put_chunk"] <= AT_ONCE_MAX
    assert work.total["Sessions.arrived"] == 4_500
    assert work.most["Sessions.arrived"] <= AT_ONCE_MAX
    assert work.total["MemoryStore.commit"] == 1
    machine = queue_of(rig)
    assert machine.message_count == 4_500
    assert machine.sessions is not None
    assert machine.sessions.names() == [f"s{number}" for number in range(4_500)]
    assert rig.namespace.is_quiet
    rig.restart()
    assert queue_of(rig).message_count == 4_500


def test_nobody_is_told_of_a_large_commit_before_all_of_it_is_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M8: also while it is put together in steps."""
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    rig = rig_with(requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    client.pump()
    link.send(sessions(400), b"1", settled=False, message_format=BATCH)
    client._wire.peer.data_received(client.connection.take_output())
    while rig.loop.is_busy:
        rig.loop.turn()
        assert not any(isinstance(each, DispositionReceived) for each in _events(client))

    # The process dies before the commit: there is nothing of it.
    rig.restart()
    assert queue_of(rig).message_count == 0


def _events(client: MemoryClient) -> list[Any]:
    came, client._wire.written = b"".join(client._wire.written), []
    return list(client.connection.receive(came))


def test_what_comes_while_a_commit_is_put_together_is_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M8: the counters that are written are those of the messages that are."""
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    rig = rig_with(requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    client.pump()
    link.send(sessions(300), b"1", settled=False, message_format=BATCH)
    client.push()
    for _ in range(5):
        rig.loop.turn()
    machine = queue_of(rig)
    assert machine.in_flight is not None
    assert 0 < len(machine.saving) < 300
    byte_count = machine.byte_count
    link.send(sessions(7), b"2", settled=False, message_format=BATCH)
    client.push()
    while rig.loop.is_busy:
        rig.loop.turn()

    rig.restart(while_storing=True)
    machine = queue_of(rig)
    assert machine.message_count == 300
    assert machine.next_seq == 301
    assert machine.byte_count == byte_count


def test_a_refused_large_commit_leaves_nothing_and_gives_its_numbers_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M8: a full disk refuses all of it, in steps as at once."""
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    store = MoodyStore()
    rig = rig_with(store, requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    store.is_full = True
    state = client.send(link, sessions(300), message_format=BATCH)
    assert isinstance(state, Rejected)
    store.is_full = False
    rig.advance(2.0)
    machine = queue_of(rig)
    assert (machine.message_count, machine.byte_count, machine.next_seq) == (0, 0, 1)
    assert client.send(link, sessions(300), message_format=BATCH) == Accepted()
    assert machine.next_seq == 301


@pytest.mark.parametrize("is_full", [False, True])
def test_thousands_who_wait_for_one_commit_are_told_in_steps(work: Work, is_full: bool) -> None:
    """M13: everybody is told, in order, when it is on disk and when it was refused."""
    store = MoodyStore()
    rig = rig_with(store)
    work.count(Waiting, "stored")
    work.count(Waiting, "failed")
    store.is_full = is_full
    told = send_apart(queue_of(rig), 4_000)
    rig.namespace.touch(queue_of(rig))
    rig.run()

    assert told == [-1 - number if is_full else number for number in range(4_000)]
    assert 0 < max(work.most.values()) <= AT_ONCE_MAX
    assert queue_of(rig).message_count == (0 if is_full else 4_000)


def test_few_who_wait_are_told_in_one_callback(work: Work) -> None:
    """The usual commit takes no steps."""
    rig = rig_with()
    work.count(Waiting, "stored")
    told = send_apart(queue_of(rig), 500)
    rig.namespace.touch(queue_of(rig))
    rig.run()
    assert told == list(range(500))
    assert work.most["Waiting.stored"] == 500


@pytest.mark.parametrize("step_cost", [1.0, 1e9], ids=["in steps", "at once"])
def test_somebody_who_cannot_be_told_does_not_stop_the_namespace(
    step_cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: those who wait behind it hear that their messages are on disk."""
    monkeypatch.setattr(namespace, "STEP_COST", step_cost)
    rig = rig_with()

    class Broken:
        def stored(self, seqs: range) -> None:
            raise RuntimeError("nobody is there")

        failed = stored

    client = rig.connect()
    link = client.attach_sender("orders")
    queue_of(rig).batch.tickets.append(Broken())
    told = send_apart(queue_of(rig), 3)
    rig.namespace.touch(queue_of(rig))
    rig.run()
    assert told == [0, 1, 2]
    assert queue_of(rig).in_flight is None
    assert client.send(link, message(1)) == Accepted()


async def test_closing_tells_everybody_what_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8: whoever waits hears of it before the namespace ends, and it ends."""
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    running = Namespace("test", MemoryStore(), RuleSet(), BrokerOptions(), SystemClock(), Random(1))
    machine = await running.create_queue(QueueDescription(path="orders"))
    told = send_apart(machine, 1_000)
    running.touch(machine)
    await asyncio.sleep(0)
    await running.close()
    assert told == list(range(1_000))


@pytest.mark.parametrize("turn", ["SERVE_TURN_S", "ENOUGH_S"])
async def test_closing_writes_what_a_busy_namespace_has_put_off(
    turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: a namespace that gave others their turn still writes what it has taken in."""
    running = Namespace("test", MemoryStore(), RuleSet(), BrokerOptions(), SystemClock(), Random(1))
    machines = [
        await running.create_queue(QueueDescription(path=path)) for path in ("orders", "others")
    ]
    monkeypatch.setattr(namespace, turn, -1.0)
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    told = [send_apart(machine, 1_000) for machine in machines]
    for machine in machines:
        running.touch(machine)
    await running.close()
    assert told == [list(range(1_000))] * 2


# -- handing out ----------------------------------------------------------------------------------


def test_a_large_credit_is_served_in_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """M13, M9: thousands of small messages are handed out in order, in several turns."""
    monkeypatch.setattr(namespace, "HAND_OUT_TURN_S", -1.0)
    rig = rig_with()
    client = rig.connect()
    link = client.attach_sender("orders")
    many = batch_of(*[message(number) for number in range(4_000)])
    assert client.send(link, many, message_format=BATCH) == Accepted()
    work.count(Queue, "grant")

    assert receive_all(rig, 4_000) == list(range(4_000))
    at_once = delivery_stream.PUMP_COST_MAX // (delivery_stream.GRANT_COST + 256) + 1
    assert work.most["Queue.grant"] <= at_once
    assert work.total["Queue.grant"] >= 4_000 // 256


def test_a_drain_ends_when_everything_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """M9: what is at hand comes before the answer that there is no more."""
    monkeypatch.setattr(namespace, "HAND_OUT_TURN_S", -1.0)
    rig = rig_with()
    client = rig.connect()
    link = client.attach_sender("orders")
    many = batch_of(*[message(number) for number in range(3_000)])
    assert client.send(link, many, message_format=BATCH) == Accepted()
    receiver = client.attach_receiver("orders", snd_settle_mode=1)
    receiver.grant(4_000)
    receiver.drain()
    client.pump()
    assert not receiver.is_draining
    assert received(client) == list(range(3_000))


def test_many_sessions_are_handed_out_in_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: none of the sessions is forgotten when the time is over."""
    monkeypatch.setattr(namespace, "HAND_OUT_TURN_S", -1.0)
    monkeypatch.setattr(delivery_stream, "PUMP_COST_MAX", 10)
    rig = rig_with(requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    held = []
    for number in range(40):
        taker = rig.connect()
        held.append(taker)
        name = Symbol("com.microsoft:session-filter")
        source = Source(address="orders", filter={name: f"s{number}"})
        taker.attach_receiver("orders", source=source).grant(10)
        taker.pump()
    assert client.send(link, sessions(40), message_format=BATCH) == Accepted()
    for number, taker in enumerate(held):
        taker.pump()
        assert received(taker) == [number]


# -- topics ---------------------------------------------------------------------------------------


def test_thousands_of_single_messages_to_a_topic_take_turns(work: Work) -> None:
    """M13: between two looks at the clock only so many arrivals are passed on."""

    def create(each: Namespace) -> None:
        if each.catalogue.find("orders") is None:
            create_queue(each, TopicDescription(path="orders"))
            create_queue(each, SubscriptionDescription(path="orders/Subscriptions/all"))

    rig = Rig(MemoryStore(), create)
    machine = queue_of(rig)
    assert isinstance(machine, topic.Topic)
    told = send_apart(machine, 1_900)
    machine.take_turn(rig.now())
    assert 1_600 <= len(machine._inbox) < 1_900
    rig.namespace.touch(machine)
    rig.run()
    assert told == list(range(1_900))
    assert machine.subscriptions["all"].message_count == 1_900


# -- management -----------------------------------------------------------------------------------


def test_hundreds_of_lock_tokens_are_settled_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: one request that names hundreds of locks, each of a run of its own."""
    rig = rig_with()
    client = rig.connect()
    link = client.attach_sender("orders")
    many = batch_of(*[message(number) for number in range(500)])
    assert client.send(link, many, message_format=BATCH) == Accepted()
    receiver = client.attach_receiver("orders")
    for _ in range(500):
        receiver.grant(1)
        client.pump()
    got = [each for each in client.events if isinstance(each, DeliveryReceived)]
    tokens = uuids(*[lock_token(each) for each in got])
    client.node("orders/$management")
    monkeypatch.setattr(peers, "TURN_S", -1.0)
    turns = counted_turns(client)
    reply = client.manage(
        "orders",
        "com.microsoft:update-disposition",
        {"disposition-status": "completed", "lock-tokens": tokens},
    )
    assert reply.application_properties is not None
    assert reply.application_properties["statusCode"] == 200
    assert len(turns) >= 500 // management_node.RUNS_PER_STEP
    assert queue_of(rig).message_count == 0


# -- duplicates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_ids_are_looked_at_where_a_batch_is_read_in_slices(
    is_partitioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: when all of a batch is taken in at once, nothing has to be computed for each id."""

    def late(*_facts: Any, **_more: Any) -> bytes:
        raise AssertionError("too late")

    monkeypatch.setattr(duplicate_detection, "digest_of", late)
    rig = rig_with(requires_duplicate_detection=True, enable_partitioning=is_partitioned)
    client = rig.connect()
    link = client.attach_sender("orders")
    ids = [Properties(message_id=f"id-{number % 700}") for number in range(1_000)]
    many = batch_of(*[Message(properties=each, body=b"1").encode() for each in ids])
    assert client.send(link, many, message_format=BATCH) == Accepted()
    assert client.send(link, many, message_format=BATCH) == Accepted()
    assert queue_of(rig).message_count == 700


# -- what the broker moves itself, and what goes back ---------------------------------------------


def hostile_topic(rig: Rig) -> topic.Topic:
    """A topic whose rules take many steps for one message."""
    create_queue(rig.namespace, TopicDescription(path="events"))
    rules = [RuleDescription("r", SqlFilter("n" + "+n" * 450 + " > 0"))]
    for number in range(100):
        path = f"events/subscriptions/s{number}"
        rig.namespace.submit(
            lambda draft, path=path: draft.create(SubscriptionDescription(path=path), rules, 1),
            unheard,
        )
    rig.run()
    found = rig.namespace.catalogue.find("events")
    assert isinstance(found, topic.Topic)
    return found


def numbered() -> bytes:
    return pack_record(Record(Message(application_properties={"n": 1}, body=b"1").encode()))


def until_half_done(rig: Rig, machine: topic.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the topic begin to look at a message, and no more."""
    monkeypatch.setattr(namespace, "FAN_OUT_TURN_S", -1.0)
    for _ in range(1_000):
        rig._take_step()
        if machine._steps is not None:
            return
    raise AssertionError("the topic does not begin")


def copies(machine: topic.Topic) -> int:
    return sum(each.message_count for each in machine.subscriptions.values())


def test_a_due_message_that_is_cancelled_while_rules_look_at_it_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M3, M13: until the last step it is in the schedule, and can be cancelled there."""
    rig = rig_with()
    machine = hostile_topic(rig)
    due_ms = rig.now().wall_ms + 10_000
    messages = [IncomingMessage(numbered(), None, due_ms) for _ in range(2)]
    machine.enqueue(messages, Waiting([], 0))
    rig.namespace.touch(machine)
    rig.run()
    rig.loop.now_s += 20
    until_half_done(rig, machine, monkeypatch)
    assert machine.scheduled_count == 2
    assert copies(machine) == 0
    machine.cancel_scheduled([ScheduledSize(1, len(messages[0].record))], Waiting([], 1))
    rig.namespace.touch(machine)
    rig.run()
    assert machine.scheduled_count == 0
    assert copies(machine) == 100
    rig.restart()
    assert sum(each.message_count for each in rig.namespace.catalogue.machines()) == 100


@pytest.mark.parametrize("ends", ["restart", "target", "source", "forward"])
def test_a_message_on_its_way_through_rules_is_in_one_place(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8, M13: it is in its source until the topic knows who gets it.

    What is deleted may be deleted after that: then the message goes with it.
    """
    rig = rig_with()
    machine = hostile_topic(rig)
    source = QueueDescription(path="source", forward_to="events")
    create_queue(rig.namespace, source)
    rig.run()
    queue_ = rig.namespace.catalogue.find("source")
    assert queue_ is not None
    queue_.enqueue([IncomingMessage(numbered(), None, None)], Waiting([], 0))
    rig.namespace.touch(queue_)
    until_half_done(rig, machine, monkeypatch)
    assert queue_.message_count == 1

    if ends == "restart":
        rig.restart()
        rig.run()
    else:
        plans: dict[str, Callable[[Draft], object]] = {
            "target": lambda draft: draft.delete(machine.queue_id, "events"),
            "source": lambda draft: draft.delete(queue_.queue_id, "source"),
            "forward": lambda draft: draft.update(
                queue_.queue_id, queue_.description, replace(source, forward_to=None), 2
            ),
        }
        rig.namespace.submit(plans[ends], unheard)
        rig.run()
    rig.advance(5)
    counts = [
        each.message_count
        for each in rig.namespace.catalogue.machines()
        if each.message_count and each.description.path != "orders"
    ]
    assert (
        counts
        in {
            "restart": [[1] * 100],
            "target": [[1], []],
            "source": [[], [1] * 100],
            "forward": [[1], [1] * 100],
        }[ends]
    )


def test_a_forward_that_ends_while_rules_look_gives_its_messages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M3, M8, M13: they are in the source, nobody holds them, and no subscription has a copy."""
    rig = rig_with()
    machine = hostile_topic(rig)
    source = QueueDescription(path="source", forward_to="events")
    create_queue(rig.namespace, source)
    rig.run()
    queue_ = rig.namespace.catalogue.find("source")
    assert queue_ is not None
    queue_.enqueue([IncomingMessage(numbered()) for _ in range(3)], Waiting([], 0))
    rig.namespace.touch(queue_)
    until_half_done(rig, machine, monkeypatch)
    assert queue_.locked_count == 3
    queue_.description = replace(source, forward_to=None)
    rig.namespace.caretakers.entity_changed(queue_)
    rig.run()
    assert (queue_.message_count, queue_.locked_count, copies(machine)) == (3, 0, 0)


def test_messages_that_a_topic_looks_at_are_held_for_longer_than_a_lock_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M3, M13: nobody else gets them meanwhile, and each arrives once."""
    rig = rig_with()
    machine = hostile_topic(rig)
    create_queue(
        rig.namespace,
        QueueDescription(path="source", forward_to="events", lock_duration_ms=1_000),
    )
    rig.run()
    queue_ = rig.namespace.catalogue.find("source")
    assert queue_ is not None
    queue_.enqueue([IncomingMessage(numbered()) for _ in range(3)], Waiting([], 0))
    rig.namespace.touch(queue_)
    until_half_done(rig, machine, monkeypatch)
    rig.loop.now_s += 5
    queue_.handle_timer(rig.now())
    assert queue_.locked_count == 3
    rig.advance(5)
    assert (queue_.message_count, copies(machine)) == (0, 300)


def test_nothing_of_a_session_is_handed_out_before_all_of_it_is_back() -> None:
    """M3, M13: hundreds of runs go back in turns, and keep their order."""
    rig = rig_with(requires_session=True)
    client = rig.connect()
    link = client.attach_sender("orders")
    many = batch_of(*[message(number, "s") for number in range(400)])
    assert client.send(link, many, message_format=BATCH) == Accepted()
    source = Source(address="orders", filter={Symbol("com.microsoft:session-filter"): "s"})
    holder = rig.connect()
    receiver = holder.attach_receiver("orders", source=source)
    for _ in range(300):
        receiver.grant(1)
        holder.pump()
    holder.close()
    other = rig.connect()
    other.attach_receiver("orders", source=source).grant(400)
    other.pump()
    assert received(other) == list(range(400))


@pytest.mark.parametrize("deletes", [True, False])
def test_deferred_messages_are_taken_in_steps_and_the_session_is_lost_between(
    deletes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M13: each message is in the answer or in the queue."""
    rig = rig_with(requires_session=True)
    station = Station(rig)
    for number in range(6):
        station.send("orders", encoded(str(number), session="s"))
    accepted = station.accept("orders", "s")
    assert accepted is not None
    _session, link = accepted
    for got in station.receive_on(link, 6):
        assert station.settle(got, "defer")
    machine = queue_of(rig)
    assert machine.sessions is not None
    (lock,) = machine.sessions._locks.values()
    monkeypatch.setattr(management_node, "TAKEN_PER_STEP", 2)
    built: list[DeliveryBatch] = []

    def lose_the_session(grant: DeliveryBatch) -> dict[str, Any]:
        built.append(grant)
        if len(built) == 2:
            rig.loop.call_soon(partial(machine.sessions.release, lock, is_failure=True))
        return deferred_message(grant)

    monkeypatch.setattr(management_node, "deferred_message", lose_the_session)
    body = {
        "sequence-numbers": Array.of(LONGS, [Long(seq) for seq in range(1, 7)]),
        "receiver-settle-mode": UInt(0 if deletes else 1),
        "session-id": "s",
    }
    reply = station._manage("orders", "receive-by-sequence-number", body)
    rig.run()
    assert lock.is_over
    answered = 0 if reply is None else len(reply["messages"])
    assert (answered, machine.message_count) == ((6, 0) if deletes else (0, 6))
    assert machine.locked_count == 0


def test_a_topic_has_2000_subscriptions_at_most() -> None:
    """M13: as in Azure; each of them may get a copy of a message."""
    rig = rig_with()
    create_queue(rig.namespace, TopicDescription(path="events"))
    told: list[Exception | None] = []
    for number in range(2_001):
        described = SubscriptionDescription(path=f"events/subscriptions/s{number}")
        rig.namespace.submit(
            lambda draft, described=described: draft.create(described, None, 1), told.append
        )
    rig.run()
    (refused,) = [each for each in told if each is not None]
    assert len(told) == 2_001
    assert "as many as it may have" in str(refused)


# -- queues that are closed a few at a time -------------------------------------------------------


def plain(count: int = 1) -> list[IncomingMessage]:
    return [IncomingMessage(pack_record(Record(message(number)))) for number in range(count)]


@pytest.mark.parametrize("is_written", ["source", "dead letters"])
def test_a_message_is_dead_lettered_while_queues_are_closed_one_by_one(
    is_written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: its removal and its arrival are in one transaction, whichever queue had changes.

    If the process dies after that transaction, the message is in exactly one place.
    """
    rig = rig_with()
    create_queue(rig.namespace, QueueDescription(path="first"))
    machine = queue_of(rig)
    machine.enqueue(plain(), Waiting([], 0))
    rig.namespace.touch(machine)
    rig.run()
    granted: list[DeliveryBatch] = []
    consumer = Consumer(granted.append, unsettled_max=1, credit=1)
    machine.attach(consumer)
    machine.credit_available(consumer)
    rig.namespace.touch(machine)
    rig.run()
    run = granted[0].run
    assert run is not None
    assert machine.dead_letters is not None

    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    monkeypatch.setattr(namespace, "CLOSED_COUNT", 1)
    first = rig.namespace.catalogue.find("first")
    assert first is not None
    changed = machine if is_written == "source" else machine.dead_letters
    for each in (first, changed):
        each.enqueue(plain(), Waiting([], 0))
        rig.namespace.touch(each)
    while first.in_flight is None:
        rig.loop.turn()
    assert changed.in_flight is None
    machine.settle(run, run.unsettled, DeadLetter("why", ""), rig.now(), None)
    rig.namespace.touch(machine)
    while rig.loop.is_busy:
        rig.loop.turn()

    rig.restart(while_storing=True)
    machine = queue_of(rig)
    assert machine.dead_letters is not None
    assert machine.message_count + machine.dead_letters.message_count == 2


def held_by_us(rig: Rig, machine: Queue, count: int) -> LockRun:
    """A lock on so many messages, which are in one chunk."""
    granted: list[DeliveryBatch] = []
    machine.enqueue(plain(count), Waiting([], 0))
    consumer = Consumer(granted.append, unsettled_max=count, credit=count)
    machine.attach(consumer)
    machine.credit_available(consumer)
    rig.namespace.touch(machine)
    rig.run()
    (grant,) = granted
    assert grant.run is not None
    assert grant.count == count
    return grant.run


def test_what_is_completed_after_a_batch_was_closed_is_not_on_disk_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M3, M8: the last message of a chunk goes while the others are written down as gone."""
    rig = rig_with()
    create_queue(rig.namespace, QueueDescription(path="second"))
    machine = queue_of(rig)
    run = held_by_us(rig, machine, 10)
    second = rig.namespace.catalogue.find("second")
    assert second is not None
    monkeypatch.setattr(namespace, "STEP_COST", 1.0)
    monkeypatch.setattr(namespace, "CLOSED_COUNT", 1)
    machine.settle(run, 0b0111111111, Complete(), rig.now(), None)
    second.enqueue(plain(), Waiting([], 0))
    rig.namespace.touch(machine)
    rig.namespace.touch(second)
    while machine.in_flight is None:
        rig.loop.turn()
    assert second.in_flight is None
    machine.settle(run, 0b1000000000, Complete(), rig.now(), None)
    while rig.namespace._is_closing or rig.loop.is_busy:
        rig.loop.turn()

    rig.restart(while_storing=True)
    assert queue_of(rig).message_count == 1
    assert receive_all(rig, 10) == [9]


@pytest.mark.parametrize("is_stored_later", [True, False])
@pytest.mark.parametrize("step_cost", [1.0, 2_000.0])
def test_removals_that_a_full_disk_refuses_are_made_again_with_the_later_ones(
    is_stored_later: bool, step_cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: those of one chunk in two batches; until then all messages are on disk."""
    monkeypatch.setattr(namespace, "STEP_COST", step_cost)
    store = MoodyStore()
    rig = rig_with(store)
    machine = queue_of(rig)
    run = held_by_us(rig, machine, 10)
    store.is_full = True
    machine.settle(run, 0b0000000111, Complete(), rig.now(), None)
    rig.namespace.touch(machine)
    while machine.in_flight is None:
        rig.loop.turn()
    machine.settle(run, 0b0000011000, Complete(), rig.now(), None)
    rig.namespace.touch(machine)
    rig.run()
    assert machine.batch.gone == {1: 0b11111}
    if is_stored_later:
        store.is_full = False
        rig.advance(2.0)
        assert machine.batch.gone == {}
    store.is_full = False
    rig.restart()
    left = 5 if is_stored_later else 10
    assert queue_of(rig).message_count == left
    assert receive_all(rig, 10) == list(range(10 - left, 10))


# -- rights that end, looked at in turns ----------------------------------------------------------


def test_no_peer_acts_on_a_key_that_is_gone_before_its_turn_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M13, M14: a peer that sends looks at its own links first, although others are before it."""
    rig = rig_with()
    clients = [rig.connect() for _ in range(5)]
    links = [client.attach_sender("orders") for client in clients]
    monkeypatch.setattr(namespace, "RECHECK_TURN_S", -1.0)
    rig.namespace.replace_rules(RuleSet())
    for client, link in zip(clients, links, strict=True):
        link.send(message(1), b"1", settled=True)
        client._wire.peer.data_received(client.connection.take_output())
    rig.run()
    assert queue_of(rig).message_count == 0


def test_a_quiet_receiver_gets_nothing_once_all_peers_have_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M13, M14: a link at a time, and all of them: the caller hears of it after that."""
    rig = rig_with()
    clients = [rig.connect() for _ in range(5)]
    for client in clients:
        for _ in range(3):
            client.attach_receiver("orders").grant(100)
        client.pump()
    monkeypatch.setattr(namespace, "RECHECK_TURN_S", -1.0)
    told: list[int] = []
    rig.namespace._recheck_peers(lambda: told.append(1))
    turns = 0
    while not told:
        rig.loop.turn()
        turns += 1
        assert turns <= 100
    assert turns > 10
    machine = queue_of(rig)
    machine.enqueue(plain(50), Waiting([], 0))
    rig.namespace.touch(machine)
    rig.run()
    assert (machine.message_count, machine.locked_count) == (50, 0)

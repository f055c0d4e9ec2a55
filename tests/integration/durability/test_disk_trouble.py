"""A slow, a full and a broken disk: who is told what, and what is there afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.durability.broker_thread import BrokerThread, payload
from tests.support.queue_simulation.mutants import acknowledge_before_commit
from tests.support.wire_client import WireClient
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.errors import Condition
from twinbus.amqp.events import ConnectionClosed, DeliveryReceived, DispositionReceived
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.namespace.purge import PurgeInterrupted
from twinbus.errors import ConfigurationError, StoreFailed, StoreFull

# Long enough that an answer that comes too early would have come.
QUIET_S = 0.3


def sent(client: WireClient, body: str) -> Any:
    """Send a message on a link of its own and wait for the outcome."""
    return client.send(client.attach_sender("orders"), payload(body))


def received(client: WireClient, count: int) -> list[tuple[str, int]]:
    """Bodies and delivery ids of the next messages."""
    client.attach_receiver("orders").grant(count)
    messages = []
    for _ in range(count):
        event = client.wait_for(DeliveryReceived)
        messages.append((Message.decode(event.payload).body.decode(), event.delivery_id))
    return messages


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# -- a slow disk ------------------------------------------------------------------------------


def check_that_nobody_is_answered_before_the_commit(
    broker: BrokerThread, plant: Callable[[], None] = lambda: None
) -> None:
    """The check of rule M8 that a broker which acknowledges too early must fail."""
    with broker.client() as client:
        # Given a message to settle, and a disk on which commits do not end
        assert sent(client, "settle me") == Accepted()
        ((_body, delivery_id),) = received(client, 1)
        link = client.attach_sender("orders")
        client._await_credit(link)
        plant()
        broker.store.hold()

        # When one message is sent and the other completed
        link.send(payload("store me"), b"tag", settled=False)
        client.settle(delivery_id, delivery_id, Accepted())
        assert broker.store.is_waiting.wait(10)

        # Then nobody hears anything
        client.events.clear()
        deadline = time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            client.pump()
        early = [event for event in client.events if isinstance(event, DispositionReceived)]
        broker.store.let_go()
        assert early == []

        # Until the disk has both
        for _ in range(2):
            client.wait_for(DispositionReceived)


def test_nobody_is_answered_before_the_commit(broker: BrokerThread) -> None:
    """M8: an acknowledged send is on disk, and so is an acknowledged settlement."""
    check_that_nobody_is_answered_before_the_commit(broker)


def test_the_check_sees_a_broker_that_answers_before_the_commit(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: the bug is planted, and the check above fails."""
    with pytest.raises(AssertionError, match="DispositionReceived"):
        check_that_nobody_is_answered_before_the_commit(
            broker, lambda: acknowledge_before_commit(monkeypatch)
        )


# -- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_sends_and_the_broker_goes_on(broker: BrokerThread) -> None:
    """M8 and M11: server-busy, nothing of it stored, and business as usual afterwards."""
    with broker.client() as client:
        # Given a disk that is full after one message
        assert sent(client, "before") == Accepted()
        broker.store.is_full = True

        # When more is sent
        outcome = sent(client, "refused")

        # Then the sender is told to wait, and others still receive
        assert isinstance(outcome, Rejected) and outcome.error is not None
        assert outcome.error.condition == Condition.SERVER_BUSY
        ((body, delivery_id),) = received(client, 1)
        assert body == "before"
        assert broker.health()[0] == 200

        # And a settlement is refused in the same way, but done when there is room
        client.settle(delivery_id, delivery_id, Accepted())
        answer = client.wait_for(DispositionReceived)
        assert isinstance(answer.state, Rejected) and answer.state.error is not None
        assert answer.state.error.condition == Condition.SERVER_BUSY
        broker.store.is_full = False
        assert sent(client, "after") == Accepted()
        queue = broker.namespace.queue("orders")
        assert queue is not None
        until(lambda: queue.message_count == 1, "the refused settlement is tried again")
        assert [body for body, _id in received(client, 1)] == ["after"]
        # "before" had number 1; the refused message left no gap.
        assert queue.next_seq == 3


def test_a_full_disk_is_asked_again_now_and_then(broker: BrokerThread) -> None:
    """What the broker itself wants to write must not keep a full disk, or a core, busy."""
    with broker.client() as client:
        assert sent(client, "a") == Accepted()
        ((_body, delivery_id),) = received(client, 1)
        broker.store.is_full = True
        client.settle(delivery_id, delivery_id, Accepted())
        client.wait_for(DispositionReceived)

        time.sleep(QUIET_S)

        # The pause is 50 ms in these tests and 1 s in life.
        assert 2 <= broker.store.refusals <= 10


def test_a_queue_that_could_not_be_created_is_not_there(broker: BrokerThread) -> None:
    """M8: a half-made queue would end the namespace with the first message sent to it."""
    broker.store.is_full = True
    with pytest.raises(StoreFull):
        broker.run(lambda: broker.namespace.create_queue("invoices"))
    broker.store.is_full = False

    # Then it can be made when there is room, and used
    assert broker.namespace.queue("invoices") is None
    broker.run(lambda: broker.namespace.create_queue("invoices"))
    with broker.client() as client:
        assert client.send(client.attach_sender("invoices"), payload("a")) == Accepted()
    assert broker.health()[0] == 200


def test_properties_that_could_not_be_stored_do_not_hold(broker: BrokerThread) -> None:
    broker.store.is_full = True
    changed = QueueDescription(path="orders", max_delivery_count=77)

    with pytest.raises(StoreFull):
        broker.run(lambda: broker.namespace.update_queue(changed))

    queue = broker.namespace.queue("orders")
    assert queue is not None
    assert queue.description.max_delivery_count == 10


def test_a_queue_that_cannot_be_deleted_on_a_full_disk_is_there_as_before(
    broker: BrokerThread,
) -> None:
    """M15: a refused deletion has changed nothing; asked for again when there is room, it holds."""
    with broker.client() as client:
        assert sent(client, "a") == Accepted()

        # When the queue is deleted on a full disk
        broker.store.is_full = True
        with pytest.raises(StoreFull):
            broker.run(lambda: broker.namespace.delete_queue("orders"))

        # Then it is there, with its message and its links
        queue = broker.namespace.queue("orders")
        assert queue is not None and queue.message_count == 1
        broker.store.is_full = False
        assert sent(client, "b") == Accepted()
        assert [body for body, _id in received(client, 2)] == ["a", "b"]

        # And goes for good once there is room
        broker.run(lambda: broker.namespace.delete_queue("orders"))
        assert broker.namespace.queue("orders") is None
    assert broker.run(lambda: _entities(broker)) == []


async def _entities(broker: BrokerThread) -> list[Any]:
    await broker.namespace.close()
    store = broker.store._store
    recovered = store.open()
    store.close()
    return recovered.entities


# -- a broken disk ----------------------------------------------------------------------------


@pytest.mark.parametrize("commits_left", [0, 1, 5])
def test_a_broken_disk_ends_all_acknowledgements(
    commits_left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: after a failed sync nobody knows what is on disk, so nobody is told anything more."""
    accepted = []
    with BrokerThread(tmp_path / "data", monkeypatch) as broker:
        with broker.client() as bystander, broker.client() as client:
            # Given a disk that breaks after some commits
            link = client.attach_sender("orders")
            broker.store.commits_left = commits_left

            # When messages are sent until it does
            for number in range(commits_left + 1):
                try:
                    if client.send(link, payload(str(number))) == Accepted():
                        accepted.append(str(number))
                except ConnectionError:
                    break

            # Then every peer is cut with a reason, not only the one that was sending
            for peer in (client, bystander):
                closed = peer.wait_for(ConnectionClosed)
                assert closed.error is not None
                assert closed.error.condition == Condition.INTERNAL_ERROR
        assert len(accepted) == commits_left

        # And the broker says so, and lets nobody in who would only be disappointed
        status, health = broker.health()
        assert (status, health["status"]) == (503, "failed")
        assert health["namespaces"]["demo"]["status"].startswith("failed: ")
        broker.store.commits_left = None
        with WireClient(broker.namespace.port) as newcomer:
            closed = newcomer.wait_for(ConnectionClosed)
            assert closed.error.condition == Condition.INTERNAL_ERROR
        with pytest.raises(StoreFailed):
            broker.run(lambda: broker.namespace.create_queue("more"))

    # And what was acknowledged is there after a restart with a good disk
    with BrokerThread(tmp_path / "data", monkeypatch) as broker, broker.client() as client:
        assert [body for body, _id in received(client, len(accepted))] == accepted
        assert sent(client, "again") == Accepted()


def test_whoever_waits_when_the_disk_breaks_is_told(broker: BrokerThread) -> None:
    """An administrator's request that was not even begun is answered too."""
    broker.store.hold()
    first = broker.start(lambda: broker.namespace.create_queue("first"))
    assert broker.store.is_waiting.wait(10)
    second = broker.start(lambda: broker.namespace.create_queue("second"))
    waiting = broker.namespace.access._changes
    until(lambda: bool(waiting), "the second has begun")

    broker.store.commits_left = 0
    broker.store.let_go()

    for call in (first, second):
        with pytest.raises(StoreFailed):
            call.result(10)


def test_a_disk_that_cannot_be_read_ends_the_namespace(broker: BrokerThread) -> None:
    """M8: messages that cannot be read are not skipped."""
    with broker.client() as client:
        for body in "ab":
            assert sent(client, body) == Accepted()
        broker.store.reads_fail = True

        client.attach_receiver("orders").grant(10)

        assert client.wait_for(ConnectionClosed).error is not None
    assert broker.health()[0] == 503


def test_a_late_read_of_a_deleted_queue_harms_nobody(broker: BrokerThread) -> None:
    """M8: housekeeping takes its rows away table by table; what is left is no damage."""
    namespace = broker.namespace
    doomed = broker.run(lambda: namespace.create_queue("doomed"))
    orders = namespace.queue("orders")
    assert orders is not None
    with broker.client() as client:
        assert client.send(client.attach_sender("doomed"), payload("a")) == Accepted()

        # Given reads of a queue, for a receiver and for a purge, behind one that takes its time
        goes_on = threading.Event()

        async def keep_reader_busy() -> None:
            namespace.access.read(orders, lambda _store: goes_on.wait(20), lambda _result: None)

        broker.run(keep_reader_busy)
        client.attach_receiver("doomed").grant(10)
        client.pump(0.1)
        purge = broker.start(lambda: namespace.purge("doomed"))
        until(lambda: len(doomed.chunk_cache.grace._open) >= 2, "both wait")

        # When the queue is deleted, and the reads find something half
        broker.run(lambda: namespace.delete_queue("doomed"))
        broker.store.reads_fail = True
        goes_on.set()
        with pytest.raises(PurgeInterrupted):
            purge.result(10)
        broker.store.reads_fail = False

        # Then the broker goes on
        assert sent(client, "b") == Accepted()
        assert [body for body, _id in received(client, 1)] == ["b"]
    assert broker.health()[0] == 200


def test_a_deleted_queue_leaves_no_timer_behind(broker: BrokerThread) -> None:
    """A queue that is made and deleted a million times must not fill the memory."""
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)}
    with broker.client() as client:
        message = Message(message_annotations=later, body=b"in many years").encode()
        assert client.send(client.attach_sender("orders"), message) == Accepted()
        assert len(broker.namespace.access._timers) == 1

        broker.run(lambda: broker.namespace.delete_queue("orders"))

    assert broker.namespace.access._timers == {}


def test_a_queue_exists_once(broker: BrokerThread) -> None:
    with pytest.raises(ConfigurationError):
        broker.run(lambda: broker.namespace.create_queue("orders"))

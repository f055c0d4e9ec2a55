"""What ends in the middle of something: deleted queues, ended sessions, connections that are gone.

Whatever they held of what all clients share is given back, and nobody waits for an answer for ever.
"""

from __future__ import annotations

from tests.support.catalogue_changes import unheard
from tests.support.engine.driver import Answer, Driver
from tests.unit.broker.model.rig import MemoryClient, Rig
from tests.unit.broker.test_steps import message, queue_of, rig_with
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived, DispositionReceived
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.outcomes import DeadLetter
from twinbus.broker.server.settlement import apply


def send_many(client: MemoryClient, count: int) -> None:
    link = client.attach_sender("orders")
    for number in range(count):
        assert client.send(link, message(number)) == Accepted()


def lock_some(client: MemoryClient, count: int) -> list[int]:
    link = client.attach_receiver("orders")
    link.grant(count)
    return [
        client.wait_for(DeliveryReceived, lambda seen: seen.link is link).delivery_id
        for _ in range(count)
    ]


def delete(rig: Rig) -> None:
    queue = queue_of(rig)
    rig.namespace.submit(lambda draft: draft.delete(queue.queue_id, "orders"), unheard)
    rig.run()


def test_locks_of_a_deleted_queue_are_given_back() -> None:
    """M13: their count would keep others from receiving until the broker is started again."""
    rig = rig_with()
    client = rig.connect()
    send_many(client, 20)
    lock_some(client, 20)
    assert rig.namespace.unsettled.used == 20
    (peer,) = rig.namespace.peers
    delete(rig)
    assert rig.namespace.unsettled.used == 0
    assert peer.allowance.left == peer.limits.unsettled_per_connection_max


def test_a_send_to_a_queue_that_is_gone_is_refused_and_holds_nothing() -> None:
    """M13: between the deletion and the moment at which links hear of it."""
    rig = rig_with()
    client = rig.connect()
    link = client.attach_sender("orders")
    queue_of(rig).is_deleted = True
    outcome = client.send(link, message(1))
    assert isinstance(outcome, Rejected) and "not-found" in str(outcome.error)
    assert rig.namespace.throttle.pending.used == 0


def test_a_deleted_queue_is_not_written_again() -> None:
    """M13: the store would refuse it, and all that is written with it."""
    rig = rig_with()
    queue = queue_of(rig)
    delete(rig)
    assert queue not in rig.namespace.catalogue.dirty

    rig = rig_with()
    queue = queue_of(rig)
    rig.namespace.catalogue.dirty[queue] = None
    rig.namespace._withdraw(queue)
    assert queue not in rig.namespace.catalogue.dirty


def test_an_answer_for_a_session_that_has_ended_is_dropped() -> None:
    """M13: what waits for credit counts until it is sent, and this never would be."""
    rig = rig_with()
    client = rig.connect()
    send_many(client, 1)
    path = "orders/$management"
    client.attach_receiver(path)
    requests = client.attach_sender(path)
    client.pump()
    request = Message(
        properties=Properties(message_id="peek", reply_to="reply-here"),
        application_properties={"operation": "com.microsoft:peek-message"},
        body=AmqpValue({"from-sequence-number": 1, "message-count": 1}),
    )
    requests.send(request.encode(), b"1", settled=True)
    client.session.end()
    client.push()
    rig.run()
    assert rig.namespace.output.used == 0
    client.close()
    assert rig.namespace.output.used == 0


def test_a_settlement_that_a_fault_has_delayed_ends_with_its_connection() -> None:
    """F4: nobody is left to be answered, and no error escapes."""
    rig = rig_with()
    client = rig.connect()
    send_many(client, 1)
    (delivery_id,) = lock_some(client, 1)
    (peer,) = rig.namespace.peers
    (session,) = peer.connection.sessions.values()
    ledger = peer.ledger(session)
    late = DispositionReceived(session, True, delivery_id, delivery_id, False, Accepted())
    client.close()
    apply(rig.namespace, ledger, late)
    rig.run()
    assert queue_of(rig).message_count == 1


def test_who_waits_for_a_move_whose_bytes_are_read_hears_of_the_deletion() -> None:
    """M8: the request is answered."""
    driver = Driver()
    driver.sent("a")
    (received,) = driver.receive(driver.client())
    assert received.run is not None
    chunk = received.run.chunk
    chunk.blob = None
    answer = Answer()
    message_transitions.dead_letter(
        driver.queue, chunk, received.mask, DeadLetter("because"), answer
    )
    assert driver.queue.discard() == [answer]

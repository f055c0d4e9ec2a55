"""The sync drop-in sends on the caller's thread while its entity is healthy, and loses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.integration.azure.conftest import MakePairing
from tests.integration.azure.test_paired_sync import paired
from twinbus.azure import PairedServiceBusClient
from twinbus.azure.client import PairedServiceBusSender
from twinbus.errors import ConfigurationError
from twinbus.pairing.direct_sender import BUSY_SENDS
from twinbus.sync.blocking_portal import BlockingPortal
from twinbus.testing import NamespacePairFixture

PATIENCE_S = 20.0


def make_direct(sender: PairedServiceBusSender) -> int:
    """Send until the sender has a link of its own; how many messages that took."""
    direct, sent = sender._parts().direct, 0
    assert direct is not None
    end_s = time.monotonic() + PATIENCE_S
    while direct._link is None:
        assert time.monotonic() < end_s, "the sender got no link of its own"
        sender.send_messages(ServiceBusMessage("first"))
        sent += 1
    return sent


@contextmanager
def calls_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the callers hand to the loop."""
    calls: list[Any] = []
    with monkeypatch.context() as patch:
        call = BlockingPortal.call

        def noted(portal: BlockingPortal, work: Any) -> Any:
            calls.append(work.__qualname__)
            return call(portal, work)

        patch.setattr(BlockingPortal, "call", noted)
        yield calls


def waiting(pair: NamespacePairFixture) -> int:
    """How many messages are in the backlog."""
    paths = [f"home/x-servicebus-transfer/{index}" for index in range(2)]
    return sum(pair.secondary.machine(path).active_count for path in paths)


def names(client: PairedServiceBusClient) -> list[str]:
    """The names of all events from now on."""
    told: list[str] = []
    client.messaging_factory.on_event(lambda each: told.append(each.name))
    return told


def test_a_busy_sender_of_a_healthy_entity_does_not_enter_the_loop(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: a paired send costs what a plain one does."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sent = make_direct(sender)
        assert sent >= BUSY_SENDS
        with calls_of_the_loop(monkeypatch) as calls:
            for number in range(20):
                sender.send_messages(ServiceBusMessage(str(number)), timeout=10)
        assert calls == []
        assert orders.active_message_count == sent + 20
        health = client.messaging_factory.health(orders)
        assert not health.is_diverted and health.sends_under_way == 0


def test_a_sender_that_is_not_busy_has_one_connection(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: a second link is for those to whom it is of use."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        for _ in range(BUSY_SENDS - 1):
            sender.send_messages(ServiceBusMessage("now and then"))
        assert sender._parts().direct is not None and sender._parts().direct._link is None
        assert not sender._parts().direct._opening.locked()


@pytest.mark.parametrize("how", ["refused", "reset"])
def test_the_send_that_finds_the_outage_goes_to_the_backlog(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, how: str
) -> None:
    """P6 and P10: no send fails, whichever thread it began on, and the entity comes home."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sent, told = make_direct(sender), names(client)
        with servicebus_pair.primary.outage(how):
            for number in range(5):
                sender.send_messages(ServiceBusMessage(str(number)), timeout=10)
        assert told[:2] == ["suspected", "diverted"]
        assert waiting(servicebus_pair) >= 4
        end_s = time.monotonic() + PATIENCE_S
        while "restored" not in told:
            assert time.monotonic() < end_s, told
            time.sleep(0.05)
        make_direct(sender)
        home = orders.active_message_count
        assert home + waiting(servicebus_pair) >= sent + 5


def test_a_direct_send_into_silence_ends_in_time(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P10 and F6: a quarter of its time is the backlog's."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        make_direct(sender)
        with servicebus_pair.primary.outage("black-hole"):
            began_s = time.monotonic()
            sender.send_messages(ServiceBusMessage("x"), timeout=4)
            assert time.monotonic() - began_s < 4.5
        assert waiting(servicebus_pair) == 1


def test_a_diversion_wakes_a_direct_send(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P22: it goes on to the backlog at once, and may arrive twice."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        make_direct(sender)
        told = names(client)
        factory = client.messaging_factory
        with servicebus_pair.primary.outage("black-hole"), ThreadPoolExecutor(1) as thread:
            sending = thread.submit(sender.send_messages, ServiceBusMessage("x"), timeout=60)
            end_s = time.monotonic() + PATIENCE_S
            while not factory.health(orders).sends_under_way:
                assert time.monotonic() < end_s
                time.sleep(0.01)
            time.sleep(0.2)
            began_s = time.monotonic()
            factory.force_failover(orders)
            sending.result(PATIENCE_S)
            assert time.monotonic() - began_s < 5
        assert "possible-duplicate" in told and waiting(servicebus_pair) == 1


def test_many_threads_share_a_direct_sender(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: one of them has the link, the others use the loop, and each message is there once."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sent = make_direct(sender)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: sender.send_messages(ServiceBusMessage(str(n))), range(80)))
        assert orders.active_message_count == sent + 80


def test_a_link_that_was_taken_away_while_idle_is_no_error(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: the loop sends the message, and nothing is suspected."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sent, told = make_direct(sender), names(client)
        assert sender._parts().direct is not None and sender._parts().direct._link is not None
        link: Any = sender._parts().direct._link
        link._sock.shutdown(2)
        sender.send_messages(ServiceBusMessage("later"))
        assert sender._parts().direct._link is None
        assert orders.active_message_count == sent + 1 and told == []


def test_errors_of_a_direct_send_are_the_sdks_own(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0 and P7: an entity that was deleted is the caller's business."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        make_direct(sender)
        servicebus_pair.primary.reset()
        with pytest.raises(MessagingEntityNotFoundError):
            sender.send_messages(ServiceBusMessage("x"))


def test_reserved_names_are_refused_on_every_way(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P12: also by a direct send."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        make_direct(sender)
        message = ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
        with pytest.raises(ValueError, match="x-ms-path"):
            sender.send_messages(message)


def test_large_messages_go_through_the_loop(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: the SDK's blocking sender gives up on a write that takes longer than 0.2 s."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        make_direct(sender)
        with calls_of_the_loop(monkeypatch) as calls:
            sender.send_messages(ServiceBusMessage(bytes(100_000)))
            sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        assert len(calls) == 2


def test_what_is_metered_is_sent_by_the_loop(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, tmp_path: Path
) -> None:
    """C1: the books count each send."""
    orders = servicebus_pair.primary.queue("orders")
    client = PairedServiceBusClient.from_connection_string(
        servicebus_pair.primary.connection_string, pairing=pairing(metering=tmp_path)
    )
    with client, client.get_queue_sender(orders) as sender:
        assert isinstance(sender, PairedServiceBusSender)
        for _ in range(2 * BUSY_SENDS):
            sender.send_messages(ServiceBusMessage("x"))
        assert sender._parts().direct is None


def test_a_closed_client_leaves_no_thread_and_no_link(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """L2: also where its senders were not closed one by one."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        make_direct(sender)
    assert sender._parts().direct is not None and sender._parts().direct._link is None
    assert not [each for each in threading.enumerate() if each.name == "twinbus-direct-link"]
    sender.close()
    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages(ServiceBusMessage("x"))


def test_a_listener_on_the_loop_cannot_block_it(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: a blocking send from a callback is refused, direct or not: nobody could divert it."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sent, raised = make_direct(sender), []

        def listener(_: object) -> None:
            try:
                sender.send_messages(ServiceBusMessage("from a callback"))
            except ConfigurationError as error:
                raised.append(error)

        factory = client.messaging_factory
        factory.on_event(listener)
        factory.hold(orders)
        assert len(raised) == 1
        assert orders.active_message_count == sent


@pytest.mark.parametrize("how", ["refused", "reset", "cannot-send"])
def test_no_send_of_many_threads_fails_or_is_lost_in_an_outage(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, how: str
) -> None:
    """P6, P10 and P25: four threads with a direct sender each, and four that share one."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, ExitStack() as stack:
        senders = [stack.enter_context(client.get_queue_sender(orders)) for _ in range(5)]
        sent = sum(map(make_direct, senders))
        is_over = threading.Event()

        def work(number: int) -> int:
            count = 0
            while not is_over.is_set():
                message = ServiceBusMessage("x")
                senders[min(number, 4)].send_messages(message, timeout=30)
                count += 1
            return count

        with ThreadPoolExecutor(8) as threads:
            working = [threads.submit(work, number) for number in range(8)]
            time.sleep(0.3)
            with servicebus_pair.primary.outage(how):
                time.sleep(0.7)
                is_over.set()
                sent += sum(each.result(PATIENCE_S) for each in working)
        assert waiting(servicebus_pair) > 0
        assert orders.active_message_count + waiting(servicebus_pair) >= sent

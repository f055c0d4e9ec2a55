"""A client of ``twinbus`` sends on the caller's thread while its entity is healthy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import twinbus
from tests.integration.azure.test_direct_sends import PATIENCE_S, calls_of_the_loop
from twinbus.errors import EntityNotFound, FactoryClosed, ReservedProperty
from twinbus.pairing.direct_sender import BUSY_SENDS
from twinbus.testing import NamespacePairFixture


@contextmanager
def paired(pair: NamespacePairFixture, **options: Any) -> Iterator[twinbus.MessagingFactory]:
    text = pair.secondary.connection_string
    with (
        twinbus.MessagingFactory.from_connection_string(
            pair.primary.connection_string, retry_total=0, **options
        ) as primary,
        twinbus.MessagingFactory.from_connection_string(text) as secondary,
        twinbus.NamespaceManager.from_connection_string(text) as manager,
    ):
        primary.pair_namespace(
            twinbus.SendAvailabilityPairedNamespaceOptions(
                manager, secondary, backlog_queue_count=2, failover_interval=0
            )
        )
        yield primary


def waiting(factory: twinbus.MessagingFactory) -> int:
    """How many messages are in the backlog."""
    return sum(queue.messages or 0 for queue in factory.backlog())


def make_direct(client: twinbus.MessageSender) -> int:
    """Send until the client has a link of its own; how many messages that took."""
    direct, sent = client._ends().direct, 0
    assert direct is not None
    end_s = time.monotonic() + PATIENCE_S
    while direct._link is None:
        assert time.monotonic() < end_s, "the client got no link of its own"
        client.send(twinbus.BrokeredMessage(b"first"))
        sent += 1
    return sent


def test_a_busy_client_of_a_healthy_entity_does_not_enter_the_loop(
    servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: and what it sends is what the loop would have sent."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair) as factory, factory.create_queue_client(orders) as client:
        sent = make_direct(client)
        assert sent >= BUSY_SENDS
        message = twinbus.BrokeredMessage(
            b"direct", message_id="m", session_id="s", properties={"number": 7}
        )
        with calls_of_the_loop(monkeypatch) as calls:
            for _ in range(20):
                client.send(message, timeout=10)
        assert calls == []
        assert orders.active_message_count == sent + 20
        last = client.receive_batch(sent + 20, max_wait_time=10)[-1]
        assert (last.body, last.message_id, last.session_id) == (b"direct", "m", "s")
        assert last.properties == {"number": 7}
        last.complete()


def test_senders_of_topics_have_a_link_of_their_own_too(
    servicebus_pair: NamespacePairFixture,
) -> None:
    """P0"""
    news = servicebus_pair.primary.topic("news")
    with paired(servicebus_pair) as factory:
        with factory.create_topic_client(news) as topic:
            make_direct(topic)
        with factory.create_message_sender(news) as sender:
            make_direct(sender)


@pytest.mark.parametrize("how", ["refused", "reset", "black-hole"])
def test_the_send_that_finds_the_outage_goes_to_the_backlog(
    servicebus_pair: NamespacePairFixture, how: str
) -> None:
    """P6 and P10: no send fails, and the entity is used again when it is back."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair) as factory, factory.create_queue_client(orders) as client:
        sent = make_direct(client)
        with servicebus_pair.primary.outage(how):
            for _ in range(5):
                client.send(twinbus.BrokeredMessage(b"away"), timeout=6)
            assert factory.health(orders).is_diverted
        assert waiting(factory) >= 4
        assert orders.active_message_count + waiting(factory) >= sent + 5
        factory.mark_path_healthy(orders)
        make_direct(client)


def test_bad_messages_and_missing_entities_are_errors_on_every_way(
    servicebus_pair: NamespacePairFixture,
) -> None:
    """P7 and P12"""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair) as factory, factory.create_queue_client(orders) as client:
        make_direct(client)
        with pytest.raises(ReservedProperty, match="x-ms-path"):
            client.send(twinbus.BrokeredMessage(b"x", properties={"x-ms-path": "elsewhere"}))
        servicebus_pair.primary.reset()
        with pytest.raises(EntityNotFound):
            client.send(twinbus.BrokeredMessage(b"x"))


def test_large_messages_and_batches_go_through_the_loop(
    servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0"""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair) as factory, factory.create_queue_client(orders) as client:
        make_direct(client)
        with calls_of_the_loop(monkeypatch) as calls:
            client.send(twinbus.BrokeredMessage(bytes(100_000)))
            client.send_batch([twinbus.BrokeredMessage(b"1"), twinbus.BrokeredMessage(b"2")])
        assert len(calls) == 2


def test_what_is_metered_is_sent_by_the_loop(
    servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """C1: the books count each send."""
    orders = servicebus_pair.primary.queue("orders")
    with (
        paired(servicebus_pair, metering=tmp_path) as factory,
        factory.create_queue_client(orders) as client,
    ):
        assert client._ends().direct is None


def test_a_factory_without_a_pair_and_the_lean_driver_use_the_loop(
    servicebus_pair: NamespacePairFixture,
) -> None:
    """P0: links of one's own are for paired senders of the SDK."""
    orders, text = servicebus_pair.primary.queue("orders"), servicebus_pair.primary
    with twinbus.MessagingFactory.from_connection_string(text.connection_string) as alone:
        client = alone.create_queue_client(orders)
        for _ in range(2 * BUSY_SENDS):
            client.send(twinbus.BrokeredMessage(b"x"))
        assert orders.active_message_count == 2 * BUSY_SENDS
    with paired(servicebus_pair, driver="amqp") as factory:
        assert factory.create_queue_client(orders)._ends().direct is None


def test_a_closed_factory_leaves_no_link(servicebus_pair: NamespacePairFixture) -> None:
    """L2: also where its clients were not closed one by one."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair) as factory:
        client = factory.create_queue_client(orders)
        make_direct(client)
    assert client._ends().direct is not None and client._ends().direct._link is None
    with pytest.raises(FactoryClosed):
        client.send(twinbus.BrokeredMessage(b"late"))

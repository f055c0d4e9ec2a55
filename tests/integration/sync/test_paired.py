"""A pair without an event loop: the whole way, over a broker with faults."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import twinbus
from tests.support.books import by_broker, by_client, in_numbers, records_in
from twinbus.errors import ConfigurationError, FactoryClosed
from twinbus.testing import NamespacePairFixture


def test_a_program_without_a_loop_keeps_sending(servicebus_pair: NamespacePairFixture) -> None:
    """P1, P8, P16: pair, send at home, send away, look, receive and settle."""
    orders = servicebus_pair.primary.queue("orders")
    text = servicebus_pair.secondary.connection_string
    primary_text = servicebus_pair.primary.connection_string
    told: list[str] = []
    with (
        twinbus.MessagingFactory.from_connection_string(primary_text, retry_total=0) as primary,
        twinbus.MessagingFactory.from_connection_string(text, driver="amqp") as secondary,
        twinbus.NamespaceManager.from_connection_string(text) as manager,
    ):
        options = twinbus.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, backlog_queue_count=3, failover_interval=0
        )
        primary.pair_namespace(options)
        stop = primary.on_event(lambda occurrence: told.append(occurrence.name))
        assert options.backlog_queue_count == 3
        assert [queue.path for queue in manager.get_queues()] == [
            f"{servicebus_pair.primary.name}/x-servicebus-transfer/{index}" for index in range(3)
        ]

        assert primary.paired_namespace_options is options
        primary.set_ping_interval(5)
        assert options.ping_primary_interval.total_seconds() == 5

        client = primary.create_queue_client(orders)
        client.send(twinbus.BrokeredMessage(b"home"))
        with servicebus_pair.primary.outage("refused"):
            client.send_batch([twinbus.BrokeredMessage(b"away"), twinbus.BrokeredMessage(b"too")])
            assert primary.health(orders).is_diverted
            assert sum(queue.messages or 0 for queue in primary.backlog()) == 2
        primary.mark_path_healthy(orders)
        assert not primary.health(orders).is_diverted
        stop()
        assert {"diverted", "restored"} <= set(told)

        message = client.receive(max_wait_time=10)
        assert message is not None and message.body == b"home"
        message.complete()
        assert client.receive(max_wait_time=0.2) is None
    with pytest.raises(FactoryClosed):
        client.send(twinbus.BrokeredMessage(b"late"))


def test_the_detours_of_a_program_without_a_loop_are_in_its_books(
    servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """C1: the primary's factory alone is told where."""
    orders, home = servicebus_pair.primary.queue("orders"), servicebus_pair.primary
    text = servicebus_pair.secondary.connection_string
    with (
        twinbus.MessagingFactory.from_connection_string(
            home.connection_string, retry_total=0, metering=tmp_path, audit=True
        ) as primary,
        twinbus.MessagingFactory.from_connection_string(text, driver="amqp") as secondary,
        twinbus.NamespaceManager.from_connection_string(text) as manager,
    ):
        primary.pair_namespace(
            twinbus.SendAvailabilityPairedNamespaceOptions(manager, secondary, 2)
        )
        client = primary.create_queue_client(orders)
        client.send(twinbus.BrokeredMessage(b"x", message_id="home"))
        primary.force_failover(orders)
        client.send(twinbus.BrokeredMessage(b"x", message_id="away"))
    went = {line["message_id"]: bool(line["via"]) for line in records_in(tmp_path, "audit")}
    assert went == {"home": False, "away": True}
    away = servicebus_pair.secondary
    assert in_numbers(by_client(tmp_path / away.name), "send") == in_numbers(
        by_broker(away), "send"
    )


def test_options_of_the_async_names_are_told_apart(servicebus_pair: NamespacePairFixture) -> None:
    text = servicebus_pair.primary.connection_string
    with (
        twinbus.MessagingFactory.from_connection_string(text) as primary,
        pytest.raises(ConfigurationError, match="got an object"),
    ):
        primary.pair_namespace(object())  # type: ignore[arg-type]


def test_events_can_be_iterated_over(servicebus_pair: NamespacePairFixture) -> None:
    """P16: live events for a thread that waits for them."""
    servicebus_pair.primary.queue("orders")
    text = servicebus_pair.secondary.connection_string
    with (
        twinbus.MessagingFactory.from_connection_string(
            servicebus_pair.primary.connection_string
        ) as primary,
        twinbus.MessagingFactory.from_connection_string(text) as secondary,
    ):
        manager = twinbus.NamespaceManager.from_connection_string(text)
        primary.pair_namespace(
            twinbus.SendAvailabilityPairedNamespaceOptions(manager, secondary, 1)
        )
        events = primary.events()
        primary.force_failover("orders")
        began_s = time.monotonic()
        assert next(events).name == "diverted"
        assert time.monotonic() - began_s < 20


def test_a_program_without_a_loop_begins_without_its_secondary(
    servicebus_pair: NamespacePairFixture,
) -> None:
    """P19: the options show the queues that are found later."""
    orders = servicebus_pair.primary.queue("orders")
    text = servicebus_pair.secondary.connection_string
    with (
        twinbus.MessagingFactory.from_connection_string(
            servicebus_pair.primary.connection_string
        ) as primary,
        twinbus.MessagingFactory.from_connection_string(text, driver="amqp") as secondary,
    ):
        manager = twinbus.NamespaceManager.from_connection_string(text)
        options = twinbus.SendAvailabilityPairedNamespaceOptions(
            manager, secondary, 2, require_secondary=False
        )
        with servicebus_pair.secondary.outage("refused"):
            began_s = time.monotonic()
            primary.pair_namespace(options)
            primary.create_queue_client(orders).send(twinbus.BrokeredMessage(b"1"))
            assert time.monotonic() - began_s < 4
            assert options.backlog_queue_count == 0
            assert primary.health(orders).backlog_error
            with pytest.raises(twinbus.NoBacklogQueue):
                primary.force_failover(orders)
        events = primary.events()
        while options.backlog_queue_count == 0:
            assert time.monotonic() - began_s < 20
            time.sleep(0.05)
        primary.force_failover(orders)
        assert {next(events).name, next(events).name} == {"backlog-ready", "diverted"}
        primary.create_queue_client(orders).send(twinbus.BrokeredMessage(b"2"))
        assert sum(queue.messages or 0 for queue in primary.backlog()) == 1

"""The sync drop-in: the same through the portal."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.integration.azure.conftest import MakePairing
from twinbus import Health, MessagingFactory
from twinbus.azure import PairedServiceBusClient
from twinbus.azure.client import as_async_credential
from twinbus.testing import NamespacePairFixture


def paired(pair: NamespacePairFixture, pairing: MakePairing) -> PairedServiceBusClient:
    client = PairedServiceBusClient.from_connection_string(
        pair.primary.connection_string, pairing=pairing(), retry_total=0
    )
    assert isinstance(client, PairedServiceBusClient)
    return client


def test_an_application_of_the_sync_sdk_goes_on_sending(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P8, P10: healthy sends go home, the others to the backlog, and none fails."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, client.get_queue_sender(orders) as sender:
        sender.send_messages(ServiceBusMessage("at home"))
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        sender.send_messages(batch)
        with servicebus_pair.primary.outage("refused"):
            sender.send_messages([ServiceBusMessage("away 1"), ServiceBusMessage("away 2")])
            health = client.messaging_factory.health(orders)
            assert health.is_diverted
        with client.get_queue_receiver(orders, max_wait_time=10) as receiver:
            found = receiver.receive_messages(2, max_wait_time=10)
            found += [] if len(found) == 2 else receiver.receive_messages(1, max_wait_time=10)
            assert sorted(map(str, found)) == ["at home", "batched"]
            for message in found:
                receiver.complete_message(message)
    waiting = [
        servicebus_pair.secondary.machine(f"home/x-servicebus-transfer/{index}").active_count
        for index in range(2)
    ]
    assert sum(waiting) == 2


def test_a_sync_client_that_works_keeps_working_without_its_secondary(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P19: it is entered and sends while the secondary refuses connections."""
    orders = servicebus_pair.primary.queue("orders")
    with servicebus_pair.secondary.outage("refused"):
        began_s = time.monotonic()
        client = paired(servicebus_pair, pairing)
        with client, client.get_queue_sender(orders) as sender:
            sender.send_messages(ServiceBusMessage("one"))
            assert time.monotonic() - began_s < 4
            factory = client.messaging_factory
            assert factory.health(orders).backlog_error
    assert servicebus_pair.primary.machine(orders).active_count == 1


def test_the_factory_of_a_sync_client_is_a_blocking_one(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P16: state, events and commands need no loop, and any thread may use them."""
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client, ThreadPoolExecutor(1) as other_thread:
        factory = client.messaging_factory
        assert isinstance(factory, MessagingFactory)
        events = factory.events()
        other_thread.submit(factory.force_failover, orders).result()
        assert next(events).name == "diverted"
        client.get_queue_sender(orders).send_messages(ServiceBusMessage("away"))
        assert sum(queue.messages or 0 for queue in factory.backlog()) == 1
        other_thread.submit(factory.hold, orders).result()
        assert factory.health(orders).state is Health.HELD_ON_BACKLOG
        options = factory.paired_namespace_options
        assert options is not None and isinstance(options.messaging_factory, MessagingFactory)
        assert options.failover_interval == timedelta(0) and options.backlog_queue_count == 2


def test_topics_schedules_and_errors_of_the_sync_sdk(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: as the stock client does."""
    servicebus_pair.primary.subscription("news", "all")
    with paired(servicebus_pair, pairing) as client:
        sender = client.get_topic_sender("news")
        numbers = sender.schedule_messages(
            ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1)
        )
        sender.cancel_scheduled_messages(numbers)
        sender.send_messages(ServiceBusMessage("now"))
        with client.get_subscription_receiver("news", "all") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            assert str(message) == "now"
            receiver.complete_message(message)
        with pytest.raises(MessagingEntityNotFoundError):
            client.get_queue_sender("nowhere").send_messages(ServiceBusMessage("x"))
        stock = ServiceBusClient.from_connection_string(servicebus_pair.primary.connection_string)
        assert sender.fully_qualified_namespace == stock.fully_qualified_namespace
        assert sender.client_identifier.startswith("SBSender-")


def test_many_threads_may_share_a_sender(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    orders = servicebus_pair.primary.queue("orders")
    with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: sender.send_messages(ServiceBusMessage(str(n))), range(40)))
    assert orders.active_message_count == 40


async def test_a_sync_credential_serves_the_loop() -> None:
    class Stock:
        token_type = "jwt"

        def get_token(self, *scopes: str, **options: object) -> AccessToken:
            return AccessToken(" ".join(scopes), 17)

    credential = as_async_credential(Stock())
    assert credential.token_type == "jwt"
    assert (await credential.get_token("scope")).token == "scope"
    assert as_async_credential(credential) is credential

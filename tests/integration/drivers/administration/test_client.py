"""The management client against our broker: every verb, and every refusal by its own name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.access import connection_string_of, connection_string_with, entity_rule
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from twinbus.broker.access.rules import Claim
from twinbus.broker.faults import Fault
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.administration import (
    AdministrationClient,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityExists,
    EntityNotFound,
    InvalidEntityPath,
    MessageRefused,
    OperationTimeout,
    ServerBusy,
    ServiceInternalError,
    TwinbusError,
)
from twinbus.testing.namespaces import NamespaceFixture

UNUSUAL = QueueProperties(
    path="Shop/Orders",
    lock_duration=timedelta(seconds=30),
    max_size_in_megabytes=5120,
    requires_duplicate_detection=True,
    requires_session=True,
    default_message_time_to_live=timedelta(days=3, seconds=1.5),
    enable_dead_lettering_on_message_expiration=True,
    duplicate_detection_history_time_window=timedelta(hours=2),
    max_delivery_count=2_147_483_647,
    enable_batched_operations=False,
    status="SendDisabled",
    auto_delete_on_idle=timedelta(days=30),
    user_metadata='a <note> & "more"',
)


def client_of(connection_string: str, **options: Any) -> AdministrationClient:
    parsed = parse_connection_string(connection_string)
    return AdministrationClient.from_connection_string(parsed, **options)


@pytest.fixture
def client(servicebus: NamespaceFixture) -> AdministrationClient:
    return client_of(servicebus.connection_string)


async def test_the_namespace_tells_its_name(client: AdministrationClient) -> None:
    info = await client.namespace_info()
    assert (info.name, info.messaging_sku) == ("test", "Standard")


async def test_a_queue_is_made_as_described_and_read_back(client: AdministrationClient) -> None:
    made = await client.create_queue(UNUSUAL)
    found = await client.get_queue("shop/orders")

    assert found is not None
    # The service fills in what was left to it.
    assert found.max_message_size_in_kilobytes == made.max_message_size_in_kilobytes == 256
    assert replace(found, path=UNUSUAL.path, max_message_size_in_kilobytes=None) == UNUSUAL


async def test_the_defaults_are_the_service_s_own(client: AdministrationClient) -> None:
    made = await client.create_queue(QueueProperties(path="orders"))
    assert replace(made, max_message_size_in_kilobytes=None) == QueueProperties(path="orders")


async def test_a_queue_that_forwards_says_where_to(client: AdministrationClient) -> None:
    await client.create_queue(QueueProperties(path="home"))
    await client.create_queue(
        QueueProperties(path="away", forward_to="home", forward_dead_lettered_messages_to="home")
    )
    found = await client.get_queue("away")
    assert found is not None
    assert (found.forward_to, found.forward_dead_lettered_messages_to) == ("home", "home")


async def test_a_key_of_one_queue_administers_it_and_forwards_to_where_it_may_send(
    client: AdministrationClient, servicebus: NamespaceFixture
) -> None:
    """M14: the client shows a token for the target; the key decides what that is worth."""
    for path in ("mine", "theirs"):
        servicebus.queue(path, authorization_rules=entity_rule(Claim.all()))
    own = client_of(connection_string_of(servicebus, "mine", for_it_alone=True))
    assert (await own.get_queue("mine")) is not None
    await own.set_queue_status("mine", "SendDisabled")
    with pytest.raises(AuthenticationFailed):
        await own.get_queue("theirs")
    with pytest.raises(AuthenticationFailed):
        await own.create_queue(QueueProperties(path="new", forward_to="mine"))
    # A forward that is there already may stay when something else is changed
    servicebus.queue("target")
    servicebus.queue("source", forward_to="target", authorization_rules=entity_rule(Claim.all()))
    text = connection_string_of(servicebus, "source", for_it_alone=True)
    await client_of(text).set_queue_status("source", "SendDisabled")
    found = await client.get_queue("source")
    assert found is not None and found.forward_to == "target"
    # The key of the namespace covers every target
    await client.create_queue(QueueProperties(path="more", forward_to="target"))
    worker = client_of(connection_string_with(servicebus, Claim.SEND | Claim.LISTEN))
    with pytest.raises(AccessRefused):
        await worker.create_queue(QueueProperties(path="never", forward_to="target"))


async def test_a_token_for_a_target_is_made_out_to_this_namespace(
    servicebus: NamespaceFixture,
) -> None:
    """M14: whatever host the target names: no token for another one leaves us."""
    endpoint = client_of(servicebus.connection_string).endpoint
    for target in ("a/b", f"{endpoint.url}a/b", "sb://elsewhere.example/a/b"):
        assert endpoint.url_of(target) == f"{endpoint.url}a/b"


async def test_what_is_not_there_is_none(
    client: AdministrationClient, servicebus: NamespaceFixture
) -> None:
    servicebus.topic("news")
    assert await client.get_queue("orders") is None
    assert await client.get_queue("news") is None, "a topic is no queue"
    assert await client.get_subscription("news", "all") is None
    assert await client.get_subscription("nothing", "all") is None


async def test_a_list_is_whole_however_many_pages_it_has(
    client: AdministrationClient, servicebus: NamespaceFixture
) -> None:
    for number in range(230):
        servicebus.queue(f"{'odd' if number % 2 else 'Even'}/{number:03}")

    found = [queue.path async for queue in client.list_queues("even/")]

    assert found == [f"Even/{number:03}" for number in range(0, 230, 2)]
    assert len([queue async for queue in client.list_queues()]) == 230


async def test_topics_and_subscriptions_come_and_go(client: AdministrationClient) -> None:
    await client.create_topic(TopicProperties(path="news", max_size_in_megabytes=2048))
    await client.create_subscription(
        SubscriptionProperties(topic="news", name="all", max_delivery_count=3)
    )

    topic = await client.get_topic("news")
    assert topic is not None
    assert (topic.max_size_in_megabytes, topic.subscription_count) == (2048, 1)
    [subscription] = [each async for each in client.list_subscriptions("news")]
    assert subscription == await client.get_subscription("news", "all")
    assert (subscription.name, subscription.max_delivery_count) == ("all", 3)

    await client.delete_subscription("news", "all")
    await client.delete_topic("news")
    assert [each async for each in client.list_topics()] == []


async def test_counts_and_size_are_told(
    client: AdministrationClient, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    assert queue.active_message_count == 0
    found = await client.get_queue("orders")
    assert found is not None
    assert (found.counts.total, found.size_bytes, found.percent_full) == (0, 0, 0.0)


async def test_a_name_that_is_taken_is_said_to_be(client: AdministrationClient) -> None:
    await client.create_queue(QueueProperties(path="orders"))
    with pytest.raises(EntityExists) as caught:
        await client.create_queue(QueueProperties(path="orders"))
    assert (caught.value.kind, caught.value.path) == ("queue or topic", "orders")


async def test_who_deletes_nothing_is_told(client: AdministrationClient) -> None:
    with pytest.raises(EntityNotFound) as caught:
        await client.delete_queue("orders")
    assert caught.value.path == "orders"
    assert_well_put(str(caught.value))


@pytest.mark.parametrize("path", ["$Resources/queues", "../orders", "a b", "orders?x=1", ""])
async def test_only_the_name_of_an_entity_is_asked_for(
    client: AdministrationClient, path: str
) -> None:
    with pytest.raises(InvalidEntityPath):
        await client.get_queue(path)


async def test_a_property_that_the_service_does_not_take(client: AdministrationClient) -> None:
    with pytest.raises(MessageRefused) as caught:
        await client.create_queue(QueueProperties(path="orders", max_delivery_count=-1))
    assert_well_put(str(caught.value))


# -- claims and trouble -------------------------------------------------------------------


async def test_a_missing_claim_is_named(servicebus: NamespaceFixture) -> None:
    """P5: which claim is missing where."""
    sender = client_of(connection_string_with(servicebus, Claim.SEND))
    with pytest.raises(AccessRefused, match="claim Manage") as caught:
        await sender.get_queue("orders")
    assert "'orders'" in str(caught.value)
    assert_well_put(str(caught.value))


async def test_a_wrong_key_is_an_authentication_failure(servicebus: NamespaceFixture) -> None:
    parsed = parse_connection_string(servicebus.connection_string)
    wrong = replace(parsed, shared_access_key="bm90IHRoZSBrZXk=")
    with pytest.raises(AuthenticationFailed) as caught:
        await AdministrationClient.from_connection_string(wrong).namespace_info()
    assert_well_put(str(caught.value), "bm90IHRoZSBrZXk=")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("cannot-contact", how="refuse"), CommunicationError),
        (Fault("cannot-contact", how="reset"), CommunicationError),
        (Fault("cannot-contact", how="gateway-error"), ServiceInternalError),
        (Fault("cannot-contact", how="black-hole"), OperationTimeout),
        (Fault("cannot-manage"), ServiceInternalError),
        (Fault("cannot-manage", how="timeout"), OperationTimeout),
        (Fault("cannot-manage", http_status=503), ServerBusy),
        (Fault("cannot-manage", http_status=429), ServerBusy),
        (Fault("cannot-manage", http_status=504), OperationTimeout),
    ],
    ids=lambda value: f"{value.kind}-{value.how}" if isinstance(value, Fault) else value.__name__,
)
async def test_each_trouble_has_its_own_name(
    servicebus: NamespaceFixture, fault: Fault, error: type[TwinbusError]
) -> None:
    """F1 and F5: cannot manage, cannot contact."""
    patience_s = 1.0 if error is OperationTimeout else 30.0
    client = client_of(servicebus.connection_string, timeout_s=patience_s)
    faults = servicebus._namespace.faults
    servicebus._thread.run_function(lambda: faults.add(fault))
    with pytest.raises(error) as caught:
        await client.get_queue("orders")
    assert_well_put(str(caught.value))


async def test_after_trouble_the_client_is_usable_as_before(servicebus: NamespaceFixture) -> None:
    client = client_of(servicebus.connection_string)
    with servicebus.outage("refused"), pytest.raises(CommunicationError):
        await client.get_queue("orders")
    assert await client.get_queue("orders") is None


async def test_a_host_that_nobody_knows_cannot_be_reached() -> None:
    client = client_of(
        "Endpoint=sb://nowhere.invalid;SharedAccessKeyName=a;SharedAccessKey=Yg==",
        timeout_s=20,
    )
    with pytest.raises(CommunicationError) as caught:
        await client.namespace_info()
    assert not caught.value.is_ambiguous
    assert_well_put(str(caught.value))


async def test_whoever_knocks_learns_the_time_without_a_claim(servicebus: NamespaceFixture) -> None:
    client = client_of(connection_string_with(servicebus, Claim.LISTEN))
    knock = await client.check_reachable()
    assert knock.status == 401
    assert knock.clock_ahead_s is not None
    assert abs(knock.clock_ahead_s) < 30


# -- doors --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(tmp_path_factory.mktemp("tls") / "data") as running:
        yield running


async def test_tls_is_verified(tls_broker: BrokerProcess) -> None:
    trusting = client_of(tls_broker.tls_connection_string, ca_file=tls_broker.ca_path)
    assert trusting.endpoint.uses_tls
    assert (await trusting.namespace_info()).name == "demo"

    with pytest.raises(CommunicationError, match="not trusted") as caught:
        await client_of(tls_broker.tls_connection_string).namespace_info()
    assert not caught.value.is_transient
    assert_well_put(str(caught.value))


async def test_the_port_of_an_emulator_can_be_named(tls_broker: BrokerProcess) -> None:
    client = client_of(tls_broker.connection_string, administration_port=tls_broker.admin_port)
    assert client.endpoint.port == tls_broker.admin_port != tls_broker.port
    assert (await client.namespace_info()).name == "demo"


def test_a_certificate_file_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TwinbusError, match="cannot be read"):
        client_of(
            "Endpoint=sb://x.example;SharedAccessKeyName=a;SharedAccessKey=Yg==",
            ca_file=tmp_path / "nothing.pem",
        )


@pytest.mark.parametrize(
    ("endpoint", "flag", "url"),
    [
        ("sb://contoso.servicebus.windows.net", "", "https://contoso.servicebus.windows.net/"),
        ("sb://localhost:5671", "", "https://localhost:5671/"),
        ("sb://localhost", "UseDevelopmentEmulator=true;", "http://localhost:5300/"),
        ("sb://localhost:5672", "UseDevelopmentEmulator=true;", "http://localhost:5672/"),
        ("amqp://[::1]:5672", "", "http://[::1]:5672/"),
    ],
)
def test_which_door_a_namespace_has(endpoint: str, flag: str, url: str) -> None:
    text = f"Endpoint={endpoint};SharedAccessKeyName=a;SharedAccessKey=Yg==;{flag}"
    assert client_of(text).endpoint.url == url

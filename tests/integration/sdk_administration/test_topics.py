"""Topics and subscriptions through the stock administration client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.integration.sdk_administration.test_access_rules import KEY_1, KEY_2, rule
from tests.integration.sdk_administration.test_queues import NEVER
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, receive


@pytest.fixture
async def topic(admin: Administration, fresh: FreshName) -> AsyncIterator[str]:
    """A fresh topic with default properties."""
    name = fresh("topic")
    await admin.create_topic(name)
    yield name
    await admin.delete_topic(name)


async def test_a_topic_is_created_with_the_service_s_defaults(
    admin: Administration, topic: str
) -> None:
    """M5, M10"""
    read = await admin.get_topic(topic)
    assert read.name == topic
    assert read.default_message_time_to_live == read.auto_delete_on_idle == NEVER
    assert read.max_size_in_megabytes == 1024
    assert read.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert read.requires_duplicate_detection is False
    assert read.enable_batched_operations is True
    assert read.support_ordering is True
    assert read.enable_partitioning is False
    assert read.enable_express is False
    assert read.filtering_messages_before_publishing is False
    assert (read.status, read.availability_status) == ("Active", "Available")
    assert (read.user_metadata, read.authorization_rules) == (None, None)


TOPIC_PROPERTIES: dict[str, Any] = {
    "default_message_time_to_live": timedelta(minutes=11),
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "support_ordering": False,
    "enable_express": True,
    "user_metadata": "<topic>",
    "max_message_size_in_kilobytes": 64,
    "enable_partitioning": True,
    "auto_delete_on_idle": timedelta(minutes=10),
}


async def test_a_topic_has_every_property_that_it_was_created_with(
    admin: Administration, fresh: FreshName
) -> None:
    """M5: and its access rules."""
    name = f"{fresh('area')}/Topic"
    rules = [rule("senders", "Send", primary_key=KEY_1, secondary_key=KEY_2)]
    made = await admin.create_topic(name, authorization_rules=rules, **TOPIC_PROPERTIES)
    (listed,) = [each for each in await admin.all("topics") if each.name == name]
    for told in (made, await admin.get_topic(name), listed):
        assert {key: told[key] for key in TOPIC_PROPERTIES} == TOPIC_PROPERTIES
        assert told.authorization_rules[0].primary_key == KEY_1
    await admin.delete_topic(name)


async def test_a_topic_is_updated(admin: Administration, topic: str) -> None:
    """M5: get, change, update; what is for life stays."""
    read = await admin.get_topic(topic)
    read.default_message_time_to_live = timedelta(minutes=3)
    await admin.update_topic(read, user_metadata="note", status="SendDisabled")
    changed = await admin.get_topic(topic)
    assert changed.default_message_time_to_live == timedelta(minutes=3)
    assert (changed.user_metadata, changed.status) == ("note", "SendDisabled")
    with pytest.raises(HttpResponseError) as refused:
        await admin.update_topic(changed, requires_duplicate_detection=True)
    assert refused.value.status_code == 400
    assert_well_put(refused.value.message)


async def test_a_queue_and_a_topic_do_not_share_a_name(
    admin: Administration, topic: str, fresh: FreshName
) -> None:
    """M5: and one is not taken for the other."""
    with pytest.raises(ResourceExistsError):
        await admin.create_queue(topic)
    queue = await admin.create_queue(fresh())
    with pytest.raises(ResourceExistsError):
        await admin.create_topic(queue.name)
    queue.name = topic
    with pytest.raises(ResourceNotFoundError):
        await admin.update_queue(queue)
    assert topic not in [each.name for each in await admin.all("queues")]
    assert queue.name not in [each.name for each in await admin.all("queues")]


async def test_topics_subscriptions_and_rules_that_do_not_exist_are_not_found(
    admin: Administration, topic: str, fresh: FreshName
) -> None:
    """M5"""
    absent = fresh("topic")
    await admin.create_subscription(topic, "here")
    calls = [
        admin.get_topic(absent),
        admin.delete_topic(absent),
        admin.get_topic_runtime_properties(absent),
        admin.all("subscriptions", absent),
        admin.create_subscription(absent, "s"),
        admin.get_subscription(absent, "s"),
        admin.get_subscription(topic, "s"),
        admin.get_subscription_runtime_properties(topic, "s"),
        admin.delete_subscription(topic, "s"),
        admin.all("rules", topic, "s"),
        admin.create_rule(topic, "s", "r"),
        admin.get_rule(topic, "here", "r"),
        admin.delete_rule(topic, "here", "r"),
    ]
    for call in calls:
        with pytest.raises(ResourceNotFoundError):
            await call


SUBSCRIPTION_PROPERTIES: dict[str, Any] = {
    "lock_duration": timedelta(seconds=13),
    "default_message_time_to_live": timedelta(minutes=11),
    "dead_lettering_on_message_expiration": True,
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "max_delivery_count": 14,
    "enable_batched_operations": False,
    "user_metadata": "<subscription>",
    "requires_session": True,
    "auto_delete_on_idle": timedelta(minutes=10),
}


async def test_a_subscription_has_every_property_that_it_was_created_with(
    admin: Administration, topic: str
) -> None:
    """M5: in the letters in which it was named."""
    made = await admin.create_subscription(
        topic, "Billing", status="ReceiveDisabled", **SUBSCRIPTION_PROPERTIES
    )
    read = await admin.get_subscription(topic, "billing")
    (listed,) = await admin.all("subscriptions", topic)
    for told in (made, read, listed):
        assert {key: told[key] for key in SUBSCRIPTION_PROPERTIES} == SUBSCRIPTION_PROPERTIES
        assert told.status == "ReceiveDisabled"
    assert listed.name == "Billing"
    with pytest.raises(ResourceExistsError):
        await admin.create_subscription(topic, "BILLING")


async def test_a_subscription_is_created_with_the_service_s_defaults(
    admin: Administration, topic: str
) -> None:
    """M5: and with a rule that lets every message in."""
    told = await admin.create_subscription(topic, "s")
    assert told.lock_duration == timedelta(minutes=1)
    assert told.default_message_time_to_live == told.auto_delete_on_idle == NEVER
    assert told.max_delivery_count == 10
    assert told.dead_lettering_on_message_expiration is False
    assert told.dead_lettering_on_filter_evaluation_exceptions is True
    assert (told.requires_session, told.enable_batched_operations) == (False, True)
    assert (told.forward_to, told.user_metadata, told.status) == (None, None, "Active")
    (first,) = await admin.all("rules", topic, "s")
    assert (first.name, first.filter.sql_expression) == ("$Default", "1=1")


async def test_a_subscription_is_updated_and_deleted(admin: Administration, topic: str) -> None:
    """M5"""
    told = await admin.create_subscription(topic, "s")
    told.lock_duration = timedelta(minutes=2)
    await admin.update_subscription(topic, told, max_delivery_count=3)
    read = await admin.get_subscription(topic, "s")
    assert (read.lock_duration, read.max_delivery_count) == (timedelta(minutes=2), 3)
    with pytest.raises(HttpResponseError):
        await admin.update_subscription(topic, read, lock_duration=timedelta(days=25))
    await admin.delete_subscription(topic, "s")
    assert await admin.all("subscriptions", topic) == []
    read.name = "other"
    with pytest.raises(ResourceNotFoundError):
        await admin.update_subscription(topic, read)


async def test_a_subscription_may_bring_its_first_rule(
    admin: Administration, broker: BrokerProcess, topic: str
) -> None:
    """M5: as clients in other languages do; then there is no other rule."""
    names = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    kinds = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f"<SubscriptionDescription {names} {kinds}><LockDuration>PT30S</LockDuration>"
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression>'
        '</Filter><Action i:type="EmptyRuleAction"/><Name>first</Name></DefaultRuleDescription>'
        "</SubscriptionDescription></content></entry>"
    )
    headers = {
        "Authorization": broker.token(port=broker.admin_port),
        "Content-Type": "application/atom+xml;type=entry;charset=utf-8",
    }
    path = f"/{topic}/Subscriptions/s?api-version=2021-05"
    status, _told, _body = broker.raw_http("PUT", path, body.encode(), headers=headers)
    assert status == 201
    (first,) = await admin.all("rules", topic, "s")
    assert (first.name, first.filter.sql_expression) == ("first", "a = 1")


async def test_subscriptions_come_in_pages(admin: Administration, topic: str) -> None:
    """M5: in order, with their runtime counts."""
    names = [f"s{number:02}" for number in range(12)]
    for name in reversed(names):
        await admin.create_subscription(topic, name)
    listed = await admin.all("subscriptions", topic, max_page_size=5)
    assert [each.name for each in listed] == names
    runtime = await admin.all("subscriptions_runtime_properties", topic, max_page_size=5)
    assert [each.name for each in runtime] == names


async def test_counts_of_topics_and_subscriptions_follow_the_messages(
    admin: Administration, broker: BrokerProcess, topic: str
) -> None:
    """M5: each subscription has its own, the topic has what is scheduled."""
    for name in ("one", "two"):
        await admin.create_subscription(topic, name)
    sdk = Sdk(admin.flavour, broker.connection_string)
    client = sdk.client()
    sender = sdk.topic_sender(topic, client=client)
    for _ in range(3):
        await sender.send_messages(ServiceBusMessage("x" * 100), timeout=20)
    later = datetime.now(UTC) + timedelta(hours=1)
    await sender.schedule_messages(ServiceBusMessage("later"), later)
    receiver = sdk.subscription(topic, "one", client=client)
    first, second = await receive(receiver, 2)
    await receiver.complete_message(first)
    await receiver.dead_letter_message(second)
    await sdk.close()

    one = await admin.get_subscription_runtime_properties(topic, "one")
    two = await admin.get_subscription_runtime_properties(topic, "two")
    assert (one.active_message_count, one.dead_letter_message_count) == (1, 1)
    assert (one.total_message_count, two.total_message_count) == (2, 3)
    assert two.active_message_count == 3
    assert one.created_at_utc <= one.accessed_at_utc
    whole = await admin.get_topic_runtime_properties(topic)
    assert (whole.subscription_count, whole.scheduled_message_count) == (2, 1)
    assert 5 * 100 < whole.size_in_bytes < 10_000
    assert whole.created_at_utc <= whole.updated_at_utc <= whole.accessed_at_utc
    (listed,) = [e for e in await admin.all("topics_runtime_properties") if e.name == topic]
    assert listed.subscription_count == 2

"""Rules of subscriptions through the stock administration client, and what they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, receive

VALUES: dict[str, Any] = {
    "text": "str < & >",
    "int": 5,
    "long": 2**40,
    "double": 1.5,
    "yes": True,
    "no": False,
    "time": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    "duration": timedelta(days=1, hours=2, seconds=3),
}
PARAMETERS = {f"@{name}": value for name, value in VALUES.items()}


@pytest.fixture
async def topic(admin: Administration, fresh: FreshName) -> AsyncIterator[str]:
    """A topic with one subscription, "s"."""
    name = fresh("topic")
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    yield name
    await admin.delete_topic(name)


async def test_a_rule_lets_every_message_in_unless_it_says_otherwise(
    admin: Administration, topic: str
) -> None:
    """M4, M5"""
    made = await admin.create_rule(topic, "s", "every")
    read = await admin.get_rule(topic, "s", "every")
    for told in (made, read):
        assert isinstance(told.filter, TrueRuleFilter)
        assert (told.name, told.action) == ("every", None)
    assert datetime.now(UTC) - read.created_at_utc < timedelta(minutes=5)


async def test_a_false_filter(admin: Administration, topic: str) -> None:
    """M4"""
    await admin.create_rule(topic, "s", "none", filter=FalseRuleFilter())
    read = await admin.get_rule(topic, "s", "none")
    assert type(read.filter) is FalseRuleFilter


async def test_a_sql_filter_and_an_action_with_values_of_every_type(
    admin: Administration, topic: str
) -> None:
    """M4, M5: expressions and values come back as they were."""
    made = await admin.create_rule(
        topic,
        "s",
        "sql",
        filter=SqlRuleFilter("a = @text AND b < @int", PARAMETERS),
        action=SqlRuleAction("SET c = @double; REMOVE d", PARAMETERS),
    )
    for told in (made, await admin.get_rule(topic, "s", "sql")):
        assert type(told.filter) is SqlRuleFilter
        assert told.filter.sql_expression == "a = @text AND b < @int"
        assert told.filter.parameters == PARAMETERS
        assert told.action.sql_expression == "SET c = @double; REMOVE d"
        assert told.action.parameters == PARAMETERS


async def test_a_correlation_filter_with_all_that_it_can_compare(
    admin: Administration, topic: str
) -> None:
    """M4, M5"""
    conditions = {
        "correlation_id": "1",
        "message_id": "2",
        "to": "3",
        "reply_to": "4",
        "label": "<5>",
        "session_id": "6",
        "reply_to_session_id": "7",
        "content_type": "8",
    }
    described = CorrelationRuleFilter(**conditions, properties=VALUES)
    await admin.create_rule(topic, "s", "correlation", filter=described)
    (listed,) = [
        each for each in await admin.all("rules", topic, "s") if each.name == "correlation"
    ]
    for told in (await admin.get_rule(topic, "s", "correlation"), listed):
        assert type(told.filter) is CorrelationRuleFilter
        assert {name: getattr(told.filter, name) for name in conditions} == conditions
        assert told.filter.properties == VALUES


async def test_rules_are_updated_listed_and_deleted(admin: Administration, topic: str) -> None:
    """M5: a rule keeps its name and gets another filter."""
    for number in range(7):
        await admin.create_rule(topic, "s", f"r{number}", filter=SqlRuleFilter(f"a = {number}"))
    with pytest.raises(ResourceExistsError):
        await admin.create_rule(topic, "s", "R1")
    told = await admin.get_rule(topic, "s", "r1")
    told.filter = CorrelationRuleFilter(label="l")
    await admin.update_rule(topic, "s", told)
    changed = await admin.get_rule(topic, "s", "r1")
    assert changed.filter.label == "l"
    assert changed.created_at_utc == told.created_at_utc
    listed = await admin.all("rules", topic, "s", max_page_size=3)
    assert sorted(each.name for each in listed) == ["$Default", *(f"r{n}" for n in range(7))]
    counted = await admin.get_topic_runtime_properties(topic)
    assert (counted.sql_filter_count, counted.correlation_filter_count) == (7, 1)
    for name in ("r1", "$Default"):
        await admin.delete_rule(topic, "s", name)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_rule(topic, "s", name)
    told.name = "r1"
    with pytest.raises(ResourceNotFoundError):
        await admin.update_rule(topic, "s", told)
    counted = await admin.get_topic_runtime_properties(topic)
    assert (counted.sql_filter_count, counted.correlation_filter_count) == (6, 0)


@pytest.mark.parametrize(
    "described",
    [
        pytest.param({"filter": SqlRuleFilter("a = ")}, id="half an expression"),
        pytest.param({"filter": SqlRuleFilter("a = @missing")}, id="a missing parameter"),
        pytest.param({"filter": SqlRuleFilter("a" * 1025)}, id="a long expression"),
        pytest.param({"action": SqlRuleAction("DROP a")}, id="an unknown action"),
        pytest.param({"action": SqlRuleAction("SET sys.SequenceNumber = 1")}, id="a number"),
    ],
)
async def test_rules_that_cannot_be_are_refused(
    admin: Administration, topic: str, described: dict[str, Any]
) -> None:
    """M4, M5: with the place in the expression, and nothing is made."""
    with pytest.raises(HttpResponseError) as refused:
        await admin.create_rule(topic, "s", "bad", **described)
    assert refused.value.status_code == 400
    assert "Traceback" not in refused.value.message
    assert len(refused.value.message) < 400
    assert [each.name for each in await admin.all("rules", topic, "s")] == ["$Default"]


@pytest.mark.parametrize("name", ["x" * 51, "a?b", " a"])
async def test_a_name_that_no_rule_can_have_is_refused(
    admin: Administration, topic: str, name: str
) -> None:
    """M5"""
    with pytest.raises(HttpResponseError) as refused:
        await admin.create_rule(topic, "s", name)
    assert refused.value.status_code in (400, 404)
    assert_well_put(refused.value.message)


async def test_rules_made_here_decide_over_messages(
    admin: Administration, broker: BrokerProcess, topic: str
) -> None:
    """M4, M10: a filter of each kind, and an action, with real messages."""
    filters = {
        "none": FalseRuleFilter(),
        "sql": SqlRuleFilter("colour = @colour AND size > 2", {"@colour": "red"}),
        "correlation": CorrelationRuleFilter(label="big", properties={"colour": "blue"}),
    }
    for name, described in filters.items():
        await admin.create_subscription(topic, name)
        await admin.create_rule(topic, name, "chosen", filter=described)
        await admin.delete_rule(topic, name, "$Default")
    action = SqlRuleAction("SET marked = @by", {"@by": "rule"})
    await admin.create_rule(topic, "s", "act", filter=SqlRuleFilter("size = 1"), action=action)

    sdk = Sdk(admin.flavour, broker.connection_string)
    client = sdk.client()
    sender = sdk.topic_sender(topic, client=client)
    for body, colour, size in (("a", "red", 1), ("b", "red", 3), ("c", "blue", 9)):
        properties = {"colour": colour, "size": size}
        message = ServiceBusMessage(body, subject="big", application_properties=properties)
        await sender.send_messages(message, timeout=20)

    async def heard(name: str, count: int) -> list[Any]:
        return await receive(sdk.subscription(topic, name, client=client), count)

    assert bodies(await heard("sql", 1)) == ["b"]
    assert bodies(await heard("correlation", 1)) == ["c"]
    copies = await heard("s", 4)
    marked = [copy for copy in copies if b"marked" in (copy.application_properties or {})]
    assert sorted(bodies(copies)) == ["a", "a", "b", "c"]
    assert [copy.application_properties[b"marked"] for copy in marked] == [b"rule"]
    counted = {
        each.name: each.active_message_count
        for each in await admin.all("subscriptions_runtime_properties", topic)
    }
    assert counted == {"correlation": 1, "none": 0, "s": 4, "sql": 1}
    await sdk.close()

"""Entities as XML, held against what the official SDK writes and reads."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from azure.servicebus.management._generated import models
from hypothesis import given
from hypothesis import strategies as st

from twinbus.drivers.administration import (
    MessageCounts,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.administration.entity_xml import QUEUE, SUBSCRIPTION, TOPIC, Shape, parse_page
from twinbus.errors import ConfigurationError

SHAPES = [
    pytest.param(QUEUE, QueueProperties, models.QueueDescription, id="queue"),
    pytest.param(TOPIC, TopicProperties, models.TopicDescription, id="topic"),
    pytest.param(
        SUBSCRIPTION, SubscriptionProperties, models.SubscriptionDescription, id="subscription"
    ),
]


def elements_of(model: Any) -> list[str]:
    """The elements of the SDK's own model, in its order."""
    rows = model._attribute_map.values()
    return [row.get("xml", {}).get("name", row["key"]) for row in rows]


@pytest.mark.parametrize(("shape", "properties", "model"), SHAPES)
def test_elements_stand_in_the_order_that_the_service_wants(
    shape: Shape, properties: type, model: Any
) -> None:
    """It reads them like a data contract: one in the wrong place is left out without a word."""
    known = elements_of(model)
    ours = [name for name, _field, _codec in shape.rows]
    assert [name for name in known if name in ours] == ours


@pytest.mark.parametrize(("shape", "properties", "model"), SHAPES)
def test_every_property_has_its_element(shape: Shape, properties: Any, model: Any) -> None:
    named = [field for _name, field, _codec in shape.rows + shape.facts]
    wanted = [each.name for each in fields(properties)]
    assert sorted([*named, "counts"]) == sorted(set(wanted) - {"path", "topic", "name"})
    for name, _field, _codec in shape.rows:
        assert name in elements_of(model)


DURATIONS = st.timedeltas(timedelta(), timedelta(days=10_000))
QUEUES = st.builds(
    QueueProperties,
    path=st.just("orders"),
    lock_duration=DURATIONS,
    max_size_in_megabytes=st.integers(0, 2**31),
    requires_duplicate_detection=st.booleans(),
    requires_session=st.booleans(),
    default_message_time_to_live=st.none() | DURATIONS,
    enable_dead_lettering_on_message_expiration=st.booleans(),
    duplicate_detection_history_time_window=DURATIONS,
    max_delivery_count=st.integers(1, 2**31 - 1),
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]),
    auto_delete_on_idle=st.none() | DURATIONS,
    enable_partitioning=st.booleans(),
    forward_to=st.none() | st.sampled_from(["home", "shop/orders"]),
    user_metadata=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20),
    forward_dead_lettered_messages_to=st.none() | st.just("morgue"),
    max_message_size_in_kilobytes=st.none() | st.integers(1, 102_400),
)


@given(QUEUES)
def test_what_is_written_is_read_back(queue: QueueProperties) -> None:
    [entry] = parse_page(QUEUE.write(queue)).entries
    assert QueueProperties(path="orders", **QUEUE.read(entry.described)) == queue


@pytest.mark.parametrize(
    "queue",
    [
        QueueProperties(path="q", user_metadata="a\x00b"),
        QueueProperties(path="q", lock_duration=timedelta(seconds=-1)),
    ],
)
def test_what_cannot_be_written_is_refused(queue: QueueProperties) -> None:
    with pytest.raises(ConfigurationError):
        QUEUE.write(queue)


def test_counts_are_read_from_their_own_namespace() -> None:
    counts = {"Active": 5, "DeadLetter": 4, "Scheduled": 3, "Transfer": 2, "TransferDeadLetter": 1}
    details = "".join(
        f"<d2p1:{name}MessageCount>{count}</d2p1:{name}MessageCount>"
        for name, count in counts.items()
    )
    described = ElementTree.fromstring(
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/'
        'connect" xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        f"<SizeInBytes>77</SizeInBytes><CountDetails>{details}</CountDetails></QueueDescription>"
    )
    read = QUEUE.read(described)
    assert read["size_bytes"] == 77
    assert read["counts"] == MessageCounts(
        active=5, dead_letter=4, scheduled=3, transfer=2, transfer_dead_letter=1
    )
    assert read["counts"].total == 15

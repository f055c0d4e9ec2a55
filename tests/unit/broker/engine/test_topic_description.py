"""Descriptions of topics and subscriptions (rule M1)."""

from __future__ import annotations

import pytest

from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.errors import ConfigurationError


def test_a_subscription_knows_its_topic_and_its_name() -> None:
    """M1: a subscription belongs to one topic."""
    audit = SubscriptionDescription(path="Shop/Orders/Subscriptions/Audit")
    assert (audit.topic_path, audit.name) == ("shop/orders", "Audit")


@pytest.mark.parametrize("path", ["orders", "orders/subscriptions", "subscriptions/audit", "a/b/c"])
def test_another_path_is_no_subscription(path: str) -> None:
    with pytest.raises(ConfigurationError):
        SubscriptionDescription(path=path)


def test_what_only_queues_have_is_refused_for_a_topic() -> None:
    with pytest.raises(ConfigurationError, match="lock_duration_ms"):
        TopicDescription(path="orders", lock_duration_ms=5_000)


def test_the_stored_form_comes_back_as_the_same_kind() -> None:
    topic = TopicDescription(path="Orders", max_size_mb=2_048, support_ordering=False)
    assert TopicDescription.from_json(topic.to_json()) == topic
    audit = SubscriptionDescription(path="orders/subscriptions/a", max_delivery_count=3)
    assert SubscriptionDescription.from_json(audit.to_json()) == audit


def test_a_flag_must_be_a_flag() -> None:
    with pytest.raises(ConfigurationError, match="support_ordering must be true or false"):
        TopicDescription.from_dict({"path": "orders", "support_ordering": "yes"})

"""The description of a queue: valid or not there, and the same after storage."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.engine.descriptions import EntityStatus, QueueDescription
from twinbus.errors import ConfigurationError, InvalidEntityPath

RULES = RuleSet((AuthorizationRule("app", Claim.SEND, "key-one", "key-two"),))


def test_the_defaults_are_those_of_a_new_queue_in_azure() -> None:
    """M2: lock duration and delivery count belong to the entity."""
    queue = QueueDescription(path="orders")
    assert queue.lock_duration_ms == 60_000
    assert queue.max_delivery_count == 10
    assert queue.default_ttl_ms is None
    assert queue.max_size_mb == 1_024
    assert queue.max_message_size_bytes == 262_144
    assert queue.status is EntityStatus.ACTIVE


def test_the_path_is_canonical_and_the_spelling_is_kept() -> None:
    queue = QueueDescription(path="Orders/EU")
    assert (queue.path, queue.display_path) == ("orders/eu", "Orders/EU")
    longer = dataclasses.replace(queue, lock_duration_ms=5_000)
    assert (longer.path, longer.display_path) == ("orders/eu", "Orders/EU")


def test_the_spelling_must_be_of_the_same_path() -> None:
    with pytest.raises(ConfigurationError, match="display_path"):
        QueueDescription(path="orders", display_path="Bills")


@pytest.mark.parametrize("path", ["", "$cbs", "a//b", "q/$DeadLetterQueue"])
def test_a_queue_needs_a_good_path(path: str) -> None:
    with pytest.raises(InvalidEntityPath):
        QueueDescription(path=path)


def test_a_queue_cannot_pose_as_a_subscription() -> None:
    with pytest.raises(ConfigurationError, match="subscription"):
        QueueDescription(path="t/Subscriptions/s")
    assert QueueDescription(path="subscriptions").path == "subscriptions"


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("lock_duration_ms", 1_000, 300_000),
        ("max_size_mb", 1, 81_920),
        ("max_delivery_count", 1, 2_147_483_647),
        ("default_ttl_ms", 1, 922_337_203_685_477),
        ("max_message_size_bytes", 1, 262_144),
    ],
)
def test_numbers_have_a_range_and_its_ends_belong_to_it(name: str, low: int, high: int) -> None:
    """M2: case 90 among them (a lock of 1 ms, or of more than 5 minutes)."""
    for good in (low, high):
        assert getattr(QueueDescription(path="q", **{name: good}), name) == good  # type: ignore[arg-type]
    for bad in (low - 1, high + 1, -(2**63)):
        with pytest.raises(
            ConfigurationError, match=f"{name} must be from {low} to {high}, got {bad}"
        ):
            QueueDescription(path="q", **{name: bad})  # type: ignore[arg-type]
    for odd in (True, 1.5, "5", float("nan")):
        with pytest.raises(ConfigurationError, match=f"{name} must be an integer"):
            QueueDescription(path="q", **{name: odd})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dead_lettering_on_expiration", 1),
        ("enable_batched_operations", "yes"),
        ("requires_session", None),
        ("status", "Active"),
        ("authorization_rules", ()),
        ("user_metadata", "x" * 1_025),
        ("user_metadata", None),
        ("path", 5),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError):
        QueueDescription(**({"path": "q"} | {name: value}))


@given(
    st.builds(
        QueueDescription,
        path=st.sampled_from(["Orders", "a/b", "p/x-servicebus-transfer/3"]),
        lock_duration_ms=st.integers(1_000, 300_000),
        max_size_mb=st.integers(1, 81_920),
        max_delivery_count=st.integers(1, 2_147_483_647),
        default_ttl_ms=st.none() | st.integers(1, 922_337_203_685_477),
        dead_lettering_on_expiration=st.booleans(),
        enable_batched_operations=st.booleans(),
        status=st.sampled_from(EntityStatus),
        user_metadata=st.text(max_size=20),
        authorization_rules=st.sampled_from([RuleSet(), RULES]),
    )
)
def test_a_description_survives_storage(queue: QueueDescription) -> None:
    assert QueueDescription.from_json(queue.to_json()) == queue


def test_an_unknown_key_is_refused_not_dropped() -> None:
    stored = json.loads(QueueDescription(path="q").to_json()) | {"colour": "red"}
    with pytest.raises(ConfigurationError, match="'colour'"):
        QueueDescription.from_json(json.dumps(stored))


def test_another_version_is_refused() -> None:
    stored = json.loads(QueueDescription(path="q").to_json()) | {"version": 2}
    with pytest.raises(ConfigurationError, match="version 2, not 1"):
        QueueDescription.from_json(json.dumps(stored))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"version": 1}', '{"version": 1, "path": "q", "status": "Open"}', "{"],
)
def test_what_is_not_a_description_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        QueueDescription.from_json(text)


@pytest.mark.parametrize("rules", [5, [5], [{"name": "x"}], [{"primary_key": "canary"}]])
def test_bad_rules_are_refused_without_repeating_keys(rules: Any) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        QueueDescription.from_dict({"path": "q", "authorization_rules": rules})
    assert "canary" not in str(refusal.value)


def test_keys_are_stored_but_never_shown() -> None:
    """M6: keys stay inside."""
    queue = QueueDescription(path="q", authorization_rules=RULES)
    assert "key-one" in queue.to_json()
    for shown in (repr(queue), json.dumps(queue.to_public_dict())):
        assert "key-one" not in shown and "key-two" not in shown
    assert queue.to_public_dict()["authorization_rules"] == [{"name": "app", "claims": ["Send"]}]


def test_the_status_says_which_doors_are_open() -> None:
    """M3: entity status."""
    doors = {status.value: (status.can_send, status.can_receive) for status in EntityStatus}
    assert doors == {
        "Active": (True, True),
        "SendDisabled": (False, True),
        "ReceiveDisabled": (True, False),
        "Disabled": (False, False),
    }

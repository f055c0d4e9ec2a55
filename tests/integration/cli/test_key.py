"""``twinbus key list|rotate|create|delete``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.typed_commands import Typed
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.common.connection_string import parse_connection_string
from twinbus.testing.namespaces import NamespaceFixture

PRIMARY, SECONDARY = "cHJpbWFyeQ==" * 3, "c2Vjb25kYXJ5" * 3
RULES = RuleSet((AuthorizationRule("sender", Claim.SEND, PRIMARY, SECONDARY),))


def with_key(bus: NamespaceFixture, key: str) -> str:
    parsed = parse_connection_string(bus.connection_string)
    return (
        f"Endpoint=sb://{parsed.host}:{parsed.effective_port};SharedAccessKeyName=sender;"
        f"SharedAccessKey={key};EntityPath=orders;UseDevelopmentEmulator=true"
    )


def test_rules_are_listed_without_their_keys(typed: Any, servicebus: NamespaceFixture) -> None:
    """M6: unless they are asked for."""
    servicebus.queue("orders", authorization_rules=RULES)
    assert typed.json("key", "list", "orders") == [{"name": "sender", "rights": ["Send"]}]
    assert PRIMARY not in typed("key", "list", "orders")
    (shown,) = typed.json("key", "list", "orders", "--show-keys")
    assert (shown["primary_key"], shown["secondary_key"]) == (PRIMARY, SECONDARY)


def test_a_rotated_key_opens_and_the_old_one_does_not(
    typed: Any, typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: the other key and everything else of the queue stay as they are."""
    servicebus.queue("orders", authorization_rules=RULES, max_delivery_count=3, user_metadata="ä<")
    before = typed.json("queue", "show", "orders")
    assert typed.json("key", "rotate", "orders", "sender", "--dry-run")["would_rotate"]
    assert "--yes" in typed.refused("key", "rotate", "orders", "sender")
    typed_with(with_key(servicebus, SECONDARY))("send", "orders", "x")

    rotate = ("key", "rotate", "orders", "sender", "--yes")
    key = typed.json(*rotate, "--show-keys")["rotated"]["key"]
    assert key not in (PRIMARY, SECONDARY) and key not in typed(*rotate, "--which", "primary")
    typed_with(with_key(servicebus, key))("send", "orders", "x")
    typed_with(with_key(servicebus, SECONDARY)).refused("send", "orders", "x")
    after = typed.json("queue", "show", "orders")
    counted = ("active_messages", "size_bytes")
    assert {**after, **dict.fromkeys(counted)} == {**before, **dict.fromkeys(counted)}


# -- of a whole namespace -------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(None) as running:
        yield running


@pytest.fixture
def typed_there(broker: BrokerProcess) -> Typed:
    return Typed(
        {
            "SERVICEBUS_CONNECTION_STRING": broker.connection_string,
            "TWINBUS_ADMIN_URL": f"http://localhost:{broker.admin_port}",
        }
    )


def test_a_rule_of_the_namespace_is_made_and_deleted(
    typed_there: Any, typed_with: Callable[[str], Any], tmp_path: Path
) -> None:
    """M6: its connection string opens what its claims say, until it is deleted."""
    typed_there("queue", "create", "orders")
    create = ("key", "create", "clerk", "--claims", "send, Listen")
    assert "only once" in typed_there.refused(*create)
    assert typed_there.json(*create, "--dry-run")["would_create"]["claims"] == ["Send", "Listen"]
    assert [each["name"] for each in typed_there.json("key", "list")] == [
        "RootManageSharedAccessKey"
    ]

    saved = tmp_path / "clerk.txt"
    made = typed_there.json(*create, "--save", str(saved))
    assert made == {
        "created": {
            "rule": "clerk",
            "claims": ["Send", "Listen"],
            "namespace": "demo",
            "saved": str(saved),
        }
    }
    assert saved.stat().st_mode & 0o777 == 0o600
    text = saved.read_text().strip()
    clerk = typed_with(text)
    clerk("send", "orders", "x")
    clerk.refused("queue", "create", "another")
    assert {"name": "clerk", "rights": ["Send", "Listen"]} in typed_there.json("key", "list")
    assert "already exists" in typed_there.refused(*create, "--save", str(saved))
    assert "'clerk'" in typed_there.refused(*create, "--show-keys")

    assert "--yes" in typed_there.refused("key", "delete", "clerk")
    assert typed_there.json("key", "delete", "clerk", "--dry-run")["would_delete"]
    assert typed_there.json("key", "delete", "CLERK", "--yes")["deleted"]["rule"] == "clerk"
    clerk.refused("send", "orders", "x")
    assert "RootManageSharedAccessKey" in typed_there.refused("key", "delete", "clerk")


def test_new_keys_are_shown_when_that_is_asked_for(typed_there: Any) -> None:
    """M6: and never otherwise."""
    create = ("key", "create", "shown", "--claims", "Send", "--show-keys")
    created = typed_there.json(*create)["created"]
    assert created["primary_key"] in created["connection_string"]
    assert created["secondary_key"] not in (created["primary_key"], "")
    assert "--claims: 'Look'" in typed_there.refused("key", "create", "x", "--claims", "Send,Look")
    assert "Manage" in typed_there.refused("key", "delete", "RootManageSharedAccessKey", "--yes")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["key", "list"], "whole namespace"),
        (["key", "list", "missing"], "missing"),
        (["key", "rotate", "orders", "nobody", "--yes"], "sender"),
        (["key", "rotate", "orders", "sender", "--which", "third"], "--which: 'third'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed: Any, servicebus: NamespaceFixture, arguments: list[str], words: str
) -> None:
    servicebus.queue("orders", authorization_rules=RULES)
    assert words in typed.refused(*arguments)

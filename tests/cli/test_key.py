"""``twinbus key list|rotate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinbus.broker.access.claims import AuthorizationRule, Claim, RuleSet
from twinbus.connection_string import parse_connection_string
from twinbus.testing.bus import Bus

PRIMARY, SECONDARY = "cHJpbWFyeQ==" * 3, "c2Vjb25kYXJ5" * 3
RULES = RuleSet((AuthorizationRule("sender", Claim.SEND, PRIMARY, SECONDARY),))


def with_key(bus: Bus, key: str) -> str:
    parsed = parse_connection_string(bus.connection_string)
    return (
        f"Endpoint=sb://{parsed.host}:{parsed.effective_port};SharedAccessKeyName=sender;"
        f"SharedAccessKey={key};EntityPath=orders;UseDevelopmentEmulator=true"
    )


def test_rules_are_listed_without_their_keys(typed: Any, servicebus: Bus) -> None:
    """M6: unless they are asked for."""
    servicebus.queue("orders", authorization_rules=RULES)
    assert typed.json("key", "list", "orders") == [{"name": "sender", "rights": ["Send"]}]
    assert PRIMARY not in typed("key", "list", "orders")
    (shown,) = typed.json("key", "list", "orders", "--show-keys")
    assert (shown["primary_key"], shown["secondary_key"]) == (PRIMARY, SECONDARY)


def test_a_rotated_key_opens_and_the_old_one_does_not(
    typed: Any, typed_with: Callable[[str], Any], servicebus: Bus
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["key", "list"], "whole namespace"),
        (["key", "list", "missing"], "missing"),
        (["key", "rotate", "orders", "nobody", "--yes"], "It has sender"),
        (["key", "rotate", "orders", "sender", "--which", "third"], "--which cannot be 'third'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed: Any, servicebus: Bus, arguments: list[str], words: str
) -> None:
    servicebus.queue("orders", authorization_rules=RULES)
    assert words in typed.refused(*arguments)

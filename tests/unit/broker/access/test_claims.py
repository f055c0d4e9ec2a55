"""Access rules: what they may say, and how their keys change."""

from __future__ import annotations

import itertools

import pytest

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.errors import ConfigurationError

_counter = itertools.count(1)


def distinct_bytes(size: int) -> bytes:
    return next(_counter).to_bytes(size, "big")


def rule(name: str = "app", claims: Claim = Claim.SEND) -> AuthorizationRule:
    return AuthorizationRule.generate(name, claims, distinct_bytes)


def test_manage_must_come_with_send_and_listen() -> None:
    """M6: case 44, refused when the rule is made."""
    for claims in (Claim.MANAGE, Claim.MANAGE | Claim.SEND, Claim.MANAGE | Claim.LISTEN):
        with pytest.raises(ConfigurationError, match="without Send and Listen"):
            rule(claims=claims)
    assert rule(claims=Claim.all()).claims == Claim.SEND | Claim.LISTEN | Claim.MANAGE


def test_a_rule_without_a_claim_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no claim"):
        rule(claims=Claim(0))


def test_the_thirteenth_rule_is_refused() -> None:
    """M6: case 45."""
    rules = RuleSet(tuple(rule(f"rule{i}") for i in range(12)))
    with pytest.raises(ConfigurationError, match="13 access rules"):
        rules.with_rule(rule("one-more"))


def test_two_rules_cannot_share_a_name() -> None:
    with pytest.raises(ConfigurationError, match="Duplicate"):
        RuleSet((rule("App"),)).with_rule(rule("app"))


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "../x", "-a", "a/b", "caf\u00e9", "a" * 51])
def test_a_rule_name_is_plain(name: str) -> None:
    with pytest.raises(ConfigurationError, match="access rule name"):
        rule(name)


@pytest.mark.parametrize("key", ["", "a;b", "a b", "a\nb", "k" * 257, "\u00e9"])
def test_a_key_survives_a_connection_string_and_is_never_repeated(key: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        AuthorizationRule("app", Claim.SEND, key, "fine")
    assert "A key of access rule" in str(refusal.value)
    assert not key.strip() or key not in str(refusal.value)


def test_regenerating_one_key_keeps_the_other() -> None:
    """M6: the two keys rotate without an outage."""
    before = RuleSet((rule("app"), rule("other")))
    after = before.with_new_key("app", "primary", distinct_bytes)
    old, new = before.find("app"), after.find("app")
    assert old is not None and new is not None
    assert new.primary_key != old.primary_key
    assert new.secondary_key == old.secondary_key
    assert after.find("other") == before.find("other")
    again = after.with_new_key("app", "secondary", distinct_bytes).find("app")
    assert again is not None and again.secondary_key != old.secondary_key


def test_a_generated_key_is_32_bytes_of_base64() -> None:
    assert [len(key) for key in rule().keys] == [44, 44]
    assert len(set(rule().keys)) == 2


def test_a_rule_that_is_not_there_cannot_be_changed() -> None:
    for change in (
        lambda rules: rules.without("gone"),
        lambda rules: rules.with_new_key("gone", "primary", distinct_bytes),
    ):
        with pytest.raises(ConfigurationError, match="'gone' not found"):
            change(RuleSet((rule("app"),)))


def test_a_rule_can_be_removed() -> None:
    assert [r.name for r in RuleSet((rule("a"), rule("b"))).without("a")] == ["b"]


def test_keys_are_in_no_repr() -> None:
    one = rule()
    for text in (repr(one), repr(RuleSet((one,)))):
        assert one.primary_key not in text
        assert one.secondary_key not in text


def test_claims_have_the_names_that_azure_uses() -> None:
    assert Claim.all().names() == ["Send", "Listen", "Manage"]
    assert Claim.from_names(["listen", "Send"]) == Claim.SEND | Claim.LISTEN
    with pytest.raises(ConfigurationError, match="'Admin'"):
        Claim.from_names(["Admin"])

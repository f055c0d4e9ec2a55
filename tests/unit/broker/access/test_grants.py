"""What a connection may do after the tokens it has shown."""

from __future__ import annotations

import pytest

from twinbus.broker.access import sas as grants_module
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.access.sas import AccessGrant, Audience, Grants, make_token, parse_token, verify

NOW_S = 1_000
AUDIENCE = Audience(frozenset({"h"}), 5672)


def grant(
    path: str = "orders",
    claims: Claim = Claim.SEND,
    expires_s: int = NOW_S + 60,
    fingerprint: str = "f",
    scope: str = "",
) -> AccessGrant:
    return AccessGrant(
        segments=tuple(path.split("/")) if path else (),
        claims=claims,
        expires_s=expires_s,
        scope=scope,
        rule_name="rule",
        key_fingerprint=fingerprint,
    )


def holding(*held: AccessGrant) -> Grants:
    grants = Grants()
    for one in held:
        grants.add(one, now_s=NOW_S)
    return grants


def test_without_a_grant_nothing_is_allowed() -> None:
    """M6: closed unless opened."""
    assert not Grants().allows("orders", Claim.SEND, now_s=NOW_S)


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("queue1", True),
        ("queue1/$deadletterqueue", True),
        ("queue10", False),
        ("queue", False),
        ("other/queue1", False),
    ],
)
def test_a_grant_covers_whole_segments(path: str, is_allowed: bool) -> None:
    """M6: case 37."""
    grants = holding(grant("queue1"))
    assert grants.allows(path, Claim.SEND, now_s=NOW_S) is is_allowed


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("tenant", True),
        ("tenant/$deadletterqueue", True),
        ("tenant/$transfer/$deadletterqueue", True),
        ("tenant/subscriptions/s", True),
        ("tenant/subscriptions/s/$deadletterqueue", True),
        ("tenant/private", False),
        ("tenant/private/$deadletterqueue", False),
        ("tenant/private/subscriptions/s", False),
        ("tenant/x-servicebus-transfer/0", False),
        ("tenant2", False),
    ],
)
def test_a_rule_of_an_entity_covers_its_own_parts(path: str, is_allowed: bool) -> None:
    """M14: subscriptions and dead letters; a rule of the namespace covers whatever is below."""
    own, prefix = holding(grant("tenant", scope="tenant")), holding(grant("tenant"))
    assert own.allows(path, Claim.SEND, now_s=NOW_S) is is_allowed
    assert prefix.allows(path, Claim.SEND, now_s=NOW_S) is (path != "tenant2")


def test_a_grant_for_a_sub_queue_does_not_open_the_queue() -> None:
    """M6: down, never up."""
    assert not holding(grant("q/$deadletterqueue")).allows("q", Claim.SEND, now_s=NOW_S)


def test_a_namespace_grant_covers_every_entity() -> None:
    """M6: a rule on the namespace."""
    grants = holding(grant(""))
    assert grants.allows("a/b/c", Claim.SEND, now_s=NOW_S)


@pytest.mark.parametrize("held", [Claim.SEND, Claim.LISTEN, Claim.SEND | Claim.LISTEN, Claim.all()])
@pytest.mark.parametrize("asked", [Claim.SEND, Claim.LISTEN, Claim.MANAGE])
def test_a_claim_opens_what_it_says_and_manage_opens_all(held: Claim, asked: Claim) -> None:
    """M6: cases 41 to 43."""
    grants = holding(grant(claims=held))
    assert grants.allows("orders", asked, now_s=NOW_S) is (asked in held)


def test_grants_of_two_entities_do_not_mix() -> None:
    """M6: case 42; Listen here and Send there make neither elsewhere."""
    grants = holding(grant("a", Claim.LISTEN), grant("b", Claim.SEND))
    assert not grants.allows("a", Claim.SEND, now_s=NOW_S)
    assert not grants.allows("b", Claim.LISTEN, now_s=NOW_S)


def test_a_grant_ends_with_its_token() -> None:
    """M6: case 47, the decision behind it."""
    grants = holding(grant(expires_s=NOW_S + 5))
    assert grants.allowed_until_s("orders", Claim.SEND, now_s=NOW_S) == NOW_S + 5
    assert grants.allows("orders", Claim.SEND, now_s=NOW_S + 4)
    assert not grants.allows("orders", Claim.SEND, now_s=NOW_S + 5)


def test_a_renewed_token_extends_what_it_renews() -> None:
    """M6: the client puts a fresh token on the same link."""
    grants = holding(grant(expires_s=NOW_S + 5), grant(expires_s=NOW_S + 50))
    assert len(grants) == 1
    assert grants.allowed_until_s("orders", Claim.SEND, now_s=NOW_S) == NOW_S + 50


def test_a_flood_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: case 53; expired ones go first, then the oldest."""
    monkeypatch.setattr(grants_module, "GRANTS_PER_CONNECTION_MAX", 3)
    grants = holding(grant("kept"), grant("short", expires_s=NOW_S + 1))
    for path in ("x", "y"):
        grants.add(grant(path), now_s=NOW_S + 2)
    assert len(grants) == 3 and grants.allows("kept", Claim.SEND, now_s=NOW_S + 2)
    grants.add(grant("z"), now_s=NOW_S + 2)
    assert len(grants) == 3 and not grants.allows("kept", Claim.SEND, now_s=NOW_S + 2)


def test_grants_of_a_regenerated_key_are_dropped() -> None:
    """M6: case 48; what the other key signed stays."""
    rule = AuthorizationRule("app", Claim.SEND, "one", "two")
    before = {"": RuleSet((rule,))}
    grants = Grants()
    for key, path in (("one", "a"), ("two", "b")):
        text = make_token(resource=f"sb://h/{path}", rule_name="app", key=key, expires_s=NOW_S + 60)
        grants.add(
            verify(parse_token(text), audience=AUDIENCE, rules=before.get, now_s=NOW_S),
            now_s=NOW_S,
        )
    assert not grants.drop_unbacked(before.get)
    after = {"": before[""].with_new_key("app", "primary", bytes)}
    assert grants.drop_unbacked(after.get)
    assert not grants.allows("a", Claim.SEND, now_s=NOW_S)
    assert grants.allows("b", Claim.SEND, now_s=NOW_S)


def test_a_rule_that_lost_a_claim_backs_no_grant_with_it() -> None:
    """M14: whoever was granted it shows the token again, and is granted what the rule has now."""
    rule = AuthorizationRule("rule", Claim.SEND | Claim.LISTEN, "p" * 44, "s" * 44)
    token = make_token(resource="sb://h/orders", rule_name="rule", key="p" * 44, expires_s=2_000)
    held = verify(
        parse_token(token), audience=AUDIENCE, rules=lambda path: RuleSet((rule,)), now_s=NOW_S
    )
    grants = holding(held)
    assert not grants.drop_unbacked(lambda path: RuleSet((rule,)))
    less = AuthorizationRule("rule", Claim.LISTEN, "p" * 44, "s" * 44)
    assert grants.drop_unbacked(lambda path: RuleSet((less,)))
    assert not grants.allows("orders", Claim.SEND, now_s=NOW_S)


def test_a_grant_is_found_by_its_path_among_a_thousand() -> None:
    """M13: a question is not asked of every grant."""
    grants = holding(*[grant(f"topic/subscriptions/s{number}") for number in range(1_000)])
    asked = 0

    def counted(self: AccessGrant, segments: tuple[str, ...]) -> bool:
        nonlocal asked
        asked += 1
        return segments[: len(self.segments)] == self.segments

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AccessGrant, "covers", counted)
        assert grants.allows("topic/subscriptions/s7", Claim.SEND, now_s=NOW_S)
        assert not grants.allows("topic/subscriptions/other", Claim.SEND, now_s=NOW_S)
    assert asked == 1

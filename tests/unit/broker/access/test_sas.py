"""Tokens: only the one right form, signed with a key that stands, for this place, in time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
import tracemalloc
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.access import sas
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.access.sas import (
    AccessGrant,
    Audience,
    is_backed,
    make_token,
    parse_resource,
    parse_token,
    verify,
)
from twinbus.common.entity_path import owning_entity, parse_resource_segments
from twinbus.errors import AccessDenied

NOW_S = 1_800_000_000
HOUR_S = 3_600
ROOT = AuthorizationRule("root", Claim.all(), "root-primary", "root-secondary")
SENDER = AuthorizationRule("sender", Claim.SEND, "sender-primary", "sender-secondary")
ON_ORDERS = AuthorizationRule("sender", Claim.LISTEN, "orders-primary", "orders-secondary")
AUDIENCE = Audience(frozenset({"localhost", "127.0.0.1"}), 5672)
RULES = {"": RuleSet((ROOT, SENDER)), "orders": RuleSet((ON_ORDERS,)), "a/b": RuleSet()}


def token(
    resource: str = "sb://localhost:5672/orders",
    rule_name: str = "root",
    key: str = "root-primary",
    expires_s: int = NOW_S + HOUR_S,
) -> str:
    return make_token(resource=resource, rule_name=rule_name, key=key, expires_s=expires_s)


def granted(text: str, *, now_s: float = NOW_S) -> AccessGrant:
    return verify(parse_token(text), audience=AUDIENCE, rules=RULES.get, now_s=now_s)


def refusal(text: str, *, now_s: float = NOW_S) -> str:
    with pytest.raises(AccessDenied) as refused:
        granted(text, now_s=now_s)
    return str(refused.value)


def with_field(name: str, value: str) -> str:
    """A good token with one field replaced, its signature as it was."""
    return re.sub(rf"(?<=[ &]){name}=[^&]*", lambda _: f"{name}={value}", token())


def signed(sr: str, se: str, key: str = "root-primary") -> str:
    """A token whose signature is right for whatever stands in its fields."""
    digest = hmac.new(key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256).digest()
    sig = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={se}&skn=root"


def test_a_good_token_grants_the_claims_of_its_rule() -> None:
    """M6: a namespace rule, used for one entity."""
    grant = granted(token(rule_name="sender", key="sender-secondary"))
    assert grant.segments == ("orders",)
    assert grant.claims == Claim.SEND
    assert grant.expires_s == NOW_S + HOUR_S
    assert (grant.scope, grant.rule_name) == ("", "sender")


def test_a_token_made_by_the_stock_sdk_is_accepted() -> None:
    """M10: the SDK signs with its own code."""
    from azure.servicebus._base_handler import _generate_sas_token

    text = _generate_sas_token("sb://localhost:5672/orders", "root", "root-primary").token
    assert granted(str(text), now_s=time.time()).claims == Claim.all()


def test_lower_case_percent_encoding_is_accepted() -> None:
    """M10: some SDKs write %3a where others write %3A; the signature covers what they wrote."""
    sr = quote_plus("sb://localhost:5672/orders").lower()
    assert granted(signed(sr, str(NOW_S + HOUR_S))).segments == ("orders",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(token(key="wrong"), id="wrong key"),
        pytest.param(token(rule_name="nobody"), id="unknown rule"),
        pytest.param(token(rule_name="sender", key="root-primary"), id="key of another rule"),
        pytest.param(with_field("sig", quote("A" * 43 + "=", safe="")), id="wrong signature"),
        pytest.param(with_field("sig", "AAAA"), id="short signature"),
        pytest.param(with_field("sig", "%21%21"), id="no base64"),
        pytest.param(with_field("skn", "..%2Fx"), id="path as rule name"),
        pytest.param(with_field("se", str(NOW_S + 2 * HOUR_S)), id="expiry changed"),
        pytest.param(with_field("sr", quote("sb://localhost/other", safe="")), id="sr changed"),
    ],
)
def test_a_wrong_signature_and_an_unknown_rule_get_the_same_words(text: str) -> None:
    """M6: cases 33 and 40."""
    assert refusal(text) == (
        "The rule name or the signature of the token is wrong. "
        "Check SharedAccessKeyName and SharedAccessKey."
    )


def test_an_unknown_rule_costs_the_same_work_as_a_wrong_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M6: the work, counted, because a clock on a busy machine proves little."""
    keys: list[str] = []
    real = sas.keyed_digest
    texts = [token(key="wrong"), token(rule_name="nobody")]
    monkeypatch.setattr(sas, "keyed_digest", lambda key, text: keys.append(key) or real(key, text))
    work = []
    for text in texts:
        keys.clear()
        refusal(text)
        work.append(len(keys))
    assert work == [2, 2]


def test_an_expired_token_is_refused() -> None:
    """M6: case 34; the second in which it ends is already too late."""
    text = token(expires_s=NOW_S)
    assert granted(text, now_s=NOW_S - 1).expires_s == NOW_S
    assert "expired" in refusal(text, now_s=NOW_S)
    assert "expired" in refusal(text, now_s=NOW_S + 1)


def test_an_expired_token_with_a_wrong_signature_says_nothing_about_time() -> None:
    """M6: the signature is looked at first."""
    assert "expired" not in refusal(token(key="wrong", expires_s=NOW_S - 1))


@pytest.mark.parametrize(
    "se",
    ["-1", "1e400", "9" * 500, "nan", "1.5", "+5", "%201", "1%20", "1_0", "0x10", "9" * 13],
)
def test_an_expiry_is_plain_digits(se: str) -> None:
    """M6: case 35."""
    assert "expiry" in refusal(signed(quote("sb://localhost/q", safe=""), se))


def test_an_expiry_of_five_thousand_digits_is_not_even_read() -> None:
    """M6: case 35."""
    assert "the maximum is 2048" in refusal(with_field("se", "9" * 5_000))


@pytest.mark.parametrize("se", [" 1", "1 ", "\u0661\u0662\u0663", "\uff11", "1\n", ""])
def test_an_expiry_is_ascii_digits_with_nothing_around_them(se: str) -> None:
    """M6: case 35; Python's int() would take most of these."""
    with pytest.raises(AccessDenied):
        parse_token(with_field("se", se))


def test_a_far_expiry_is_capped_and_an_impossible_one_refused() -> None:
    """M6: case 36."""
    assert granted(token(expires_s=253_402_300_799)).expires_s == NOW_S + 86_400
    assert "expiry" in refusal(token(expires_s=253_402_300_800))
    assert "expiry" in refusal(token(expires_s=999_999_999_999))


@pytest.mark.parametrize(
    ("resource", "segments"),
    [
        ("sb://localhost:5672", ()),
        ("sb://localhost:5672/", ()),
        ("sb://localhost/orders", ("orders",)),
        ("SB://LOCALHOST:5672/Orders", ("orders",)),
        ("amqp://127.0.0.1/orders", ("orders",)),
        ("amqps://localhost/orders/", ("orders",)),
        ("http://localhost/orders", ("orders",)),
        ("https://localhost/a/b", ("a", "b")),
        ("sb://localhost/orders/$DeadLetterQueue", ("orders", "$deadletterqueue")),
    ],
)
def test_a_resource_of_this_namespace_is_accepted(resource: str, segments: tuple[str, ...]) -> None:
    """M6: case 38, the forms that are right."""
    assert granted(token(resource)).segments == segments


def test_a_token_for_another_port_of_the_namespace_fits() -> None:
    """M6: a port that leads elsewhere does not."""
    audience = Audience(AUDIENCE.host_names, 5672, other_ports=frozenset({5671}))
    for place in ("sb://localhost:5671/q", "https://localhost:5672/q", "sb://localhost/q"):
        assert parse_resource(place, audience) == ("q",)
    with pytest.raises(AccessDenied, match="another namespace"):
        parse_resource("sb://localhost:5670/q", audience)


def test_a_name_that_the_bearer_brings_counts_only_where_any_name_may_be_used() -> None:
    """M6: on loopback, a token for another host was meant for another host (case 52)."""
    for any_name in (False, True):
        audience = Audience(AUDIENCE.host_names, 5672, any_name).known_as("Bus.Example")
        assert ("bus.example" in audience.host_names) is any_name
        assert audience.known_as(None) == audience


@pytest.mark.parametrize(
    "resource",
    [
        "sb://elsewhere/orders",
        "sb://localhost.evil/orders",
        "sb://localhost:5673/orders",
        "sb://localhost:05672000/orders",
        "ftp://localhost/orders",
        "localhost/orders",
        "sb://user@localhost/orders",
        "sb://localhost@elsewhere/orders",
        "sb://localhost/orders?x=1",
        "sb://localhost/orders#x",
        "sb://localhost//orders",
        "sb://localhost/orders//",
        "sb://localhost/a/../orders",
        "sb://localhost/%6frders",
        "sb://localhost/orders%2F",
        "sb://localhost\\orders",
        "sb://localhost/ord ers",
        "sb://localhost/$x/orders",
        "sb://",
    ],
)
def test_any_other_resource_is_refused_although_its_signature_is_right(resource: str) -> None:
    """M6: case 38."""
    assert "token" in refusal(token(resource))


def test_percent_signs_alone_are_refused_before_they_are_decoded() -> None:
    """M13: each of them would become an object of its own."""
    text = "SharedAccessSignature sr=sb%" + "%" * 1_900 + "&sig=a&se=1&skn=b"
    tracemalloc.start()
    try:
        assert "percent-encoded exactly once" in refusal(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_resource_that_was_encoded_twice_is_refused_as_such() -> None:
    """M6: case 38."""
    assert "percent-encoded exactly once" in refusal(token("sb://localhost/%6frders"))


@pytest.mark.parametrize("sr", ["sb%3A%2F%2Flocalhost%2F%FF", "sb%3A%2F%2Flocalhost%2Fa%0Ab", "%"])
def test_a_resource_is_printable_text_encoded_once(sr: str) -> None:
    """M6: case 38."""
    assert "resource" in refusal(signed(sr, str(NOW_S + HOUR_S)))


@pytest.mark.parametrize("name", ["sr", "sig", "se", "skn"])
def test_every_field_stands_exactly_once(name: str) -> None:
    """M6: case 39."""
    good = token()
    field = next(part for part in re.split("[ &]", good) if part.startswith(name + "="))
    without = good.replace("&" + field, "").replace(field + "&", "")
    for text in (f"{good}&{field}", without, f"{good}&x=1", f"{good}&", with_field(name, "")):
        with pytest.raises(AccessDenied, match="sr, sig, se and skn"):
            parse_token(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "eyJhbGciOiJub25lIn0.e30.",
        "sharedaccesssignature sr=x",
        "SharedAccessSignature",
        "SharedAccessSignature  " + token().removeprefix("SharedAccessSignature "),
        token() + "\r\n",
        token() + "\x00",
        token() + "A" * 1_000_000,
    ],
)
def test_what_is_not_a_token_is_refused(text: str) -> None:
    """M6: case 54."""
    with pytest.raises(AccessDenied):
        parse_token(text)


@pytest.mark.parametrize("skn", ["root%0D%0Ax", "root%00", "ro%FFot", "root%2520"])
def test_a_rule_name_with_hidden_characters_is_refused(skn: str) -> None:
    """M6: case 40."""
    with pytest.raises(AccessDenied):
        parse_token(with_field("skn", skn))


@given(st.text(max_size=60))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    for attempt in (text, "SharedAccessSignature " + text, token() + text, with_field("sr", text)):
        try:
            parse_token(attempt)
        except AccessDenied:
            continue


def test_an_entity_rule_signs_for_its_entity_and_its_own_parts() -> None:
    """M6, M14: a rule on an entity."""
    for path in (
        "orders",
        "Orders/$DeadLetterQueue",
        "orders/$management",
        "orders/Subscriptions/s",
        "orders/subscriptions/s/$deadletterqueue/",
    ):
        grant = granted(token(f"sb://localhost/{path}", "sender", "orders-primary"))
        assert grant.claims == Claim.LISTEN
        assert grant.scope == "orders"


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/other", "/orders2", "/a/orders", "/orders/private"),
        *("/orders/x-servicebus-transfer/0", "/orders/private/$management"),
        *("/orders/subscriptions/s/other", "/orders/subscriptions/s/subscriptions/t"),
    ],
)
def test_an_entity_rule_signs_for_nothing_else(path: str) -> None:
    """M6, M14: case 46; a longer path is another entity's."""
    assert "rule name or the signature" in refusal(
        token(f"sb://localhost{path}", "sender", "orders-primary")
    )


def test_a_rule_without_a_namespace_configuration_opens_nothing() -> None:
    """M6: no rule means no entry."""
    with pytest.raises(AccessDenied):
        verify(parse_token(token()), audience=AUDIENCE, rules=lambda _: None, now_s=NOW_S)


def test_a_grant_falls_with_its_key_and_only_with_its_own() -> None:
    """M6: case 48."""
    grant = granted(token())
    other = granted(token(key="root-secondary"))
    assert is_backed(grant, RULES.get)
    rotated = {"": RULES[""].with_new_key("root", "primary", bytes)}
    assert not is_backed(grant, rotated.get)
    assert is_backed(other, rotated.get)
    assert not is_backed(other, {"": RULES[""].without("root")}.get)
    assert not is_backed(other, lambda _: None)


def test_secrets_are_in_no_repr() -> None:
    parsed = parse_token(token())
    signature = base64.b64encode(parsed.signature).decode()
    assert signature not in repr(parsed) and repr(parsed.signature) not in repr(parsed)
    assert "root-primary" not in repr(granted(token()))


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("orders/subscriptions", "orders"),
        ("orders/subscriptions/s", "orders"),
        ("orders/subscriptions/s/$deadletterqueue", "orders"),
        ("orders/subscriptions/s/rules", "orders"),
        ("orders/Subscriptions/s/Rules/r", "orders"),
        ("orders/subscriptions/s/other", ""),
        ("orders/subscriptions/s/rules/r/other", ""),
        ("orders/private", "orders/private"),
        ("subscriptions/s/rules/r", "subscriptions/s/rules/r"),
    ],
)
def test_a_topics_rules_cover_what_belongs_to_its_subscriptions(path: str, owner: str) -> None:
    """M14: and nothing that is merely longer."""
    assert owning_entity(parse_resource_segments(path)) == owner

    text = token(f"sb://localhost:5672/{path}", "sender", "orders-primary")
    if owner == "orders":
        assert granted(text).scope == "orders"
    else:
        refusal(text)

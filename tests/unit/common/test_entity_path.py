"""Names of entities: one canonical form, and nothing that sneaks around it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.common.entity_path import (
    Address,
    BacklogPath,
    backlog_owner,
    backlog_prefix,
    check_patterns,
    parse_address,
    parse_backlog_path,
    parse_entity_path,
    parse_resource_segments,
)
from twinbus.errors import ConfigurationError, InvalidEntityPath

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("orders", "orders"),
        ("Orders", "orders"),
        ("q.1_a-b", "q.1_a-b"),
        ("EU/Orders/New", "eu/orders/new"),
        ("primary/x-servicebus-transfer/0", "primary/x-servicebus-transfer/0"),
        # Names that file systems fear are ordinary here: no file is ever called after them.
        ("con", "con"),
        ("a.wal", "a.wal"),
        ("a" * 260, "a" * 260),
    ],
)
def test_a_good_name_has_one_canonical_form(text: str, canonical: str) -> None:
    assert parse_entity_path(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" * 261, id="261 characters"),
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/./b",
        "%2e%2e",
        "%252e",
        "a%2fb",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\u202eb",  # right-to-left override
        "caf\u00e9",  # composed
        "cafe\u0301",  # decomposed
        "\u0430",  # a Cyrillic letter that looks Latin
        "\u0661",  # an Arabic-Indic digit
        "\u212a",  # the Kelvin sign, whose lower case is an ASCII k
        "a\udcc0\udcae",  # an overlong encoding, as surrogates
        ".db",
        "*.wal",
        "a b",
        "a\\b",
        "a?b",
        "a#b",
        "a:b",
        "-a",
        "a-",
        "$cbs",
        "$management",
        "q/$DeadLetterQueue",
        "q/$DeadLetterQueue/$DeadLetterQueue",
        "a/$b/c",
        "a\n",
    ],
)
def test_a_bad_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidEntityPath):
        parse_entity_path(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a//b", "double slash"),
        ("$cbs", "reserved"),
        ("a/../b", "'.' or '..'"),
        ("a%2fb", "invalid character"),
        ("a-", "begin and end with a letter or a digit"),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidEntityPath, match=re.escape(reason)):
        parse_entity_path(text)


def test_a_refusal_repeats_little_of_the_name_and_nothing_unprintable() -> None:
    with pytest.raises(InvalidEntityPath) as refusal:
        parse_entity_path("q\r\nforged log line" + "x" * 200)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@given(PATHS)
def test_canonical_names_stay_as_they_are(text: str) -> None:
    canonical = parse_entity_path(text)
    assert parse_entity_path(canonical) == canonical
    assert parse_entity_path(text.swapcase()) == canonical


@given(st.text(max_size=40))
@example("\u0130")
def test_any_text_is_a_plain_name_or_refused(text: str) -> None:
    try:
        canonical = parse_entity_path(text)
    except InvalidEntityPath:
        return
    assert canonical == text.lower()
    assert canonical.isascii()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("q", Address("q")),
        ("amqps://localhost:5671/Q", Address("q")),
        ("AMQP://127.0.0.1:5672/a/b", Address("a/b")),
        ("sb://ns.example.net/q/$DeadLetterQueue", Address("q", "dead-letter")),
        ("q/$deadletterqueue", Address("q", "dead-letter")),
        ("q/$Transfer/$DeadLetterQueue", Address("q", "transfer-dead-letter")),
        ("q/$management", Address("q", None, "management")),
        ("q/$DeadLetterQueue/$management", Address("q", "dead-letter", "management")),
        ("$cbs", Address("", None, "cbs")),
        ("amqps://localhost:5671/$cbs", Address("", None, "cbs")),
        ("T/Subscriptions/S", Address("t/subscriptions/s")),
        (
            "amqps://h/t/Subscriptions/s/$DeadLetterQueue",
            Address("t/subscriptions/s", "dead-letter"),
        ),
    ],
)
def test_link_addresses_of_the_sdk_are_understood(text: str, address: Address) -> None:
    """M10: the forms that the stock SDK attaches to."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/q",
        "q/",
        "$management",
        "$other",
        "q/$cbs",
        "q/$DeadLetterQueue/$DeadLetterQueue",
        "q/$Transfer",
        "q/$management/$DeadLetterQueue",
        "q/$management/$management",
        "q/$DeadLetterQueue/x",
        "q/$DeadLetterQueue/",
        "amqps://host",
        "amqps:///q",
        "amqps://user@host/q",
        "http://host/q",
        "amqps://host//q",
        "amqps://host/amqps://host/q",
        "q%2f$DeadLetterQueue",
        "q/$Dead\u017fetterQueue",
        "a" * 1_000_000,
        pytest.param(f"amqps://{'h' * 1_000}/q", id="a host of 1,000 characters"),
    ],
)
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidEntityPath):
        parse_address(text)


@given(PATHS, st.sampled_from(["", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue"]))
def test_canonical_addresses_stay_as_they_are(path: str, suffix: str) -> None:
    for node in ("", "/$management"):
        address = parse_address(path + suffix + node)
        assert parse_address(str(address)) == address
        assert str(address) == (path + suffix + node).lower()


def test_the_path_of_a_management_address_is_the_entity_it_manages() -> None:
    assert parse_address("Q/$DeadLetterQueue/$management").path == "q/$deadletterqueue"


def test_a_backlog_path_is_taken_apart() -> None:
    backlog = parse_backlog_path("Orders-EU/x-servicebus-transfer/9", backlog_queue_count=10)
    assert backlog == BacklogPath("orders-eu", 9)
    assert str(backlog) == "orders-eu/x-servicebus-transfer/9"


@pytest.mark.parametrize("index", ["-1", "01", "1e3", "10", "", "+1", "1_0", "\u0661", "9" * 30])
def test_a_backlog_index_has_one_spelling_and_is_below_the_count(index: str) -> None:
    with pytest.raises(InvalidEntityPath):
        parse_backlog_path(f"p/x-servicebus-transfer/{index}", backlog_queue_count=10)


@pytest.mark.parametrize("text", ["orders", "p/transfer/0", "p/x-servicebus-transfer/0/1"])
def test_other_paths_are_not_backlog_paths(text: str) -> None:
    with pytest.raises(InvalidEntityPath):
        parse_backlog_path(text)


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        (str(BacklogPath("orders-eu", 9)), "orders-eu"),
        ("p/x-servicebus-transfer/0/$deadletterqueue", "p"),
        ("orders", ""),
        ("p/x-servicebus-transfer", ""),
        ("x-servicebus-transfer/0", ""),
    ],
)
def test_a_path_tells_whose_backlog_it_is(path: str, owner: str) -> None:
    assert backlog_owner(path) == owner
    assert not owner or path.startswith(backlog_prefix(owner))


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("", ()),
        ("/", ()),
        ("Q", ("q",)),
        ("q/", ("q",)),
        ("a/B/$DeadLetterQueue", ("a", "b", "$deadletterqueue")),
        ("$cbs", ("$cbs",)),
    ],
)
def test_a_resource_is_split_into_canonical_segments(text: str, segments: tuple[str, ...]) -> None:
    assert parse_resource_segments(text) == segments


@pytest.mark.parametrize("text", ["//", "q//", "/q", "a/../b", "q/$x/y", "%71", "$x"])
def test_a_bad_resource_is_refused(text: str) -> None:
    with pytest.raises(InvalidEntityPath):
        parse_resource_segments(text)


@pytest.mark.parametrize("pattern", ["", "orders,bills", " orders", "orders "])
def test_a_pattern_that_no_name_can_fit_is_refused(pattern: str) -> None:
    """Y6: with it alone nothing would be delivered."""
    check_patterns(["*", "orders*", "north/*", "order?"])
    with pytest.raises(ConfigurationError, match=re.escape(repr(pattern))):
        check_patterns(["*", pattern])
    with pytest.raises(ConfigurationError, match="empty"):
        check_patterns([])

"""``twinbus send``, ``receive`` and ``peek``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.access import connection_string_with
from twinbus.broker.access.rules import Claim
from twinbus.testing.namespaces import NamespaceFixture


def test_what_is_sent_is_peeked_and_received(typed: Any, servicebus: NamespaceFixture) -> None:
    """M2: with everything that was said about it; a peek takes nothing."""
    queue = servicebus.queue("orders")
    options = [
        "--id", "m1", "--subject", "tea", "--correlation-id", "c1", "--reply-to", "answers",
        "--content-type", "text/plain", "--property", "colour=red", "--property", "size:=3",
        "--property", "ok:=true", "--ttl", "1h",
    ]  # fmt: skip
    assert typed("send", "orders", "hällo", *options) == "1 message sent to 'orders'\n"
    for _ in range(2):
        (seen,) = typed.json("peek", "orders")
        assert seen["delivery_count"] == 0 and queue.active_message_count == 1
    assert "hällo" in typed("peek", "orders")

    (received,) = typed.lines("receive", "orders", "--wait", "2s")
    assert received == seen
    assert {
        "body": "hällo",
        "message_id": "m1",
        "subject": "tea",
        "correlation_id": "c1",
        "reply_to": "answers",
        "content_type": "text/plain",
        "properties": {"colour": "red", "size": 3, "ok": True},
        "time_to_live": "PT1H",
        "state": "active",
    }.items() <= received.items()
    assert queue.active_message_count == 0
    assert typed("receive", "orders", "--wait", "0s") == "No messages\n"


def test_many_messages_from_a_file_and_from_lines(
    typed: Any, servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """M3: in batches that fit, each message with an id of its own."""
    queue = servicebus.queue("orders")
    binary = tmp_path / "body"
    binary.write_bytes(b"\xff\x00")
    assert typed.json("send", "orders", "--file", str(binary)) == {"sent": 1}
    (seen,) = typed.json("receive", "orders")
    assert seen["body_base64"] == "/wA=" and "body" not in seen

    # 30 messages of 20 KB do not fit into one batch of 256 KB
    large = tmp_path / "large"
    large.write_bytes(b"x" * 20_000)
    assert typed.json("send", "orders", "--file", str(large), "--count", "30") == {"sent": 30}
    ids = {each["message_id"] for each in typed.lines("peek", "orders", "--count", "50")}
    assert len(ids) == 30 == queue.active_message_count
    assert len(typed.json("receive", "orders", "--count", "30", "--delete")) == 30

    assert typed.json("send", "orders", "--lines", stdin=b"one\ntwo\r\n\nfour") == {"sent": 4}
    assert typed.json("send", "orders", "--file", "-", stdin=b"all\nof it") == {"sent": 1}
    found = typed.lines("receive", "orders", "--count", "200", "--wait", "0.2s")
    assert [each["body"] for each in found] == ["one", "two", "", "four", "all\nof it"]
    assert queue.active_message_count == 0


def test_a_scheduled_message_waits(typed: Any, servicebus: NamespaceFixture) -> None:
    """M3: by how long, or until when."""
    queue = servicebus.queue("orders")
    typed("send", "orders", "soon", "--schedule", "10m")
    typed("send", "orders", "later", "--schedule", "2999-01-01T12:00Z")
    assert queue.scheduled_message_count == 2
    (seen,) = typed.json("peek", "orders", "--from", "2")
    assert seen["state"] == "scheduled" and seen["scheduled"] == "2999-01-01T12:00:00+00:00"


def test_sessions(typed: Any, servicebus: NamespaceFixture) -> None:
    """M3: a named one, or whichever is free."""
    servicebus.queue("orders", requires_session=True)
    for session in ("berlin", "paris"):
        typed("send", "orders", f"to {session}", "--session", session)
    assert typed.json("receive", "orders", "--session", "paris")[0]["body"] == "to paris"
    assert typed.json("receive", "orders", "--next-session")[0]["session_id"] == "berlin"
    assert typed.json("receive", "orders", "--next-session", "--wait", "0.2s") == []


def test_a_subscription_gets_what_its_topic_is_sent(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M1: and a topic is sent to like a queue."""
    servicebus.subscription("news", "all")
    typed("send", "news", "hello")
    assert typed.json("receive", "news/subscriptions/all")[0]["body"] == "hello"


def test_a_dry_run_checks_and_sends_nothing(typed: Any, servicebus: NamespaceFixture) -> None:
    queue = servicebus.queue("orders")
    assert typed.json("send", "orders", "x", "--count", "3", "--dry-run") == {"would_send": 3}
    assert queue.active_message_count == 0


def test_a_table_shows_only_columns_that_say_something(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    typed("send", "orders", "x")
    assert "number" in typed("peek", "orders") and "subject" not in typed("peek", "orders")
    typed("send", "orders", "y", "--subject", "tea")
    assert "subject" in typed("peek", "orders")


def test_what_stands_in_a_message_does_not_reach_the_terminal_as_a_command(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    typed("send", "orders", "--file", "-", "--subject", "\x1b[2J", stdin=b"\x1b]0;title\x07")
    assert "\x1b" not in typed("peek", "orders")


def test_less_than_is_needed_is_said(
    typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: Send to send, Listen to receive and to peek, and no more than that."""
    servicebus.queue("orders")
    sender = typed_with(connection_string_with(servicebus, Claim.SEND, name="s"))
    listener = typed_with(connection_string_with(servicebus, Claim.LISTEN, name="l"))
    sender("send", "orders", "x")
    assert "Listen" in sender.refused("receive", "orders")
    assert "Send" in listener.refused("send", "orders", "x")
    assert len(listener.json("peek", "orders")) == len(listener.json("receive", "orders")) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["send", "orders"], "one body"),
        (["send", "orders", "x", "--lines"], "one body"),
        (["send", "orders", "--file", "/no/such"], "No such file"),
        (["send", "orders", "x", "--count", "2", "--id", "a"], "--id"),
        (["send", "orders", "--lines", "--count", "2"], "--lines and --count"),
        (["send", "orders", "x", "--ttl", "long"], "is not a time"),
        (["send", "orders", "x", "--schedule", "tomorrow"], "'tomorrow'"),
        (["send", "orders", "x", "--property", "x"], "--property: 'x'"),
        (["send", "orders", "x", "--session", "a", "--partition-key", "b"], "differs"),
        (["send", "missing", "x"], "missing"),
        (["receive", "missing"], "missing"),
        (["receive", "orders/$management"], "orders/$management"),
        (["receive", "orders", "--count", "5000"], "at most 1,000"),
        (["receive", "orders", "--session", "a", "--next-session"], "--session and --next-session"),
        (["receive", "orders", "--wait", "x"], "is not a time"),
        (["peek", "orders", "--output", "xml"], "--output: 'xml'"),
        (["peek", "missing"], "missing"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed: Any, servicebus: NamespaceFixture, arguments: list[str], words: str
) -> None:
    servicebus.queue("orders")
    assert words in typed.refused(*arguments)


def test_a_topic_has_no_messages_to_look_at(typed: Any, servicebus: NamespaceFixture) -> None:
    servicebus.subscription("events", "all")
    typed("send", "events", "hello")
    assert "events/subscriptions/NAME" in typed.refused("peek", "events")
    assert typed.json("peek", "events/subscriptions/all")[0]["body"] == "hello"

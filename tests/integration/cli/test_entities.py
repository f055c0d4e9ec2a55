"""``twinbus queue|topic|subscription|rule``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.access import connection_string_of, connection_string_with, entity_rule
from twinbus.broker.access.rules import Claim
from twinbus.common.connection_string import parse_connection_string
from twinbus.testing.namespaces import NamespaceFixture, NamespacePairFixture


def test_a_queue_is_created_shown_listed_and_deleted(typed: Any) -> None:
    """M5: with the properties that were asked for."""
    options = [
        "--lock-duration", "30s", "--max-delivery-count", "3", "--ttl", "2h", "--sessions",
        "--duplicate-window", "5m", "--dead-letter-expired", "--size-mb", "2048",
        "--delete-when-idle", "7d", "--status", "senddisabled", "--metadata", "a <note>",
    ]  # fmt: skip
    would = typed.json("queue", "create", "orders", *options, "--dry-run")["would_create"]
    assert typed.json("queue", "list") == []
    assert typed("queue", "create", "orders", *options) == "Queue 'orders' was created\n"

    shown = typed.json("queue", "show", "orders")
    would.pop("max_message_size_in_kilobytes")  # Left to the service.
    assert {name: shown[name] for name in would} == would
    assert shown["lock_duration"] == "PT30S" and shown["default_message_time_to_live"] == "PT2H"
    assert shown["requires_session"] and shown["requires_duplicate_detection"]
    assert shown["duplicate_detection_history_time_window"] == "PT5M"
    assert shown["status"] == "SendDisabled" and shown["user_metadata"] == "a <note>"
    assert shown["active_messages"] == 0
    assert "orders" in typed("queue", "list") and "PT30S" in typed("queue", "show", "orders")
    assert [each["path"] for each in typed.lines("queue", "list", "--prefix", "ord")] == ["orders"]
    assert typed.lines("queue", "list", "--prefix", "x") == []

    assert "would be deleted" in typed("queue", "delete", "orders", "--dry-run")
    assert "--yes" in typed.refused("queue", "delete", "orders")
    assert typed.json("queue", "delete", "orders", "--yes")["deleted"]["path"] == "orders"
    assert typed.json("queue", "list") == []


def test_a_forward_is_made_with_a_key_that_covers_its_target(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M14: the key of the namespace does; the key of a topic covers its subscriptions alone."""
    servicebus.queue("target")
    typed("queue", "create", "source", "--forward-to", "target")
    assert typed.json("queue", "show", "source")["forward_to"] == "target"
    servicebus.topic("news", authorization_rules=entity_rule(Claim.all()))
    text = connection_string_of(servicebus, "news", for_it_alone=True)
    owner = type(typed)({"SERVICEBUS_CONNECTION_STRING": text})
    owner("subscription", "create", "news", "plain")
    said = owner.refused("subscription", "create", "news", "s", "--forward-to", "target")
    assert "Send" in said and "'target'" in said
    typed("subscription", "create", "news", "s", "--forward-to", "target")


def test_a_topic_and_its_subscriptions(typed: Any) -> None:
    """M5: created, shown, listed and deleted."""
    assert typed.json("topic", "create", "news", "--dry-run")["would_create"]["path"] == "news"
    typed("topic", "create", "news", "--ttl", "1h", "--duplicate-window", "1m", "--size-mb", "2048")
    typed("subscription", "create", "news", "all", "--lock-duration", "10s", "--ttl", "5m")
    assert typed.json("topic", "show", "news")["subscription_count"] == 1
    assert typed.lines("topic", "list")[0]["default_message_time_to_live"] == "PT1H"
    shown = typed.json("subscription", "show", "news", "all")
    assert shown["lock_duration"] == "PT10S" and shown["name"] == "all"
    assert [each["name"] for each in typed.lines("subscription", "list", "news")] == ["all"]
    assert "deleted" in typed("subscription", "delete", "news", "all", "--yes")
    assert typed.json("subscription", "list", "news") == []
    assert "deleted" in typed("topic", "delete", "news", "--yes")
    assert typed.json("topic", "list") == []


def test_rules_choose_what_a_subscription_takes(typed: Any, servicebus: NamespaceFixture) -> None:
    """M4: written, read back as they were written, and obeyed."""
    servicebus.subscription("news", "red")
    rule = ("rule", "create", "news", "red")
    typed("rule", "delete", "news", "red", "$Default", "--yes")
    typed(*rule, "sql", "--sql", "colour = 'red' AND size < 3", "--action", "SET seen = 1")
    typed(*rule, "plain", "--equals", "label=a & b", "--property", "n:=3", "--property", "ok:=true")
    typed(*rule, "nothing", "--none")
    assert "would be created" in typed(*rule, "more", "--every", "--dry-run")

    found = {each["name"]: each for each in typed.json("rule", "list", "news", "red")}
    assert set(found) == {"sql", "plain", "nothing"}
    assert found["sql"]["filter"] == {"expression": "colour = 'red' AND size < 3"}
    assert found["sql"]["action"] == "SET seen = 1"
    assert found["plain"]["filter"]["label"] == "a & b"
    assert found["plain"]["filter"]["properties"] == {"n": 3, "ok": True}
    assert found["nothing"]["filter"] == {"kind": "FalseFilter"}
    assert typed.json("rule", "show", "news", "red", "sql")["name"] == "sql"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queue", "show", "missing"], "Queue 'missing'"),
        (["queue", "delete", "missing", "--yes"], "Queue 'missing'"),
        (["queue", "purge", "missing", "--yes"], "Queue 'missing'"),
        (["queue", "create", "there"], "'there' already exists"),
        (["queue", "create", "there", "--dry-run"], "queue 'there'"),
        (["queue", "create", "a//b"], "double slash"),
        (["queue", "create", "x", "--lock-duration", "soon"], "is not a time"),
        (["queue", "create", "x", "--lock-duration", "3h"], "refused to create"),
        (["queue", "create", "x", "--status", "asleep"], "--status: 'asleep'"),
        (["queue", "list", "--output", "yaml"], "--output: 'yaml'"),
        (["topic", "show", "missing"], "Topic 'missing'"),
        (["subscription", "show", "news", "missing"], "Subscription 'missing'"),
        (["subscription", "create", "missing", "a"], "refused to create"),
        (["rule", "show", "news", "all", "missing"], "Rule 'missing'"),
        (["rule", "create", "news", "all", "r"], "one filter"),
        (["rule", "create", "news", "all", "r", "--sql", "a = 1", "--every"], "one filter"),
        (["rule", "create", "news", "all", "r", "--sql", "a = = 1"], "refused to create"),
        (["rule", "create", "news", "all", "r", "--equals", "x=1"], "name 'x'"),
        (["rule", "create", "news", "all", "r", "--property", "x:=[1]"], "'x:=[1]'"),
        (["rule", "create", "news", "all", "r", "--property", "x"], "--property: 'x'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed: Any, servicebus: NamespaceFixture, arguments: list[str], words: str
) -> None:
    servicebus.queue("there")
    servicebus.subscription("news", "all")
    assert words in typed.refused(*arguments)


def test_who_may_not_manage_is_told_which_claim_is_missing(
    typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: and no key is shown."""
    weak = connection_string_with(servicebus, Claim.LISTEN)
    told = typed_with(weak).refused("queue", "list")
    assert "Manage" in told
    assert (parse_connection_string(weak).shared_access_key or "?") not in told


def test_a_namespace_can_be_named_in_four_ways(
    typed_pair: Any, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    primary, secondary = servicebus_pair.primary, servicebus_pair.secondary
    primary.queue("first")
    secondary.queue("second")
    text = tmp_path / "secondary.txt"
    text.write_text(f"{secondary.connection_string}\n")

    def listed(*options: str) -> list[str]:
        return [each["path"] for each in typed_pair.json("queue", "list", *options)]

    assert listed() == ["first"]
    assert listed("--secondary") == ["second"]
    other = "env:SERVICEBUS_SECONDARY_CONNECTION_STRING"
    assert listed("--connection-string", other) == ["second"]
    assert listed("--connection-string", f"file:{text}") == ["second"]
    assert listed("--connection-string", secondary.connection_string) == ["second"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Set SERVICEBUS_CONNECTION_STRING"),
        (["--secondary"], "Set SERVICEBUS_SECONDARY_CONNECTION_STRING"),
        (["--connection-string", "env:NOTHING"], "'NOTHING'"),
        (["--connection-string", "file:/no/such"], "No such file"),
        (["--connection-string", "nonsense"], "connection string"),
        (["--connection-string", "nonsense", "--secondary"], "--secondary and --connection-string"),
    ],
)
def test_a_namespace_that_is_not_named_is_said_so(
    typed_nowhere: Any, options: list[str], words: str
) -> None:
    assert words in typed_nowhere.refused("queue", "list", *options)


def test_a_dry_run_knows_that_a_name_is_taken(typed: Any, servicebus: NamespaceFixture) -> None:
    """Also by the other kind of entity."""
    servicebus.queue("orders")
    servicebus.topic("events")
    for noun, name in (("queue", "orders"), ("queue", "events"), ("topic", "orders")):
        assert f"{name!r}: the name is in use" in typed.refused(noun, "create", name, "--dry-run")
    told = typed.refused("queue", "create", "events")
    assert "'events' already exists" in told

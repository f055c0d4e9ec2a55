"""The official emulator's Config.json: all of it takes effect, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.emulator_config import (
    check_namespace_name,
    parse_config_json,
    parse_duration_ms,
)
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
)
from twinbus.errors import ConfigurationError

# The shape that the emulator's own documentation shows, with the comments that it allows.
OFFICIAL = """
{
  // one namespace is all that the emulator knows
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H", /* at most
                                                     an hour */
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": []
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def config(*queues: Any, **namespace: Any) -> str:
    values = {"Name": "ns", "Queues": list(queues)} | namespace
    return json.dumps({"UserConfig": {"Namespaces": [values]}})


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        parse_config_json(text)
    return str(refused.value)


def test_the_official_shape_is_read() -> None:
    """M10: a file that served the emulator serves here."""
    [(name, [queue], [], [])] = parse_config_json(OFFICIAL)
    assert name == "sbemulatorns"
    assert queue == QueueDescription(
        path="queue.1",
        default_ttl_ms=3_600_000,
        duplicate_detection_window_ms=20_000,
        lock_duration_ms=60_000,
        max_delivery_count=3,
    )


def test_what_is_left_out_has_our_defaults() -> None:
    [(_, queues, _, _)] = parse_config_json(config({"Name": "Plain"}))
    assert queues == [QueueDescription(path="Plain")]
    assert parse_config_json('{"UserConfig":{"Namespaces":[{"Name":"ns"}]}}') == [
        ("ns", [], [], [])
    ]


def test_several_namespaces_are_read() -> None:
    text = '{"UserConfig":{"Namespaces":[{"Name":"east"},{"Name":"west"}]}}'
    assert [entry.name for entry in parse_config_json(text)] == ["east", "west"]


def test_a_comment_sign_inside_a_text_stays() -> None:
    assert "http://x" in refusal(config({"Name": "http://x"}))
    assert "a/*b*/c" in refusal(config({"Name": "a/*b*/c"}))


OFFICIAL_TOPIC = {
    "Name": "topic.1",
    "Properties": {
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "RequiresDuplicateDetection": False,
    },
    "Subscriptions": [
        {
            "Name": "subscription.1",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DefaultMessageTimeToLive": "PT1H",
                "LockDuration": "PT1M",
                "MaxDeliveryCount": 3,
                "ForwardDeadLetteredMessagesTo": "",
                "ForwardTo": "",
                "RequiresSession": False,
            },
            "Rules": [
                {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {
                            "ContentType": "application/text",
                            "CorrelationId": "id1",
                            "Label": "subject1",
                            "MessageId": "msgid1",
                            "ReplyTo": "someQueue",
                            "ReplyToSessionId": "sessionId",
                            "SessionId": "session1",
                            "To": "xyz",
                            "Properties": {"prop1": "value1"},
                        },
                    },
                },
                {
                    "Name": "sql",
                    "Properties": {
                        "FilterType": "Sql",
                        "SqlFilter": {"SqlExpression": "sys.MessageId = '123' AND colour = 'red'"},
                        "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                    },
                },
            ],
        },
        {"Name": "Everything"},
    ],
}


def test_topics_with_their_subscriptions_and_rules_are_read() -> None:
    """M10: the emulator's topics take effect, rules and all."""
    [(_, _, [topic], subscriptions)] = parse_config_json(config(Topics=[OFFICIAL_TOPIC]))
    assert topic == TopicDescription(
        path="topic.1", default_ttl_ms=3_600_000, duplicate_detection_window_ms=20_000
    )
    (first, rules), (second, no_rules) = subscriptions
    assert first == SubscriptionDescription(
        path="topic.1/subscriptions/subscription.1", default_ttl_ms=3_600_000, max_delivery_count=3
    )
    assert second.name == "Everything"
    assert no_rules is None
    assert rules == [
        RuleDescription(
            "app-prop-filter-1",
            CorrelationFilter(
                content_type="application/text",
                correlation_id="id1",
                label="subject1",
                message_id="msgid1",
                reply_to="someQueue",
                reply_to_session_id="sessionId",
                session_id="session1",
                to="xyz",
                properties={"prop1": "value1"},
            ),
        ),
        RuleDescription(
            "sql",
            SqlFilter("sys.MessageId = '123' AND colour = 'red'"),
            SqlAction("SET sys.To = 'Entity'"),
        ),
    ]


def rule_with(**properties: Any) -> dict[str, Any]:
    rule = {"Name": "r", "Properties": properties}
    return {"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ({"Name": "t", "Properties": {"LockDuration": "PT1M"}}, "topic 't' of namespace 'ns'"),
        ({"Name": "t", "Colour": "red"}, "'Colour'"),
        ({"Name": "a/subscriptions/b"}, "path of a subscription"),
        ({}, "topic of namespace 'ns' has no Name"),
        ({"Name": "t", "Subscriptions": [{}]}, "subscription of topic 't'"),
        ({"Name": "t", "Subscriptions": [{"Name": "s"}, {"Name": "S"}]}, "'t/subscriptions/s'"),
        ({"Name": "t", "Subscriptions": [{"Name": "s" * 51}]}, "51 characters"),
        (rule_with(FilterType="Sql", SqlFilter={"SqlExpression": "a = "}), "rule 'r' of subscr"),
        (rule_with(FilterType="Sql", SqlFilter={"Expression": "a = 1"}), "'Expression'"),
        (rule_with(FilterType="Sql"), "FilterType 'Sql'"),
        (rule_with(FilterType="Sql", CorrelationFilter={"To": "x"}), "FilterType 'Sql'"),
        (rule_with(FilterType="Correlation", CorrelationFilter={"Colour": "x"}), "'Colour'"),
        (rule_with(FilterType="Correlation", CorrelationFilter={"To": 5}), "rule 'r'"),
        (rule_with(Action={"SqlExpression": "SET"}), "rule 'r' of subscription 's' of topic 't'"),
    ],
)
def test_a_bad_topic_is_refused_with_its_place(topic: dict[str, Any], said: str) -> None:
    """M10: one sentence that says where in the file to look."""
    assert said in refusal(config(Topics=[topic]))


def test_a_queue_and_a_topic_of_one_name_are_refused() -> None:
    """M5: a path belongs to one entity."""
    assert "'same'" in refusal(config({"Name": "same"}, Topics=[{"Name": "Same"}]))


@pytest.mark.parametrize(
    "properties",
    [
        {"LockDuration": "PT0.001S"},
        {"LockDuration": "PT5M1S"},
        {"LockDuration": 60},
        {"LockDuration": "P10675199DT2H48M5.4775807S"},
        {"DefaultMessageTimeToLive": "PT0S"},
        {"DefaultMessageTimeToLive": "1:00:00"},
        {"MaxDeliveryCount": 0},
        {"MaxDeliveryCount": "3"},
        {"RequiresSession": "false"},
        {"DuplicateDetectionHistoryTimeWindow": "soon"},
        {"lockDuration": "PT1M"},
        {"Colour": "red"},
    ],
)
def test_a_bad_property_is_refused_with_its_queue(properties: dict[str, Any]) -> None:
    """M2: case 90 reaches the user through the file as well."""
    assert "queue 'q' of namespace 'ns'" in refusal(config({"Name": "q", "Properties": properties}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"UserConfig": {}}',
        '{"UserConfig": {"Namespaces": []}}',
        '{"UserConfig": {"Namespaces": {}}}',
        '{"UserConfig": {"Namespaces": [5]}}',
        '{"UserConfig": {"Namespaces": [{}]}}',
        '{"UserConfig": {"Namespaces": [{"Name": "ns", "Name": "ns"}]}}',
        '{"UserConfig": {"Namespaces": [{"Name": "ns"}, {"Name": "NS"}]}}',
        '{"UserConfig": {"Namespaces": [{"Name": "ns"}]}, "Other": 1}',
        config({}),
        config({"Name": 5}),
        config({"Name": "q", "Extra": 1}),
        config({"Name": "q"}, {"Name": "Q"}),
        config({"Name": "q/$DeadLetterQueue"}),
        config(Queues=None),
        config(Topics=None),
        "[" * 100_000,
        '{"UserConfig": /* never closed',
    ],
)
def test_a_bad_file_is_refused_in_one_line(text: str) -> None:
    assert refusal(text).isprintable()


def test_an_error_names_the_line_although_there_are_comments() -> None:
    assert "Line 3 of the file" in refusal("/* one\ntwo */\n{,}")


@pytest.mark.parametrize("name", ["ns", "a1", "my-ns", "A" * 50])
def test_a_good_namespace_name_is_returned(name: str) -> None:
    assert check_namespace_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a", "1a", "a-", "-a", "a.b", "a_b", "a/b", "a" * 51, "caf\u00e9s", None, "ab\n"]
)
def test_a_bad_namespace_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigurationError, match="namespace name"):
        check_namespace_name(name)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1S", 1_000),
        ("PT5M", 300_000),
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT0.5S", 86_400_500),
        ("PT0.0019S", 1),
        ("PT90S", 90_000),
        ("P10675199DT2H48M5.4775807S", None),
        ("P99999999D", None),
    ],
)
def test_a_duration_is_read(text: str, duration_ms: int | None) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1Y", "P1M", "P1DT", "1H", "PT1", "PT-1S", "PT\u0661S", "PT1.S", "pt1s",
     "PT1S\n", "PT" + "9" * 100 + "S", 5, None],
)  # fmt: skip
def test_what_is_not_a_duration_is_refused(text: object) -> None:
    with pytest.raises(ConfigurationError, match="duration"):
        parse_duration_ms(text)


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_seconds_and_thousandths_are_exact(seconds: int, thousandths: int) -> None:
    assert parse_duration_ms(f"PT{seconds}.{thousandths:03d}S") == seconds * 1_000 + thousandths

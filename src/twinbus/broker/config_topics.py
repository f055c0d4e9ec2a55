"""The topics of a ``Config.json``, with their subscriptions and rules.

    Topics[]           Name, Properties, Subscriptions[]
      Subscriptions[]  Name, Properties, Rules[]
        Rules[]        Name, Properties (FilterType, CorrelationFilter | SqlFilter, Action)

A subscription without rules gets every message, as in the emulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from twinbus.broker.access.sas import Audience
from twinbus.broker.config_words import (
    Reader,
    as_list,
    as_object,
    duration_as,
    expect_distinct,
    expect_keys,
    forward_as,
    name_of,
    refusals_in,
    settings_of,
    shown,
    taken_as,
)
from twinbus.broker.entities.filters import (
    CorrelationFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.entities.forwarding import own_targets
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.errors import ConfigurationError

__all__ = ["SubscriptionConfig", "TopicsConfig", "parse_topics"]


class SubscriptionConfig(NamedTuple):
    """A subscription to have, and its rules if it is made."""

    description: SubscriptionDescription
    rules: list[RuleDescription] | None = None
    """None is the rule that lets every message in."""


class TopicsConfig(NamedTuple):
    """The topics of a namespace and all their subscriptions."""

    topics: list[TopicDescription]
    subscriptions: list[SubscriptionConfig]


def parse_topics(values: object, audience: Audience, place: str) -> TopicsConfig:
    """Read the Topics of a namespace; raises ConfigurationError with the place and a way out."""
    found = TopicsConfig([], [])
    for item in as_list(values, f"Topics of {place}"):
        _add_topic(as_object(item, f"a topic of {place}"), audience, place, found)
    return found


def _add_topic(
    values: Mapping[str, Any], audience: Audience, place: str, found: TopicsConfig
) -> None:
    name = name_of(values, f"a topic of {place}")
    place = f"topic {shown(name)} of {place}"
    expect_keys(values, {"Name", "Properties", "Subscriptions"}, place)
    with refusals_in(place):
        found.topics.append(TopicDescription(path=name, **settings_of(values, _TOPIC, place)))
    listed = as_list(values.get("Subscriptions", []), f"Subscriptions of {place}")
    subscriptions = [
        _subscription(as_object(item, f"a subscription of {place}"), audience, name, place)
        for item in listed
    ]
    paths = [each.description.path for each in subscriptions]
    expect_distinct(paths, f"subscriptions of {place}")
    found.subscriptions.extend(subscriptions)


def _subscription(
    values: Mapping[str, Any], audience: Audience, topic: str, place: str
) -> SubscriptionConfig:
    name = name_of(values, f"a subscription of {place}")
    place = f"subscription {shown(name)} of {place}"
    expect_keys(values, {"Name", "Properties", "Rules"}, place)
    with refusals_in(place):
        settings = own_targets(settings_of(values, _SUBSCRIPTION, place), audience)
        description = SubscriptionDescription(path=f"{topic}/subscriptions/{name}", **settings)
    listed = as_list(values.get("Rules", []), f"Rules of {place}")
    rules = [_rule(as_object(item, f"a rule of {place}"), place) for item in listed]
    expect_distinct([rule.key for rule in rules], f"rules of {place}")
    return SubscriptionConfig(description, rules or None)


def _rule(values: Mapping[str, Any], place: str) -> RuleDescription:
    name = name_of(values, f"a rule of {place}")
    place = f"rule {shown(name)} of {place}"
    expect_keys(values, {"Name", "Properties"}, place)
    properties = as_object(values.get("Properties", {}), f"Properties of {place}")
    expect_keys(properties, {"FilterType", *_FILTERS.values(), "Action"}, f"Properties of {place}")
    with refusals_in(place):
        return RuleDescription(name, _filter(properties, place), _action(properties, place))


# FilterType -> the key that holds the filter.
_FILTERS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}


def _filter(properties: Mapping[str, Any], place: str) -> Filter:
    kind = properties.get("FilterType")
    given = [key for key in _FILTERS.values() if key in properties]
    if kind is None and not given:
        return TrueFilter()
    wanted = _FILTERS.get(kind) if isinstance(kind, str) else None
    if wanted is None or given != [wanted]:
        raise ConfigurationError(
            f"the FilterType {shown(kind)} does not say what the filter is",
            hint="Use Correlation with a CorrelationFilter, or Sql with a SqlFilter",
        )
    values = as_object(properties[wanted], f"{wanted} of {place}")
    if kind == "Sql":
        return SqlFilter(_expression(values, f"SqlFilter of {place}"))
    expect_keys(values, set(_CORRELATION), f"CorrelationFilter of {place}")
    return CorrelationFilter(**{_CORRELATION[key]: value for key, value in values.items()})


def _action(properties: Mapping[str, Any], place: str) -> SqlAction | None:
    if properties.get("Action") is None:
        return None
    place = f"Action of {place}"
    return SqlAction(_expression(as_object(properties["Action"], place), place))


def _expression(values: Mapping[str, Any], place: str) -> str:
    expect_keys(values, {"SqlExpression"}, place)
    expression = values.get("SqlExpression")
    if not isinstance(expression, str):
        raise ConfigurationError(f"{place} has no SqlExpression")
    return expression


_TOPIC: Final[dict[str, Reader]] = {
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "DuplicateDetectionHistoryTimeWindow": duration_as("duplicate_detection_window_ms"),
    "RequiresDuplicateDetection": taken_as("requires_duplicate_detection"),
}
_SUBSCRIPTION: Final[dict[str, Reader]] = {
    "DeadLetteringOnMessageExpiration": taken_as("dead_lettering_on_expiration"),
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "ForwardDeadLetteredMessagesTo": forward_as("forward_dead_lettered_messages_to"),
    "ForwardTo": forward_as("forward_to"),
    "LockDuration": duration_as("lock_duration_ms"),
    "MaxDeliveryCount": taken_as("max_delivery_count"),
    "RequiresSession": taken_as("requires_session"),
}
_CORRELATION: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
    "Properties": "properties",
}

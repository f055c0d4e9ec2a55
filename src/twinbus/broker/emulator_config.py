"""The ``Config.json`` of the official Service Bus emulator, read into descriptions.

    UserConfig
      Namespaces[]           Name, Queues[], Topics[]
        Queues[]             Name, Properties
        Topics[]             Name, Properties, Subscriptions[]
          Subscriptions[]    Name, Properties, Rules[]
            Rules[]          Name, Properties (FilterType, CorrelationFilter | SqlFilter, Action)
      Logging                ignored: this broker has its own log settings

A subscription without rules gets every message, as in the emulator.

Rule 1: everything in the file takes effect or is refused; nothing is skipped silently. An error
        names the place in the file.
Rule 2: what the file leaves out has our defaults, not the emulator's: without a time to live a
        message does not expire after an hour.
Rule 3: the limits are ours too. A file that the emulator refuses for its size is accepted here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from twinbus.broker.access.sas import LOOPBACK_NAMES, Audience
from twinbus.broker.engine.descriptions import (
    DURATION_MS_MAX,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.forwarding import own_targets
from twinbus.errors import ConfigurationError

__all__ = [
    "DURATION_LENGTH_MAX",
    "NamespaceConfig",
    "Reader",
    "SubscriptionConfig",
    "TopicsConfig",
    "as_list",
    "as_object",
    "audience_in",
    "check_namespace_name",
    "duration_as",
    "errors_in",
    "expect_distinct",
    "expect_keys",
    "forward_as",
    "parse_config_json",
    "parse_duration_ms",
    "parse_topics",
    "quote",
    "read_name",
    "read_settings",
    "value_as",
]

DURATION_LENGTH_MAX: Final = 64

_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+)(?:\.(?P<fraction>[0-9]+))?S)?)?",
    re.ASCII,
)


def parse_duration_ms(text: object) -> int | None:
    """An ISO 8601 duration in milliseconds; None for .NET's longest, which means never.

    Years and months are refused: they have no fixed length.
    """
    match = None
    if isinstance(text, str) and len(text) <= DURATION_LENGTH_MAX and text != "P":
        match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"Invalid ISO 8601 duration: {quote(text)}",
            hint="Use days, hours, minutes and seconds, for example PT30S, PT5M or P1DT12H",
        )
    days, hours, minutes, seconds = (
        int(match[unit] or 0) for unit in ("days", "hours", "minutes", "seconds")
    )
    fraction_ms = int((match["fraction"] or "0")[:3].ljust(3, "0"))
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
    return None if total_ms >= DURATION_MS_MAX else total_ms


def value_as(name: str) -> Callable[[Any], dict[str, Any]]:
    """The value unchanged: the description checks its type and range."""
    return lambda value: {name: value}


def duration_as(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: parse_duration_ms(value)}


def forward_as(name: str) -> Callable[[Any], dict[str, Any]]:
    """The emulator writes "" for no forwarding."""
    return lambda value: {name: value or None}


def expect_keys(values: Mapping[str, Any], known: set[str], place: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigurationError(
                f"Unknown key {quote(key)} in {place}",
                hint=f"Use one of: {', '.join(sorted(known))}",
            )


def expect_distinct(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(
                f"Duplicate name {name!r} among the {what}", hint="Rename or remove one of them"
            )
        seen.add(name)


def as_object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{place} is missing or not a JSON object", hint="Write it as { … }"
        )
    return value


def as_list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(
            f"{place} is missing or not a JSON array", hint="Write it as [ … ]"
        )
    return value


def quote(value: object) -> str:
    return f"{value!a:.80}"


Reader = Callable[[Any], dict[str, Any]]
"""Turns a value in the file into settings of a description."""


def audience_in(namespace: str) -> Audience:
    """The host names that can stand for the namespace in a file: its name, and this machine."""
    name = namespace.lower()
    return Audience(LOOPBACK_NAMES | {name, f"{name}.servicebus.windows.net"}, 0)


def read_settings(values: Mapping[str, Any], readers: Mapping[str, Reader], place: str) -> Any:
    """The settings of a description, from the Properties of an entity."""
    properties = as_object(values.get("Properties", {}), f"Properties of {place}")
    expect_keys(properties, set(readers), f"Properties of {place}")
    settings: dict[str, Any] = {}
    for written, value in properties.items():
        settings |= readers[written](value)
    return settings


def read_name(values: Mapping[str, Any], what: str) -> str:
    name = values.get("Name")
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} has no Name", hint="Add a Name")
    return name


@contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Adds the place in the file to errors about a value."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"In {place}: {error.sentence}", hint=error.hint) from error


class SubscriptionConfig(NamedTuple):
    """A subscription, and the rules it gets when it is created."""

    description: SubscriptionDescription
    rules: list[RuleDescription] | None = None
    """None is the default rule, which every message matches."""


class TopicsConfig(NamedTuple):
    """The topics of a namespace and all their subscriptions."""

    topics: list[TopicDescription]
    subscriptions: list[SubscriptionConfig]


def parse_topics(values: object, audience: Audience, place: str) -> TopicsConfig:
    """Read the Topics of a namespace; raises ConfigurationError with the place and a hint."""
    found = TopicsConfig([], [])
    for item in as_list(values, f"Topics of {place}"):
        _add_topic(as_object(item, f"a topic of {place}"), audience, place, found)
    return found


def _add_topic(
    values: Mapping[str, Any], audience: Audience, place: str, found: TopicsConfig
) -> None:
    name = read_name(values, f"a topic of {place}")
    place = f"topic {quote(name)} of {place}"
    expect_keys(values, {"Name", "Properties", "Subscriptions"}, place)
    with errors_in(place):
        found.topics.append(TopicDescription(path=name, **read_settings(values, _TOPIC, place)))
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
    name = read_name(values, f"a subscription of {place}")
    place = f"subscription {quote(name)} of {place}"
    expect_keys(values, {"Name", "Properties", "Rules"}, place)
    with errors_in(place):
        settings = own_targets(read_settings(values, _SUBSCRIPTION, place), audience)
        description = SubscriptionDescription(path=f"{topic}/subscriptions/{name}", **settings)
    listed = as_list(values.get("Rules", []), f"Rules of {place}")
    rules = [_rule(as_object(item, f"a rule of {place}"), place) for item in listed]
    expect_distinct([rule.key for rule in rules], f"rules of {place}")
    return SubscriptionConfig(description, rules or None)


def _rule(values: Mapping[str, Any], place: str) -> RuleDescription:
    name = read_name(values, f"a rule of {place}")
    place = f"rule {quote(name)} of {place}"
    expect_keys(values, {"Name", "Properties"}, place)
    properties = as_object(values.get("Properties", {}), f"Properties of {place}")
    expect_keys(properties, {"FilterType", *_FILTERS.values(), "Action"}, f"Properties of {place}")
    with errors_in(place):
        return RuleDescription(name, _filter(properties, place), _action(properties, place))


# FilterType -> the key of the filter.
_FILTERS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}


def _filter(properties: Mapping[str, Any], place: str) -> Filter:
    kind = properties.get("FilterType")
    given = [key for key in _FILTERS.values() if key in properties]
    if kind is None and not given:
        return TrueFilter()
    wanted = _FILTERS.get(kind) if isinstance(kind, str) else None
    if wanted is None or given != [wanted]:
        raise ConfigurationError(
            f"FilterType {quote(kind)} does not match the filter of the rule",
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
        raise ConfigurationError(f"{place} has no SqlExpression", hint="Add a SqlExpression")
    return expression


_TOPIC: Final[dict[str, Reader]] = {
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "DuplicateDetectionHistoryTimeWindow": duration_as("duplicate_detection_window_ms"),
    "RequiresDuplicateDetection": value_as("requires_duplicate_detection"),
}
_SUBSCRIPTION: Final[dict[str, Reader]] = {
    "DeadLetteringOnMessageExpiration": value_as("dead_lettering_on_expiration"),
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "ForwardDeadLetteredMessagesTo": forward_as("forward_dead_lettered_messages_to"),
    "ForwardTo": forward_as("forward_to"),
    "LockDuration": duration_as("lock_duration_ms"),
    "MaxDeliveryCount": value_as("max_delivery_count"),
    "RequiresSession": value_as("requires_session"),
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


# 10,000 queues with all their properties written out come to about 5 MB.
CONFIG_LENGTH_MAX: Final = 16 * 1024 * 1024

_NAMESPACE_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,48}[a-zA-Z0-9]", re.ASCII)
# A string, or a comment. Strings come first, so that "http://x" keeps its slashes.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


class NamespaceConfig(NamedTuple):
    """One namespace and its entities."""

    name: str
    queues: list[QueueDescription]
    topics: list[TopicDescription]
    subscriptions: list[SubscriptionConfig]


def parse_config_json(text: str) -> list[NamespaceConfig]:
    """Read a whole file; raises ConfigurationError with the place and a hint."""
    document = _load(text)
    expect_keys(document, {"UserConfig"}, "the file")
    user_config = as_object(document.get("UserConfig"), "UserConfig")
    expect_keys(user_config, {"Namespaces", "Logging"}, "UserConfig")
    listed = as_list(user_config.get("Namespaces"), "UserConfig.Namespaces")
    namespaces = [_namespace(as_object(item, "a namespace")) for item in listed]
    if not namespaces:
        raise ConfigurationError(
            "UserConfig.Namespaces is empty", hint="Add at least one namespace"
        )
    expect_distinct([namespace.name.lower() for namespace in namespaces], "namespaces")
    return namespaces


def check_namespace_name(name: object) -> str:
    """Return the name if it is valid for a namespace; raises ConfigurationError otherwise."""
    if not isinstance(name, str) or not _NAMESPACE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"Invalid namespace name: {quote(name)}",
            hint="Use 2 to 50 letters, digits and '-'; start with a letter and do not end with '-'",
        )
    return name


def _load(text: str) -> dict[str, Any]:
    if len(text) > CONFIG_LENGTH_MAX:
        raise ConfigurationError(
            f"The file has {len(text)} characters, the maximum is {CONFIG_LENGTH_MAX}",
            hint="Split the file",
        )
    try:
        document = json.loads(
            _STRING_OR_COMMENT.sub(_without_comment, text), object_pairs_hook=_reject_duplicate_keys
        )
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"Line {error.lineno} of the file is not valid JSON: {error.msg}",
            hint="Correct the line; only comments may differ from JSON",
        ) from error
    except RecursionError:
        raise ConfigurationError(
            "The JSON of the file is nested too deeply", hint="Check its brackets"
        ) from None
    return as_object(document, "the file")


def _without_comment(match: re.Match[str]) -> str:
    """Keep strings; of a comment keep the line feeds, so that errors name the right line."""
    text = match[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(
            f"Key {quote(double)} occurs twice in one object of the file",
            hint="Remove one of them",
        )
    return values


def _namespace(values: Mapping[str, Any]) -> NamespaceConfig:
    name = check_namespace_name(values.get("Name"))
    place = f"namespace {name!r}"
    expect_keys(values, {"Name", "Queues", "Topics"}, place)
    listed = as_list(values.get("Queues", []), f"Queues of {place}")
    audience = audience_in(name)
    queues = [_queue(as_object(item, f"a queue of {place}"), audience, place) for item in listed]
    topics = parse_topics(values.get("Topics", []), audience, place)
    paths = [each.path for each in [*queues, *topics.topics]]
    expect_distinct(paths, f"queues or topics in {place}")
    return NamespaceConfig(name, queues, *topics)


def _queue(values: Mapping[str, Any], audience: Audience, place: str) -> QueueDescription:
    name = read_name(values, f"a queue of {place}")
    place = f"queue {quote(name)} of {place}"
    expect_keys(values, {"Name", "Properties"}, place)
    with errors_in(place):
        settings = own_targets(read_settings(values, _PROPERTIES, place), audience)
        return QueueDescription(path=name, **settings)


_PROPERTIES: Final[dict[str, Reader]] = {
    "DeadLetteringOnMessageExpiration": value_as("dead_lettering_on_expiration"),
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "DuplicateDetectionHistoryTimeWindow": duration_as("duplicate_detection_window_ms"),
    "ForwardDeadLetteredMessagesTo": forward_as("forward_dead_lettered_messages_to"),
    "ForwardTo": forward_as("forward_to"),
    "LockDuration": duration_as("lock_duration_ms"),
    "MaxDeliveryCount": value_as("max_delivery_count"),
    "RequiresDuplicateDetection": value_as("requires_duplicate_detection"),
    "RequiresSession": value_as("requires_session"),
}

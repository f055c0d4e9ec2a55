"""The ``Config.json`` of the official Service Bus emulator, read into descriptions.

    UserConfig
      Namespaces[]  Name, Queues[] (Name, Properties), Topics[] (config_topics.py)
      Logging       read over: this broker logs its own way

Rule 1: everything in the file takes effect or is refused; nothing is skipped in silence.
Rule 2: what the file leaves out has our defaults, not the emulator's: a message does not
        expire after an hour because nobody said otherwise.
Rule 3: the limits are ours too. A file that the emulator refuses for its size is fine here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from twinbus.broker.access.sas import Audience
from twinbus.broker.config_topics import SubscriptionConfig, parse_topics
from twinbus.broker.config_words import (
    Reader,
    as_list,
    as_object,
    audience_in,
    duration_as,
    expect_distinct,
    expect_keys,
    forward_as,
    name_of,
    parse_duration_ms,
    refusals_in,
    settings_of,
    shown,
    taken_as,
)
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.forwarding import own_targets
from twinbus.broker.entities.topic_description import TopicDescription
from twinbus.errors import ConfigurationError

__all__ = [
    "NamespaceConfig",
    "check_namespace_name",
    "parse_config_json",
    "parse_duration_ms",
]

# 10,000 queues with all their properties written out come to about 5 MB.
CONFIG_LENGTH_MAX: Final = 16 * 1024 * 1024

_NAMESPACE_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,48}[a-zA-Z0-9]", re.ASCII)
# A string, or a comment. Strings come first, so that "http://x" keeps its slashes.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


class NamespaceConfig(NamedTuple):
    """One namespace and the entities that it starts with."""

    name: str
    queues: list[QueueDescription]
    topics: list[TopicDescription]
    subscriptions: list[SubscriptionConfig]


def parse_config_json(text: str) -> list[NamespaceConfig]:
    """Read a whole file; raises ConfigurationError with the place and a way out."""
    document = _load(text)
    expect_keys(document, {"UserConfig"}, "the file")
    user_config = as_object(document.get("UserConfig"), "UserConfig")
    expect_keys(user_config, {"Namespaces", "Logging"}, "UserConfig")
    listed = as_list(user_config.get("Namespaces"), "UserConfig.Namespaces")
    namespaces = [_namespace(as_object(item, "a namespace")) for item in listed]
    if not namespaces:
        raise ConfigurationError("UserConfig.Namespaces is empty", hint="Name one namespace")
    expect_distinct([namespace.name.lower() for namespace in namespaces], "namespaces")
    return namespaces


def check_namespace_name(name: object) -> str:
    """The name, if a namespace may have it; raises ConfigurationError otherwise."""
    if not isinstance(name, str) or not _NAMESPACE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{shown(name)} is no name for a namespace",
            hint="Use 2 to 50 letters, digits and '-', beginning with a letter and not ending "
            "with '-'",
        )
    return name


def _load(text: str) -> dict[str, Any]:
    if len(text) > CONFIG_LENGTH_MAX:
        raise ConfigurationError(
            f"the file has more than {CONFIG_LENGTH_MAX} characters", hint="Split it in two"
        )
    try:
        document = json.loads(
            _STRING_OR_COMMENT.sub(_without_comment, text), object_pairs_hook=_without_doubles
        )
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"line {error.lineno} of the file is not JSON: {error.msg}",
            hint="Comments are allowed, anything else is as in JSON",
        ) from error
    except RecursionError:
        raise ConfigurationError(
            "the file is nested too deeply", hint="Check its brackets"
        ) from None
    return as_object(document, "the file")


def _without_comment(match: re.Match[str]) -> str:
    """Keep strings; of a comment keep the line feeds, so that errors name the right line."""
    text = match[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(
            f"{shown(double)} stands twice in one object of the file", hint="Leave one of them out"
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
    name = name_of(values, f"a queue of {place}")
    place = f"queue {shown(name)} of {place}"
    expect_keys(values, {"Name", "Properties"}, place)
    with refusals_in(place):
        settings = own_targets(settings_of(values, _PROPERTIES, place), audience)
        return QueueDescription(path=name, **settings)


_PROPERTIES: Final[dict[str, Reader]] = {
    "DeadLetteringOnMessageExpiration": taken_as("dead_lettering_on_expiration"),
    "DefaultMessageTimeToLive": duration_as("default_ttl_ms"),
    "DuplicateDetectionHistoryTimeWindow": duration_as("duplicate_detection_window_ms"),
    "ForwardDeadLetteredMessagesTo": forward_as("forward_dead_lettered_messages_to"),
    "ForwardTo": forward_as("forward_to"),
    "LockDuration": duration_as("lock_duration_ms"),
    "MaxDeliveryCount": taken_as("max_delivery_count"),
    "RequiresDuplicateDetection": taken_as("requires_duplicate_detection"),
    "RequiresSession": taken_as("requires_session"),
}

"""The ``Config.json`` of the official Service Bus emulator, read into queue descriptions.

    UserConfig
      Namespaces[]  Name, Queues[] (Name, Properties), Topics[]
      Logging       read over: this broker logs its own way

Rule 1: everything in the file takes effect or is refused; nothing is skipped in silence.
Rule 2: what the file leaves out has our defaults, not the emulator's: a message does not
        expire after an hour because nobody said otherwise.
Rule 3: the limits are ours too. A file that the emulator refuses for its size is fine here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from twinbus.broker.entities.description import DURATION_MS_MAX, QueueDescription
from twinbus.errors import ConfigurationError

__all__ = [
    "NamespaceConfig",
    "check_namespace_name",
    "parse_config_json",
    "parse_duration_ms",
]

# 10,000 queues with all their properties written out come to about 5 MB.
CONFIG_LENGTH_MAX: Final = 16 * 1024 * 1024
DURATION_LENGTH_MAX: Final = 64

_NAMESPACE_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,48}[a-zA-Z0-9]", re.ASCII)
# A string, or a comment. Strings come first, so that "http://x" keeps its slashes.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+)(?:\.(?P<fraction>[0-9]+))?S)?)?",
    re.ASCII,
)


class NamespaceConfig(NamedTuple):
    """One namespace and the queues that it starts with."""

    name: str
    queues: list[QueueDescription]


def parse_config_json(text: str) -> list[NamespaceConfig]:
    """Read a whole file; raises ConfigurationError with the place and a way out."""
    document = _load(text)
    _expect_keys(document, {"UserConfig"}, "the file")
    user_config = _object(document.get("UserConfig"), "UserConfig")
    _expect_keys(user_config, {"Namespaces", "Logging"}, "UserConfig")
    listed = _list(user_config.get("Namespaces"), "UserConfig.Namespaces")
    namespaces = [_namespace(_object(item, "a namespace")) for item in listed]
    if not namespaces:
        raise ConfigurationError("UserConfig.Namespaces is empty", hint="Name one namespace")
    _expect_distinct([namespace.name.lower() for namespace in namespaces], "namespaces")
    return namespaces


def check_namespace_name(name: object) -> str:
    """The name, if a namespace may have it; raises ConfigurationError otherwise."""
    if not isinstance(name, str) or not _NAMESPACE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{_shown(name)} is no name for a namespace",
            hint="Use 2 to 50 letters, digits and '-', beginning with a letter and not ending "
            "with '-'",
        )
    return name


def parse_duration_ms(text: object) -> int | None:
    """An ISO-8601 duration in milliseconds; None for .NET's longest, which means never.

    Years and months are refused: nobody knows how many milliseconds they have.
    """
    match = None
    if isinstance(text, str) and len(text) <= DURATION_LENGTH_MAX and text != "P":
        match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{_shown(text)} is not a duration of days, hours, minutes and seconds",
            hint="Write it like PT30S, PT5M or P1DT12H",
        )
    days, hours, minutes, seconds = (
        int(match[unit] or 0) for unit in ("days", "hours", "minutes", "seconds")
    )
    fraction_ms = int((match["fraction"] or "0")[:3].ljust(3, "0"))
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
    return None if total_ms >= DURATION_MS_MAX else total_ms


def _load(text: str) -> dict[str, Any]:
    if len(text) > CONFIG_LENGTH_MAX:
        raise ConfigurationError(f"the file has more than {CONFIG_LENGTH_MAX} characters")
    try:
        document = json.loads(
            _STRING_OR_COMMENT.sub(_without_comment, text), object_pairs_hook=_without_doubles
        )
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"line {error.lineno} of the file is not JSON: {error.msg}"
        ) from error
    except RecursionError:
        raise ConfigurationError("the file is nested too deeply") from None
    return _object(document, "the file")


def _without_comment(match: re.Match[str]) -> str:
    """Keep strings; of a comment keep the line feeds, so that errors name the right line."""
    text = match[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"{_shown(double)} stands twice in one object of the file")
    return values


def _namespace(values: Mapping[str, Any]) -> NamespaceConfig:
    name = check_namespace_name(values.get("Name"))
    place = f"namespace {name!r}"
    _expect_keys(values, {"Name", "Queues", "Topics"}, place)
    topics = _list(values.get("Topics", []), f"Topics of {place}")
    if topics:
        names = ", ".join(_shown(_name_of(topic)) for topic in topics[:5])
        raise ConfigurationError(
            f"topics are not supported yet, and {place} has {len(topics)}: {names}",
            hint="Remove them from the file to start with the queues alone",
        )
    listed = _list(values.get("Queues", []), f"Queues of {place}")
    queues = [_queue(_object(item, f"a queue of {place}"), place) for item in listed]
    _expect_distinct([queue.path for queue in queues], f"queues in {place}")
    return NamespaceConfig(name, queues)


def _queue(values: Mapping[str, Any], place: str) -> QueueDescription:
    name = values.get("Name")
    if not isinstance(name, str):
        raise ConfigurationError(f"a queue of {place} has no Name")
    place = f"queue {_shown(name)} of {place}"
    _expect_keys(values, {"Name", "Properties"}, place)
    properties = _object(values.get("Properties", {}), f"Properties of {place}")
    _expect_keys(properties, set(_PROPERTIES), f"Properties of {place}")
    try:
        settings: dict[str, Any] = {}
        for written, value in properties.items():
            settings |= _PROPERTIES[written](value)
        return QueueDescription(path=name, **settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"in {place}: {error.sentence}", hint=error.hint) from error


def _as(name: str) -> Callable[[Any], dict[str, Any]]:
    """Taken as it is: the description checks kind and range."""
    return lambda value: {name: value}


def _duration_as(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: parse_duration_ms(value)}


def _forward_as(name: str) -> Callable[[Any], dict[str, Any]]:
    """The emulator writes "" for nowhere."""
    return lambda value: {name: value or None}


_PROPERTIES: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "DeadLetteringOnMessageExpiration": _as("dead_lettering_on_expiration"),
    "DefaultMessageTimeToLive": _duration_as("default_ttl_ms"),
    "DuplicateDetectionHistoryTimeWindow": _duration_as("duplicate_detection_window_ms"),
    "ForwardDeadLetteredMessagesTo": _forward_as("forward_dead_lettered_messages_to"),
    "ForwardTo": _forward_as("forward_to"),
    "LockDuration": _duration_as("lock_duration_ms"),
    "MaxDeliveryCount": _as("max_delivery_count"),
    "RequiresDuplicateDetection": _as("requires_duplicate_detection"),
    "RequiresSession": _as("requires_session"),
}


def _expect_keys(values: Mapping[str, Any], known: set[str], place: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigurationError(
                f"{place} has a key {_shown(key)}, which has no meaning there",
                hint=f"Known are {', '.join(sorted(known))}",
            )


def _expect_distinct(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"there are two {what} named {name!r}")
        seen.add(name)


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{place} is missing or not an object")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{place} is missing or not a list")
    return value


def _name_of(value: Any) -> object:
    return value.get("Name") if isinstance(value, dict) else value


def _shown(value: object) -> str:
    return f"{value!a:.80}"

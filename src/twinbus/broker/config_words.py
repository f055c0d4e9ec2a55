"""Words that the parts of ``Config.json`` have in common: objects, lists, durations.

Every refusal says where in the file something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from twinbus.broker.access.sas import LOOPBACK_NAMES, Audience
from twinbus.broker.entities.description import DURATION_MS_MAX
from twinbus.errors import ConfigurationError

DURATION_LENGTH_MAX: Final = 64

_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+)(?:\.(?P<fraction>[0-9]+))?S)?)?",
    re.ASCII,
)


def parse_duration_ms(text: object) -> int | None:
    """An ISO-8601 duration in milliseconds; None for .NET's longest, which means never.

    Years and months are refused: nobody knows how many milliseconds they have.
    """
    match = None
    if isinstance(text, str) and len(text) <= DURATION_LENGTH_MAX and text != "P":
        match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{shown(text)} is not a duration of days, hours, minutes and seconds",
            hint="Write it like PT30S, PT5M or P1DT12H",
        )
    days, hours, minutes, seconds = (
        int(match[unit] or 0) for unit in ("days", "hours", "minutes", "seconds")
    )
    fraction_ms = int((match["fraction"] or "0")[:3].ljust(3, "0"))
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
    return None if total_ms >= DURATION_MS_MAX else total_ms


def taken_as(name: str) -> Callable[[Any], dict[str, Any]]:
    """Taken as it is: the description checks kind and range."""
    return lambda value: {name: value}


def duration_as(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: parse_duration_ms(value)}


def forward_as(name: str) -> Callable[[Any], dict[str, Any]]:
    """The emulator writes "" for nowhere."""
    return lambda value: {name: value or None}


def expect_keys(values: Mapping[str, Any], known: set[str], place: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigurationError(
                f"{place} has a key {shown(key)}, which has no meaning there",
                hint=f"Known are {', '.join(sorted(known))}",
            )


def expect_distinct(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(
                f"there are two {what} named {name!r}", hint="Rename or remove one"
            )
        seen.add(name)


def as_object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{place} is missing or not an object", hint="Write { … } there")
    return value


def as_list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{place} is missing or not a list", hint="Write [ … ] there")
    return value


def shown(value: object) -> str:
    return f"{value!a:.80}"


Reader = Callable[[Any], dict[str, Any]]
"""From a value in the file to settings of a description."""


def audience_in(namespace: str) -> Audience:
    """The hosts by which a file can mean its namespace: its name, and this machine."""
    name = namespace.lower()
    return Audience(LOOPBACK_NAMES | {name, f"{name}.servicebus.windows.net"}, 0)


def settings_of(values: Mapping[str, Any], readers: Mapping[str, Reader], place: str) -> Any:
    """The settings that the Properties of an entity stand for."""
    properties = as_object(values.get("Properties", {}), f"Properties of {place}")
    expect_keys(properties, set(readers), f"Properties of {place}")
    settings: dict[str, Any] = {}
    for written, value in properties.items():
        settings |= readers[written](value)
    return settings


def name_of(values: Mapping[str, Any], what: str) -> str:
    name = values.get("Name")
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} has no Name", hint="Give it one")
    return name


@contextmanager
def refusals_in(place: str) -> Iterator[None]:
    """A refusal of a value says where in the file it stands."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"in {place}: {error.sentence}", hint=error.hint) from error

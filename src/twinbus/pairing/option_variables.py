"""The options of a pair in the environment: TWINBUS_PAIR_ and the option's name in upper case.

    TWINBUS_PAIR_FAILOVER_INTERVAL=30s    TWINBUS_PAIR_REQUIRE_SECONDARY=yes
    TWINBUS_PAIR_ALLOWED_DESTINATIONS=orders*,bills

Rule 1: only this module contains these names; it receives the environment as a mapping.
Rule 2: a variable that is not set is not in the result, so that the default of the caller applies.
Rule 3: options that are objects (a classifier, a callback) can be set only in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError
from twinbus.pairing.syphon_hosting import SyphonHosting

__all__ = ["PAIR_OPTIONS", "options_in", "variable_of"]

_PREFIX: Final = "TWINBUS_PAIR_"
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


def _is_on(text: str) -> bool:
    word = text.lower()
    if word not in _YES | _NO:
        raise ConfigurationError(f"Invalid switch: {text!r:.40}", hint="Use yes or no")
    return word in _YES


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ConfigurationError(f"Invalid number: {text!r:.40}", hint="Use a whole number")
    return int(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _hosting(text: str) -> SyphonHosting:
    if text not in ("spark", "local"):
        raise ConfigurationError(f"Invalid engine: {text!r:.40}", hint="Use spark or local")
    return SyphonHosting("local" if text == "local" else "spark")


PAIR_OPTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "backlog_queue_count": _whole_number,
    "failover_interval": seconds,
    "ping_primary_interval": seconds,
    "ping_mode": str,
    "namespace_name": str,
    "enable_syphon": _is_on,
    "syphon": _hosting,
    "journal": str,
    "journal_keep_days": _whole_number,
    "control": str,
    "allow_lossy_backlog": _is_on,
    "require_secondary": _is_on,
    "allowed_destinations": _listed,
    "accept_owners": _listed,
    "ttl_policy": str,
    # Those of a drop-in client, which makes its own factories.
    "secondary_driver": str,
    "metering": str,
    "audit": _is_on,
    "keep_days": _whole_number,
    "operation_timeout": seconds,
}
"""Each with the function that parses its text; the value is checked where it is used."""


def options_in(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, Any]:
    """The options in ``names`` that the environment sets; an empty variable sets nothing."""
    found: dict[str, Any] = {}
    for name, read in PAIR_OPTIONS.items():
        text = environment.get(variable_of(name), "").strip()
        if name in names and text:
            try:
                found[name] = read(text)
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"Invalid value for {variable_of(name)}: {text!r:.40}", hint=error.hint
                ) from None
    return found


def variable_of(name: str) -> str:
    """The environment variable of an option."""
    return _PREFIX + name.upper()

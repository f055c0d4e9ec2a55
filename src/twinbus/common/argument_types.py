"""Type checks of arguments.

Rule 1: an argument of the wrong type is refused at once, with an error that contains its name, the
        allowed types and its type. Otherwise it would cause an AttributeError elsewhere, much
        later.
Rule 2: the value is never repeated: a text may be a connection string.
"""

from __future__ import annotations

import math

from twinbus.errors import ConfigurationError

__all__ = ["check_type", "is_number", "type_shown"]

# The public package from which applications import names that an internal package defines.
_PUBLIC_PACKAGES = {
    "twinbus.sync": "twinbus",
    "twinbus.cost": "twinbus",
    "twinbus.encoding": "twinbus",
    "twinbus.failover": "twinbus",
    "twinbus.mover": "twinbus.aio",
    "twinbus.pairing": "twinbus.aio",
}


def check_type(
    name: str, value: object, *kinds: type, is_optional: bool = False, hint: str
) -> None:
    """Raise ConfigurationError unless the value has one of these types."""
    if isinstance(value, kinds) or (is_optional and value is None):
        return
    wanted = " or ".join(map(_type_shown, kinds)) + (" or None" if is_optional else "")
    raise ConfigurationError(f"{name} must be {wanted}, got {type_shown(value)}", hint=hint)


def is_number(value: object) -> bool:
    """Whether the value is a number; booleans and NaN are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)


def type_shown(value: object) -> str:
    """The type of a value as an application names it."""
    return "None" if value is None else _type_shown(type(value))


def _type_shown(kind: type) -> str:
    package = ".".join(kind.__module__.split(".")[:2])
    if not package.startswith("twinbus"):
        return "an object" if kind is object else f"{_article(kind.__name__)} {kind.__name__}"
    name = f"{_PUBLIC_PACKAGES.get(package, package)}.{kind.__name__}"
    return f"a {name}"


def _article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"

"""The connection strings and host names of the two namespaces, from the environment.

    SERVICEBUS_CONNECTION_STRING (or _STR)     SERVICEBUS_SECONDARY_CONNECTION_STRING (or _STR)
    SERVICEBUS_FULLY_QUALIFIED_NAMESPACE       SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE

SECONDARY may also be the last word: SERVICEBUS_CONNECTION_STRING_SECONDARY. If none of these is
set, the same names with TWINBUS_ instead of SERVICEBUS_ are read.

Rule 1: only this module contains these names; it receives the environment as a mapping.
Rule 2: two spellings with different values are an error, because the choice would be arbitrary.
Rule 3: a connection string has precedence over a host name, because it contains a credential.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from twinbus.errors import ConfigurationError

__all__ = [
    "ROLES",
    "NamespaceReference",
    "Role",
    "read_namespace",
    "require_namespace",
    "variables_of",
]

Role = Literal["primary", "secondary"]
ROLES: Final[tuple[Role, Role]] = ("primary", "secondary")

# The first is used by the samples of the Azure SDK; the second is read only without it.
_PREFIXES: Final = ("SERVICEBUS_", "TWINBUS_")
_CONNECTION_STRINGS: Final = ("CONNECTION_STRING", "CONNECTION_STR")
_HOST: Final = "FULLY_QUALIFIED_NAMESPACE"


@dataclass(frozen=True, slots=True)
class NamespaceReference:
    """A namespace by its connection string or its host name; exactly one of them is set."""

    source: str
    """The name of the variable or the option that it comes from."""
    connection_string: str | None = field(default=None, repr=False)
    fully_qualified_namespace: str | None = None


def read_namespace(environment: Mapping[str, str], role: Role) -> NamespaceReference | None:
    """One of the two namespaces, as set in the environment; None if it is not set."""
    for prefix in _PREFIXES:
        found = _one_of(environment, _spellings(prefix, _CONNECTION_STRINGS, role))
        if found is not None:
            return NamespaceReference(found, connection_string=environment[found])
        found = _one_of(environment, _spellings(prefix, (_HOST,), role))
        if found is not None:
            return NamespaceReference(found, fully_qualified_namespace=environment[found])
    return None


def require_namespace(environment: Mapping[str, str], role: Role) -> NamespaceReference:
    """One of the two namespaces, as set in the environment; raises ConfigurationError if it is
    not set."""
    reference = read_namespace(environment, role)
    if reference is None:
        best, other = variables_of(role)
        raise ConfigurationError(
            f"The {role} namespace is not set in the environment", hint=f"Set {best} or {other}"
        )
    return reference


def variables_of(role: Role) -> tuple[str, ...]:
    """The usual variables for one namespace, the preferred one first: for hints."""
    return tuple(
        next(iter(_spellings(_PREFIXES[0], (name,), role)))
        for name in (_CONNECTION_STRINGS[0], _HOST)
    )


def _spellings(prefix: str, names: Iterable[str], role: Role) -> Iterable[str]:
    for name in names:
        if role == "primary":
            yield f"{prefix}{name}"
        else:
            yield f"{prefix}SECONDARY_{name}"
            yield f"{prefix}{name}_SECONDARY"


def _one_of(environment: Mapping[str, str], names: Iterable[str]) -> str | None:
    """The variable that is set; an empty one counts as not set, as in a shell."""
    found = [name for name in names if environment.get(name, "").strip()]
    for other in found[1:]:
        if environment[other] != environment[found[0]]:
            raise ConfigurationError(
                f"{found[0]} and {other} are both set in the environment, with different values",
                hint="Unset one of the two variables",
            )
    return found[0] if found else None

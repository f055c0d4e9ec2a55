"""Where the two namespaces are, from the environment.

    SERVICEBUS_CONNECTION_STRING (or _STR)     SERVICEBUS_SECONDARY_CONNECTION_STRING (or _STR)
    SERVICEBUS_FULLY_QUALIFIED_NAMESPACE       SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE

The secondary's word may also stand at the end: SERVICEBUS_CONNECTION_STRING_SECONDARY. Where none
of these is set, the same names with TWINBUS_ in place of SERVICEBUS_ count.

Rule 1: this is the only place that knows these names; it receives the environment as a mapping.
Rule 2: two spellings with different values are refused: nobody can know which one was meant.
Rule 3: a connection string wins over a host name, because it brings its credential along.
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

# The first is that of the Azure SDK's samples; the second counts only without it.
_PREFIXES: Final = ("SERVICEBUS_", "TWINBUS_")
_CONNECTION_STRINGS: Final = ("CONNECTION_STRING", "CONNECTION_STR")
_HOST: Final = "FULLY_QUALIFIED_NAMESPACE"


@dataclass(frozen=True, slots=True)
class NamespaceReference:
    """A namespace as somebody named it; exactly one of the two texts is there."""

    source: str
    """Who said so: a variable's name, or an option's."""
    connection_string: str | None = field(default=None, repr=False)
    fully_qualified_namespace: str | None = None


def read_namespace(environment: Mapping[str, str], role: Role) -> NamespaceReference | None:
    """What the environment says of one of the two namespaces; None when it says nothing."""
    for prefix in _PREFIXES:
        found = _one_of(environment, _spellings(prefix, _CONNECTION_STRINGS, role))
        if found is not None:
            return NamespaceReference(found, connection_string=environment[found])
        found = _one_of(environment, _spellings(prefix, (_HOST,), role))
        if found is not None:
            return NamespaceReference(found, fully_qualified_namespace=environment[found])
    return None


def require_namespace(environment: Mapping[str, str], role: Role) -> NamespaceReference:
    """The namespace that the environment names; it must name one."""
    reference = read_namespace(environment, role)
    if reference is None:
        best, other = variables_of(role)
        raise ConfigurationError(
            f"the environment does not name the {role} namespace", hint=f"Set {best} or {other}"
        )
    return reference


def variables_of(role: Role) -> tuple[str, ...]:
    """The usual names for one namespace, the best first: for hints."""
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
    """The variable that is set; an empty one counts as not set, as a shell's user means it."""
    said = [name for name in names if environment.get(name, "").strip()]
    for other in said[1:]:
        if environment[other] != environment[said[0]]:
            raise ConfigurationError(
                f"the environment has {said[0]} and {other} with different values",
                hint="Keep one of the two",
            )
    return said[0] if said else None

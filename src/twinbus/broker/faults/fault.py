"""A failure that can be switched on, as a value: what, where, when and how likely.

Rule 1: a fault is checked when it is built. An option that its kind does not have is refused,
        never ignored, so that a test does not pass because of a slip.
Rule 2: JSON both ways, nothing lost: ``Fault.from_json(fault.to_json()) == fault``.
Rule 3: chance comes from the seed alone; the same seed and the same requests fail alike.

    Fault("cannot-send", Scope(entity="orders"), lasts_s=30)
    Fault("throttle", Scope(entity="orders", partition=3))
    Fault("cannot-contact", how="black-hole", plane="data")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from twinbus.broker.entities.partitions import PARTITION_COUNT
from twinbus.broker.faults.kinds import COMMON_OPTIONS, KINDS, RANGES, WHOLE_NUMBERS
from twinbus.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

ID_LENGTH_MAX: Final = 64
TEXT_LENGTH_MAX: Final = 260


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a fault is: the whole namespace unless something narrows it."""

    entity: str = ""
    """A path, or the beginning of paths and a ``*``: ``orders``, ``orders/*``."""
    subsystem: str = ""
    """The entities of one named subsystem (rule F4)."""
    partition: int | None = None
    """One partition of the entity, 0 to 15."""

    def __post_init__(self) -> None:
        for name in ("entity", "subsystem"):
            _check_text(f"scope.{name}", getattr(self, name))
        if self.entity and self.subsystem:
            raise ConfigurationError(
                "a scope names an entity or a subsystem, not both", hint="Add two faults instead"
            )
        if self.entity:
            object.__setattr__(self, "entity", _checked_pattern(self.entity))
        if self.partition is not None:
            _check_partition(self.partition, self.entity)

    @property
    def is_everything(self) -> bool:
        return self == Scope()

    def covers(self, path: str, subsystem: str) -> bool:
        """Whether an entity of that subsystem is in it; both names are canonical."""
        if self.subsystem:
            return self.subsystem == subsystem
        if self.entity.endswith("*"):
            return path.startswith(self.entity[:-1])
        return not self.entity or self.entity == path

    def __str__(self) -> str:
        if self.subsystem:
            return self.subsystem
        where = self.entity or "everything"
        return where if self.partition is None else f"{where} partition {self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What can be said about a fault; kinds.py says which kind has which."""

    how: str = ""
    """The form of the failure; each kind has its own list, the first is the usual one."""
    id: str = ""
    """A name to clear it by; one is given out when it is empty."""
    seed: int | None = None
    """Where its chance begins; chosen, and shown in the listing, when it is None."""
    probability: float = 1.0
    """The chance that a request meets the fault at all."""
    starts_after_s: float = 0.0
    lasts_s: float | None = None
    """None lasts until somebody clears it."""
    condition: str = ""
    """The AMQP error condition of an error."""
    http_status: int | None = None
    """The HTTP status of an error on administration."""
    plane: str = ""
    """Messages (``data``), administration (``management``), or ``both``."""
    only_clients: str = ""
    """The beginning of a client's address or container id: only those are cut off."""
    direction: str = ""
    """Which half of a half-open connection is dead: ``to-client`` or ``from-client``."""
    latency_ms: float | None = None
    jitter_ms: float | None = None
    bytes_per_s: float | None = None
    rate_per_s: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    applied_probability: float | None = None
    """The chance that what was asked is done, although nobody hears of it."""
    down_s: float | None = None
    slow_s: float | None = None
    links: str = ""
    """What a crash does to links: ``detach`` them or let them ``hang``."""


@dataclass(frozen=True, slots=True)
class Fault(_Options):
    """One failure. Options that are not given get the defaults of the kind."""

    kind: str = field(kw_only=False)
    scope: Scope = field(default_factory=Scope, kw_only=False)

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        if not isinstance(self.scope, Scope):
            raise ConfigurationError("the scope of a fault must be a Scope")
        self._check_scope()
        self._check_options({**COMMON_OPTIONS, **KINDS[self.kind].options})
        if self.kind == "cannot-receive" and self.how == "timeout" and self.probability < 1:
            # Messages are handed out in runs, not one request at a time.
            raise ConfigurationError("cannot-receive without an answer has no probability")

    def _check_scope(self) -> None:
        kind, scope = KINDS[self.kind], self.scope
        if kind.is_namespace_wide and not scope.is_everything:
            raise ConfigurationError(
                f"{self.kind} concerns the whole namespace", hint="Leave the scope away"
            )
        if kind.needs_subsystem and not scope.subsystem:
            raise ConfigurationError(
                f"{self.kind} needs the name of a subsystem",
                hint="Give scope.subsystem, or --subsystem on the command line",
            )
        if scope.partition is not None and self.kind != "throttle":
            raise ConfigurationError(f"{self.kind} cannot be limited to a partition")

    def _check_options(self, known: Mapping[str, Any]) -> None:
        for each in fields(_Options):
            value, unset = getattr(self, each.name), each.default
            # True is equal to 1, and yet no number.
            is_unset = value == unset and not isinstance(value, bool)
            if not is_unset and each.name not in known:
                raise _no_option(self.kind, each.name)
            if is_unset and known.get(each.name) is not None:
                value = known[each.name]
                value = value[0] if isinstance(value, tuple) else value
                object.__setattr__(self, each.name, value)
            _check_value(self.kind, each.name, value, known.get(each.name), unset)

    # -- JSON -----------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Only what differs from nothing, so that people can read it."""
        told: dict[str, Any] = {"kind": self.kind}
        scope = {
            each.name: getattr(self.scope, each.name)
            for each in fields(Scope)
            if getattr(self.scope, each.name) != each.default
        }
        if scope:
            told["scope"] = scope
        for each in fields(_Options):
            value = getattr(self, each.name)
            if value != each.default:
                told[each.name] = value
        return told

    @classmethod
    def from_json(cls, values: Any) -> Fault:
        """Read a fault; raises ConfigurationError with what is wrong."""
        if not isinstance(values, dict) or "kind" not in values:
            raise ConfigurationError("a fault is a JSON object with a kind")
        kind = values["kind"]
        if not isinstance(kind, str):
            raise ConfigurationError("the kind of a fault must be text")
        _check_kind(kind)
        options = {each.name for each in fields(_Options)}
        rest = {key: value for key, value in values.items() if key not in ("kind", "scope")}
        for name in rest:
            if name not in options:
                raise _no_option(kind, name)
        # JSON's null means "not said".
        rest = {key: value for key, value in rest.items() if value is not None}
        return cls(kind, _scope_from_json(values.get("scope")), **rest)

    def named(self, fault_id: str, seed: int) -> Fault:
        """The same with what was left open decided."""
        return replace(self, id=self.id or fault_id, seed=seed if self.seed is None else self.seed)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigurationError(
            f"there is no fault {kind!r:.60}", hint=f"Use one of: {', '.join(KINDS)}"
        )


def _no_option(kind: str, name: str) -> ConfigurationError:
    known = {**COMMON_OPTIONS, **KINDS[kind].options}
    return ConfigurationError(
        f"{kind} has no option {name!r:.60}", hint=f"It has: {', '.join(sorted(known))}"
    )


def _scope_from_json(values: Any) -> Scope:
    if values is None:
        return Scope()
    names = {each.name for each in fields(Scope)}
    if not isinstance(values, dict) or set(values) - names:
        raise ConfigurationError(
            "the scope of a fault is a JSON object", hint=f"It has: {', '.join(sorted(names))}"
        )
    return Scope(**values)


def _checked_pattern(text: str) -> str:
    if text.endswith("*"):
        prefix = text[:-1]
        if prefix.rstrip("/"):
            parse_entity_path(prefix.rstrip("/-._"))
        return text.lower() if prefix else ""
    return parse_entity_path(text)


def _check_partition(partition: object, entity: str) -> None:
    is_number = isinstance(partition, int) and not isinstance(partition, bool)
    if not is_number or not 0 <= int(str(partition)) < PARTITION_COUNT:
        raise ConfigurationError(
            f"scope.partition is {partition!r:.40}", hint=f"Use 0 to {PARTITION_COUNT - 1}"
        )
    if not entity:
        raise ConfigurationError("a partition needs its entity", hint="Give scope.entity too")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > TEXT_LENGTH_MAX or not value.isprintable():
        raise ConfigurationError(
            f"{name} must be printable text of at most {TEXT_LENGTH_MAX} characters"
        )


def _check_value(kind: str, name: str, value: Any, known: Any, unset: Any) -> None:
    if isinstance(known, tuple):
        if value not in known:
            raise ConfigurationError(
                f"{name} of {kind} is {value!r:.60}", hint=f"Use one of: {', '.join(known)}"
            )
    elif name in RANGES:
        if value is not None:
            _check_number(kind, name, value)
    elif isinstance(unset, str):
        _check_text(name, value)
        if name == "id" and len(value) > ID_LENGTH_MAX:
            raise ConfigurationError(f"the id of a fault has at most {ID_LENGTH_MAX} characters")


def _check_number(kind: str, name: str, value: object) -> None:
    low, high = RANGES[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in WHOLE_NUMBERS:
        is_number = is_number and isinstance(value, int)
    # Not a number is between nothing, so this refuses it too.
    if not is_number or not low <= float(str(value)) <= high:
        raise ConfigurationError(
            f"{name} of {kind} is {value!r:.40}", hint=f"Use a number from {low:g} to {high:g}"
        )

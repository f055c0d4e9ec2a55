"""Fault and Scope: one failure as a checked value, and the table of kinds.

    Fault("cannot-send", Scope(entity="orders"), lasts_s=30)
    Fault("throttle", Scope(entity="orders", partition=3))
    Fault("cannot-contact", how="black-hole", plane="data")

A fault defines what fails, where, when and with which probability. ``KINDS`` is the whole list of
kinds with their options and defaults: the command line, the administration API and the checks
below read it, and a test compares it with docs/BROKER.md.

Rule 1: a fault is checked when it is built. An option that its kind does not have is refused,
        never ignored, so that a test does not pass because of a misspelt option.
Rule 2: JSON in both directions without loss: ``Fault.from_json(fault.to_json()) == fault``.
Rule 3: random choices depend on the seed only; the same seed and the same requests fail alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from twinbus.broker.engine.stored_message import PARTITION_COUNT
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

# The longest time for which a failing dependency hides a message (rule F3).
DELAY_S_MAX: Final = 900.0
_DAY_S: Final = 86_400.0

# Options that every kind has.
COMMON_OPTIONS: Final[Mapping[str, Any]] = {
    "id": None,
    "seed": None,
    "starts_after_s": None,
    "lasts_s": None,
}

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "seed": (0, float(2**63 - 1)),
    "probability": (0, 1),
    "starts_after_s": (0, 7 * _DAY_S),
    "lasts_s": (0, 7 * _DAY_S),
    "http_status": (400, 599),
    "latency_ms": (0, 600_000),
    "jitter_ms": (0, 600_000),
    "bytes_per_s": (1, 1e9),
    # At least one a day, and no more than a registry can carry out.
    "rate_per_s": (1 / _DAY_S, 1e6),
    "delay_s": (0, DELAY_S_MAX),
    "jitter_s": (0, DELAY_S_MAX),
    "applied_probability": (0, 1),
    "down_s": (0, _DAY_S),
    "slow_s": (0, _DAY_S),
}
WHOLE_NUMBERS: Final = frozenset({"seed", "http_status"})


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. A tuple of strings is a choice whose first value is the default."""

    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_namespace_wide: bool = False
    needs_subsystem: bool = False
    is_moment: bool = False
    """It fires once, when it begins, unless it has a rate."""


_ERROR = {"condition": "amqp:internal-error", "probability": 1.0}

KINDS: Final[Mapping[str, FaultKind]] = {
    "cannot-send": FaultKind(
        "Sends fail with an error, without a response, or with a detached link.",
        {"how": ("error", "timeout", "detach"), "applied_probability": 0.0, **_ERROR},
    ),
    "cannot-receive": FaultKind(
        "Receivers get an error, no messages, or a detached link.",
        {"how": ("error", "timeout", "detach"), **_ERROR},
    ),
    "cannot-manage": FaultKind(
        "Administration requests fail with an HTTP error or without a response.",
        {"how": ("error", "timeout"), "http_status": 500, "probability": 1.0},
    ),
    "cannot-contact": FaultKind(
        "The namespace is unreachable or slow over the network.",
        {
            "how": ("refuse", "black-hole", "reset", "slow", "half-open", "gateway-error"),
            "plane": ("both", "data", "management"),
            "only_clients": None,
            "direction": ("to-client", "from-client"),
            "latency_ms": 200.0,
            "jitter_ms": 0.0,
            "bytes_per_s": None,
        },
        is_namespace_wide=True,
    ),
    "throttle": FaultKind(
        "Sends are refused with ServerBusy before anything is stored: all, or above a rate.",
        {"rate_per_s": None, "probability": 1.0},
    ),
    "delayed-visibility": FaultKind(
        "Sends are acknowledged at once, and their messages become visible later.",
        {"delay_s": DELAY_S_MAX, "jitter_s": 0.0, "probability": 1.0},
    ),
    "crash-subsystem": FaultKind(
        "A subsystem is down, loses its locks, and is slow for a while after its restart.",
        {
            "applied_probability": 0.5,
            "down_s": 10.0,
            "slow_s": 10.0,
            "latency_ms": 200.0,
            "links": ("detach", "hang"),
        },
        needs_subsystem=True,
    ),
    "lost-disposition": FaultKind(
        "A settlement is applied or not, and its response is never sent.",
        {"how": ("timeout", "reset"), "applied_probability": 0.5, "probability": 1.0},
    ),
    "detach": FaultKind(
        "Links are detached by force, once or at a rate.",
        {"rate_per_s": None, "probability": 1.0, "condition": "amqp:link:detach-forced"},
        is_moment=True,
    ),
    "lock-loss": FaultKind("All message and session locks are lost at once.", {}, is_moment=True),
    "disk-full": FaultKind(
        "The disk is full: sends and settlements are refused.",
        {"probability": 1.0},
        is_namespace_wide=True,
    ),
    "slow-disk": FaultKind(
        "Every commit takes longer.",
        {"latency_ms": 200.0, "jitter_ms": 0.0},
        is_namespace_wide=True,
    ),
}


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
                "The scope of a fault must name an entity or a subsystem, not both",
                hint="Add one fault for each",
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
    """All options of faults; ``KINDS`` lists those of each kind."""

    how: str = ""
    """The form of the failure; each kind has its own list, and the first is the default."""
    id: str = ""
    """A name to clear it by; the registry chooses one when it is empty."""
    seed: int | None = None
    """The seed of its random choices; None: chosen by the registry and shown in the list."""
    probability: float = 1.0
    """The probability that the fault affects a request."""
    starts_after_s: float = 0.0
    lasts_s: float | None = None
    """None lasts until it is cleared."""
    condition: str = ""
    """The AMQP error condition of an error."""
    http_status: int | None = None
    """The HTTP status of an error on administration."""
    plane: str = ""
    """Messages (``data``), administration (``management``), or ``both``."""
    only_clients: str = ""
    """A prefix of a client's address or container id: only those clients are affected."""
    direction: str = ""
    """Which half of a half-open connection is dead: ``to-client`` or ``from-client``."""
    latency_ms: float | None = None
    jitter_ms: float | None = None
    bytes_per_s: float | None = None
    rate_per_s: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    applied_probability: float | None = None
    """The probability that an operation is carried out although it is not answered."""
    down_s: float | None = None
    slow_s: float | None = None
    links: str = ""
    """What a crash does to links: ``detach``, or ``hang`` without an answer."""


@dataclass(frozen=True, slots=True)
class Fault(_Options):
    """One failure. Options that are not set get the defaults of the kind."""

    kind: str = field(kw_only=False)
    scope: Scope = field(default_factory=Scope, kw_only=False)

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        if not isinstance(self.scope, Scope):
            raise ConfigurationError(
                f"The scope of a fault must be a Scope, got {type(self.scope).__name__}"
            )
        self._check_scope()
        self._check_options({**COMMON_OPTIONS, **KINDS[self.kind].options})
        if self.kind == "cannot-receive" and self.how == "timeout" and self.probability < 1:
            # Messages are delivered in runs, not one request at a time.
            raise ConfigurationError(
                f"Fault {self.kind!r} with how 'timeout' must have the probability 1, "
                f"got {self.probability:g}"
            )

    def _check_scope(self) -> None:
        kind, scope = KINDS[self.kind], self.scope
        if kind.is_namespace_wide and not scope.is_everything:
            raise ConfigurationError(
                f"Fault {self.kind!r} affects the whole namespace and has no scope",
                hint="Remove the scope",
            )
        if kind.needs_subsystem and not scope.subsystem:
            raise ConfigurationError(
                f"Fault {self.kind!r} requires the name of a subsystem",
                hint="Set scope.subsystem, or --subsystem on the command line",
            )
        if scope.partition is not None and self.kind != "throttle":
            raise ConfigurationError(
                f"Fault {self.kind!r} cannot be limited to a partition",
                hint="Remove the partition from the scope",
            )

    def _check_options(self, known: Mapping[str, Any]) -> None:
        for each in fields(_Options):
            value, unset = getattr(self, each.name), each.default
            # True equals 1, but is not a number here.
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
        """Only the options that are set, so that the result is easy to read."""
        values: dict[str, Any] = {"kind": self.kind}
        scope = {
            each.name: getattr(self.scope, each.name)
            for each in fields(Scope)
            if getattr(self.scope, each.name) != each.default
        }
        if scope:
            values["scope"] = scope
        for each in fields(_Options):
            value = getattr(self, each.name)
            if value != each.default:
                values[each.name] = value
        return values

    @classmethod
    def from_json(cls, values: Any) -> Fault:
        """Read a fault; raises ConfigurationError with what is wrong."""
        if not isinstance(values, dict) or "kind" not in values:
            raise ConfigurationError("A fault must be a JSON object with a kind")
        kind = values["kind"]
        if not isinstance(kind, str):
            raise ConfigurationError(
                f"The kind of a fault must be a string, got {type(kind).__name__}"
            )
        _check_kind(kind)
        options = {each.name for each in fields(_Options)}
        rest = {key: value for key, value in values.items() if key not in ("kind", "scope")}
        for name in rest:
            if name not in options:
                raise _no_option(kind, name)
        # JSON's null means "not set".
        rest = {key: value for key, value in rest.items() if value is not None}
        return cls(kind, _scope_from_json(values.get("scope")), **rest)

    def named(self, fault_id: str, seed: int) -> Fault:
        """The same fault with an id and a seed, where they were not set."""
        return replace(self, id=self.id or fault_id, seed=seed if self.seed is None else self.seed)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigurationError(
            f"Unknown kind of fault: {kind!r:.60}", hint=f"Use one of: {', '.join(KINDS)}"
        )


def _no_option(kind: str, name: str) -> ConfigurationError:
    known = {**COMMON_OPTIONS, **KINDS[kind].options}
    return ConfigurationError(
        f"Fault {kind!r} does not have the option {name!r:.60}",
        hint=f"Use one of: {', '.join(sorted(known))}",
    )


def _scope_from_json(values: Any) -> Scope:
    if values is None:
        return Scope()
    names = {each.name for each in fields(Scope)}
    if not isinstance(values, dict) or set(values) - names:
        raise ConfigurationError(
            "The scope of a fault must be a JSON object with known keys",
            hint=f"Use one or more of: {', '.join(sorted(names))}",
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
            f"Invalid value for scope.partition: {partition!r:.40}",
            hint=f"Use a number from 0 to {PARTITION_COUNT - 1}",
        )
    if not entity:
        raise ConfigurationError(
            "A scope with a partition must name an entity", hint="Set scope.entity"
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > TEXT_LENGTH_MAX or not value.isprintable():
        raise ConfigurationError(
            f"The value of {name} must be printable text of at most {TEXT_LENGTH_MAX} characters"
        )


def _check_value(kind: str, name: str, value: Any, known: Any, unset: Any) -> None:
    if isinstance(known, tuple):
        if value not in known:
            raise ConfigurationError(
                f"Invalid value for {name} of fault {kind!r}: {value!r:.60}",
                hint=f"Use one of: {', '.join(known)}",
            )
    elif name in RANGES:
        if value is not None:
            _check_number(kind, name, value)
    elif isinstance(unset, str):
        _check_text(name, value)
        if name == "id" and len(value) > ID_LENGTH_MAX:
            raise ConfigurationError(
                f"The id of a fault must have at most {ID_LENGTH_MAX} characters, got {len(value)}"
            )


def _check_number(kind: str, name: str, value: object) -> None:
    low, high = RANGES[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in WHOLE_NUMBERS:
        is_number = is_number and isinstance(value, int)
    # NaN is not between any two numbers, so this refuses it too.
    if not is_number or not low <= float(str(value)) <= high:
        raise ConfigurationError(
            f"Invalid value for {name} of fault {kind!r}: {value!r:.40}",
            hint=f"Use a number from {low:g} to {high:g}",
        )

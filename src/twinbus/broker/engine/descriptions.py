"""The properties of queues, topics and subscriptions, and which of them cannot change.

A description is a frozen value that is checked when it is built. Topics and subscriptions are
described like queues, because the code of a queue runs them: a topic keeps scheduled messages
until they are due, and a subscription is a queue to which only its topic sends. Properties that
they do not support must have their defaults.

Some properties cannot change, because stored messages depend on them: messages without a session
id cannot join a session later, and message ids that were not kept cannot be compared.

Rule 1: a QueueDescription that exists is valid. Every error is one sentence with the property, the
        value and the range.
Rule 2: the stored form is versioned JSON; an unknown key is refused, never dropped.
Rule 3: the stored form contains the keys of the access rules. What leaves the broker is
        ``to_public_dict``, which does not.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Self

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

__all__ = [
    "FORWARD_FIELDS",
    "SUBSCRIPTION_NAME_LENGTH_MAX",
    "EntityStatus",
    "QueueDescription",
    "SubscriptionDescription",
    "TopicDescription",
    "check_change",
]

DESCRIPTION_VERSION: Final = 1

# The ranges are Azure Service Bus's, except that a lock may be as short as a second: tests
# should not have to wait five.
LOCK_DURATION_MS_MIN: Final = 1_000
LOCK_DURATION_MS_MAX: Final = 300_000
# As with locks: Azure wants at least 20 seconds, a test does not.
DUPLICATE_WINDOW_MS_MIN: Final = 1_000
# Azure wants at least five minutes.
IDLE_MS_MIN: Final = 1_000
DUPLICATE_WINDOW_MS_MAX: Final = 604_800_000
SIZE_MB_MAX: Final = 81_920
DELIVERY_COUNT_MAX: Final = 2_147_483_647
# .NET's longest TimeSpan: clients use it for "never", which is None here.
DURATION_MS_MAX: Final = 922_337_203_685_477
MESSAGE_SIZE_BYTES_MAX: Final = 262_144
USER_METADATA_LENGTH_MAX: Final = 1_024
FORWARD_FIELDS: Final = ("forward_to", "forward_dead_lettered_messages_to")


class EntityStatus(enum.StrEnum):
    """Whether an entity can be sent to and received from."""

    ACTIVE = "Active"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"
    DISABLED = "Disabled"

    @property
    def can_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """The properties of one queue."""

    kind: ClassVar[str] = "queue"
    takes_messages: ClassVar[bool] = True
    """Whether clients can send to it."""
    gives_messages: ClassVar[bool] = True
    """Whether clients can receive from it."""

    path: str
    """Canonical after construction: lower case. This is the queue's identity."""
    display_path: str = ""
    """The path as its creator wrote it."""
    lock_duration_ms: int = 60_000
    """How long a received message is locked (peek-lock)."""
    max_size_mb: int = 1_024
    """Sends are refused with quota-exceeded beyond this many megabytes."""
    max_delivery_count: int = 10
    """A message that was delivered this often without success is dead-lettered."""
    default_ttl_ms: int | None = None
    """The maximum time to live of a message; None: no limit. A message's own may be shorter."""
    dead_lettering_on_expiration: bool = False
    """Whether an expired message is dead-lettered or removed."""
    status: EntityStatus = EntityStatus.ACTIVE
    enable_batched_operations: bool = True
    """Stored and reported; this broker groups its commits either way."""
    max_message_size_bytes: int = MESSAGE_SIZE_BYTES_MAX
    user_metadata: str = ""
    authorization_rules: RuleSet = field(default_factory=RuleSet)
    """Access rules for this queue alone."""
    auto_delete_on_idle_ms: int | None = None
    """Deleted after it was idle for this time; None: never."""
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = 600_000
    """How long the id of a message is kept."""
    enable_partitioning: bool = False
    enable_express: bool = False
    """Stored and reported; this broker writes every message to disk before it acknowledges it."""
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    created_at_ms: int = 0
    """Wall time; set by the broker, like the next one."""
    updated_at_ms: int = 0

    def __post_init__(self) -> None:
        self._settle_path()
        for name in FORWARD_FIELDS:
            object.__setattr__(self, name, _forward_path(name, getattr(self, name)))
        _check_flags(self)
        _check_int("lock_duration_ms", self.lock_duration_ms, *_LOCK_RANGE)
        _check_int("max_size_mb", self.max_size_mb, 1, SIZE_MB_MAX)
        _check_int("max_delivery_count", self.max_delivery_count, 1, DELIVERY_COUNT_MAX)
        _check_int("max_message_size_bytes", self.max_message_size_bytes, 1, MESSAGE_SIZE_BYTES_MAX)
        if self.auto_delete_on_idle_ms is not None:
            _check_int("auto_delete_on_idle_ms", self.auto_delete_on_idle_ms, *_IDLE_RANGE)
        if self.default_ttl_ms is not None:
            _check_int("default_ttl_ms", self.default_ttl_ms, 1, DURATION_MS_MAX)
        _check_int(
            "duplicate_detection_window_ms", self.duplicate_detection_window_ms, *_WINDOW_RANGE
        )
        for name in ("created_at_ms", "updated_at_ms"):
            _check_int(name, getattr(self, name), 0, DURATION_MS_MAX)
        _check_user_metadata(self.user_metadata)

    @property
    def needs_facts(self) -> bool:
        """Whether a message's ids decide what the queue does with it."""
        return (
            self.requires_session or self.requires_duplicate_detection or self.enable_partitioning
        )

    def _settle_path(self) -> None:
        if not isinstance(self.path, str) or not isinstance(self.display_path, str):
            raise ConfigurationError(f"The path of a {self.kind} must be text")
        canonical = parse_entity_path(self.path)
        self._check_shape(canonical)
        display = self.display_path or self.path
        if parse_entity_path(display) != canonical:
            raise ConfigurationError(
                f"Property display_path {display!r} does not match the path {canonical!r}",
                hint="Use the same path in both, in any letter case",
            )
        # A frozen dataclass may still finish its own construction.
        object.__setattr__(self, "path", canonical)
        object.__setattr__(self, "display_path", display)

    def _check_shape(self, canonical: str) -> None:
        if "subscriptions" in canonical.split("/")[1:]:
            raise ConfigurationError(
                f"Invalid {self.kind} path: {self.path!r} is the path of a subscription",
                hint="Use a path without '/subscriptions/'",
            )

    def to_json(self) -> str:
        """The stored form. It contains access keys: it must not leave the data directory."""
        stored = self.to_public_dict()
        stored["version"] = DESCRIPTION_VERSION
        stored["authorization_rules"] = [_rule_to_dict(rule) for rule in self.authorization_rules]
        return json.dumps(stored, separators=(",", ":"), sort_keys=True)

    def to_public_dict(self) -> dict[str, Any]:
        """Everything but the keys, for an administration response or a log line."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["status"] = self.status.value
        values["authorization_rules"] = [
            {"name": rule.name, "claims": rule.claims.names()} for rule in self.authorization_rules
        ]
        return values

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` wrote; raises ConfigurationError for anything else."""
        try:
            stored = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"A {cls.kind} description is not valid JSON") from error
        if not isinstance(stored, dict):
            raise ConfigurationError(f"A {cls.kind} description is not a JSON object")
        version = stored.pop("version", None)
        if version != DESCRIPTION_VERSION:
            raise ConfigurationError(
                f"A {cls.kind} description has version {version!r}, not {DESCRIPTION_VERSION}",
                hint="Open the data directory with the twinbus version that wrote it",
            )
        return cls.from_dict(stored)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from plain values, as they come out of JSON."""
        known = {item.name for item in fields(cls)}
        for key in values:
            if key not in known:
                raise ConfigurationError(
                    f"Unknown property of a {cls.kind}: {key[:60]!a}",
                    hint=f"Use one of: {', '.join(sorted(known))}",
                )
        if "path" not in values:
            raise ConfigurationError(f"A {cls.kind} description has no path")
        typed = dict(values)
        typed["status"] = _status(values.get("status", EntityStatus.ACTIVE))
        typed["authorization_rules"] = _rules(values.get("authorization_rules", []))
        return cls(**typed)


_LOCK_RANGE: Final = (LOCK_DURATION_MS_MIN, LOCK_DURATION_MS_MAX)
_IDLE_RANGE: Final = (IDLE_MS_MIN, DURATION_MS_MAX)
_WINDOW_RANGE: Final = (DUPLICATE_WINDOW_MS_MIN, DUPLICATE_WINDOW_MS_MAX)


def _check_flags(description: QueueDescription) -> None:
    for item in fields(description):
        value = getattr(description, item.name)
        if isinstance(item.default, bool) and not isinstance(value, bool):
            raise ConfigurationError(
                f"Property {item.name} must be true or false, got {value!r:.60}"
            )
    if not isinstance(description.status, EntityStatus):
        raise ConfigurationError(
            f"Property status must be an EntityStatus, got {description.status!r:.60}"
        )
    if not isinstance(description.authorization_rules, RuleSet):
        raise ConfigurationError("Property authorization_rules must be a RuleSet")


def _check_int(name: str, value: object, minimum: int, maximum: int) -> None:
    # bool is an int in Python, but max_delivery_count=True is a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"Property {name} must be an integer, got {value!r:.60}")
    if not minimum <= value <= maximum:
        raise ConfigurationError(
            f"Property {name} must be from {minimum} to {maximum}, got {value!r:.60}",
            hint=f"Use a value from {minimum} to {maximum}",
        )


def _forward_path(name: str, value: object) -> str | None:
    """The path of the forwarding target. A URL was read before, where the host names of the
    namespace are known (forwarding.target_path)."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigurationError(
            f"Property {name} must be the path of an entity, got {value!r:.60}"
        )
    if "://" in value:
        raise ConfigurationError(
            f"Property {name} must be the path of an entity, got the URL {value!a:.80}",
            hint="Remove the scheme and the host",
        )
    return parse_entity_path(value)


def _check_user_metadata(text: object) -> None:
    if not isinstance(text, str) or len(text) > USER_METADATA_LENGTH_MAX:
        raise ConfigurationError(
            f"Property user_metadata must be text of at most {USER_METADATA_LENGTH_MAX} characters"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can contain half of a surrogate pair; a response that lists the queue cannot.
        raise ConfigurationError(
            "Property user_metadata contains an incomplete Unicode character",
            hint="Use complete Unicode characters",
        ) from None


def _status(value: object) -> EntityStatus:
    try:
        return EntityStatus(str(value))
    except ValueError:
        raise ConfigurationError(
            f"Unknown entity status: {value!r:.60}", hint=f"Use one of: {', '.join(EntityStatus)}"
        ) from None


def _rule_to_dict(rule: AuthorizationRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "claims": rule.claims.names(),
        "primary_key": rule.primary_key,
        "secondary_key": rule.secondary_key,
    }


def _rules(values: object) -> RuleSet:
    if isinstance(values, RuleSet):
        return values
    try:
        return RuleSet(
            tuple(
                AuthorizationRule(
                    name=value["name"],
                    claims=Claim.from_names(value["claims"]),
                    primary_key=value["primary_key"],
                    secondary_key=value["secondary_key"],
                )
                for value in values  # type: ignore[attr-defined]
            )
        )
    except (KeyError, TypeError, AttributeError):
        # No "from": the original error may contain the value, which has keys in it.
        raise ConfigurationError(
            "Property authorization_rules must be a list of access rules"
        ) from None


# Azure's limit for the name of a subscription.
SUBSCRIPTION_NAME_LENGTH_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(QueueDescription):
    """The properties of one topic."""

    kind: ClassVar[str] = "topic"
    gives_messages: ClassVar[bool] = False

    support_ordering: bool = True
    """Stored and reported; messages of one sender keep their order either way."""

    def __post_init__(self) -> None:
        QueueDescription.__post_init__(self)
        _refuse_foreign(
            self,
            "lock_duration_ms",
            "max_delivery_count",
            "dead_lettering_on_expiration",
            "requires_session",
            "forward_to",
            "forward_dead_lettered_messages_to",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription(QueueDescription):
    """The properties of one subscription; its path is ``<topic>/subscriptions/<name>``."""

    kind: ClassVar[str] = "subscription"
    takes_messages: ClassVar[bool] = False

    dead_lettering_on_filter_errors: bool = True
    """Whether a message for which a rule fails is dead-lettered."""

    def __post_init__(self) -> None:
        QueueDescription.__post_init__(self)
        _refuse_foreign(
            self,
            "requires_duplicate_detection",
            "duplicate_detection_window_ms",
            "enable_partitioning",
            "authorization_rules",
        )

    def _check_shape(self, canonical: str) -> None:
        segments = canonical.split("/")
        if len(segments) < 3 or segments[-2] != "subscriptions":
            raise ConfigurationError(
                f"{self.path!r} is not the path of a subscription",
                hint="Use <topic>/subscriptions/<name>",
            )
        if len(segments[-1]) > SUBSCRIPTION_NAME_LENGTH_MAX:
            raise ConfigurationError(
                f"The subscription name has {len(segments[-1])} characters, the maximum is "
                f"{SUBSCRIPTION_NAME_LENGTH_MAX}",
                hint="Use a shorter name",
            )

    @property
    def topic_path(self) -> str:
        return self.path.rsplit("/", 2)[0]

    @property
    def name(self) -> str:
        """The name as its creator wrote it."""
        return self.display_path.rsplit("/", 1)[1]


def _refuse_foreign(description: QueueDescription, *names: str) -> None:
    defaults: Mapping[str, object] = {item.name: item.default for item in fields(description)}
    for name in names:
        value = getattr(description, name)
        if name == "authorization_rules":
            is_default = not list(description.authorization_rules)
        else:
            is_default = value == defaults[name]
        if not is_default:
            raise ConfigurationError(
                f"Property {name} is not supported for the {description.kind} {description.path!r}",
                hint=f"Remove {name}",
            )


_IMMUTABLE: Final = (
    "path",
    "requires_session",
    "requires_duplicate_detection",
    "enable_partitioning",
)


def check_change(old: QueueDescription, new: QueueDescription) -> None:
    """Refuse a change of a property on which stored messages depend."""
    for name in _IMMUTABLE:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise ConfigurationError(
                f"Property {name} of the {old.kind} {old.path!r} is {before!r} and cannot be "
                "changed",
                hint=f"Create another {old.kind}, or leave {name} unchanged",
            )

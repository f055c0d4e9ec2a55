"""The options of a pair (P2): one value, checked when it is created.

    options = SendAvailabilityPairedNamespaceOptions(secondary_manager, secondary_factory)
    await primary_factory.pair_namespace(options)

Rule 1: a value outside its range raises ConfigurationError, before a namespace is contacted.
Rule 2: only two fields change. Pairing sets ``backlog_queue_count`` to the number of queues that
        it has found or created, and ``primary.set_ping_interval()`` sets ``ping_primary_interval``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from twinbus.common.argument_types import check_type
from twinbus.common.entity_path import parse_entity_path
from twinbus.encoding.envelope import TtlPolicy
from twinbus.errors import ConfigurationError
from twinbus.failover.backlog_alerts import BacklogThresholds
from twinbus.failover.backlog_rotation import RotationPolicy
from twinbus.failover.error_classifier import Classifier
from twinbus.metering.log_retention import check_keep_days
from twinbus.pairing.events import check_listener
from twinbus.pairing.option_variables import options_in
from twinbus.pairing.syphon_hosting import SyphonHosting

if TYPE_CHECKING:
    from twinbus.pairing.client.factory import MessagingFactory
    from twinbus.pairing.client.namespace_manager import NamespaceManager
    from twinbus.pairing.events import EventRecord

Interval: TypeAlias = timedelta | float
PingMode: TypeAlias = Literal["message", "attach"]

# A link for each is opened on demand, and an idle syphon polls each (Y3): more have no use.
BACKLOG_QUEUE_COUNT_MAX: Final = 1_000
FAILOVER_INTERVAL_MAX: Final = timedelta(minutes=60)
PING_INTERVAL_MIN: Final = timedelta(seconds=1)
PING_INTERVAL_MAX: Final = timedelta(minutes=30)
ONE_MINUTE: Final = timedelta(minutes=1)

_PARTNERS: Final = frozenset({"NamespaceManager", "MessagingFactory"})
_SWITCHES: Final = ("enable_syphon", "allow_lossy_backlog", "require_secondary")
_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "classifier": (Classifier, "Pass a Classifier(), with your own rows"),
    "rotation": (RotationPolicy, "Pass a RotationPolicy()"),
    "thresholds": (BacklogThresholds, "Pass BacklogThresholds()"),
    "syphon": (SyphonHosting, "Pass SyphonHosting('spark') or SyphonHosting('local')"),
}


class PairedNamespaceOptions:
    """The base class of pairing options; use SendAvailabilityPairedNamespaceOptions."""

    secondary_namespace_manager: NamespaceManager | None
    messaging_factory: MessagingFactory
    failover_interval: timedelta

    @property
    def secondary_messaging_factory(self) -> MessagingFactory:
        """The factory of the secondary."""
        return self.messaging_factory


@dataclass(frozen=True, eq=False)
class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends that keep working: while an entity of the primary is unreachable, its messages wait
    in backlog queues on the secondary."""

    secondary_namespace_manager: NamespaceManager | None
    """Creates the backlog queues; requires the Manage claim. With None, or only the Send claim,
    the queues must exist."""
    messaging_factory: MessagingFactory
    """The factory of the secondary."""
    backlog_queue_count: int = 10
    """1 to 1000. After pairing: the number of queues that were found or created, 0 while the
    secondary has not responded."""
    failover_interval: timedelta = ONE_MINUTE
    """How long an entity may fail before it is diverted, 0 to 60 minutes; timedelta or seconds.
    With 0 the first failure diverts it, if one immediate retry fails as well."""
    enable_syphon: bool = False
    """Host a syphon in this process, which moves backlog messages to the primary."""
    ping_primary_interval: timedelta = field(default=ONE_MINUTE, kw_only=True)
    """Interval between pings of a diverted entity, 1 s to 30 minutes;
    ``primary.set_ping_interval()`` changes it for a running pair."""
    ping_mode: PingMode = field(default="message", kw_only=True)
    """``attach`` opens a link and sends nothing, for brokers that would deliver a ping."""
    namespace_name: str | None = field(default=None, kw_only=True)
    """Name of the primary in the paths of the backlog queues, if its host does not contain it."""
    classifier: Classifier = field(default_factory=Classifier, kw_only=True)
    """Decides which errors count as an outage."""
    rotation: RotationPolicy = field(default_factory=RotationPolicy, kw_only=True)
    """How long a failing backlog queue is withdrawn."""
    journal: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """File to which every event is appended as one line of JSON."""
    journal_keep_days: int | None = field(default=None, kw_only=True)
    """Days after which lines of the journal are dropped; None keeps them."""
    control: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """File with operator commands, written for example by `twinbus pair failover` and read every
    second. A user that may write it may divert sends."""
    thresholds: BacklogThresholds = field(default_factory=BacklogThresholds, kw_only=True)
    """Sizes and ages of the backlog that cause events."""
    on_event: Callable[[EventRecord], object] | None = field(default=None, kw_only=True)
    """Called with every event, on the event loop; must return quickly."""
    allowed_destinations: tuple[str, ...] = field(default=("*",), kw_only=True)
    """Patterns of the paths to which the hosted syphon delivers (Y6)."""
    ttl_policy: TtlPolicy = field(default=TtlPolicy.RESTART, kw_only=True)
    """Effect of the time in the backlog on the time to live of a message (Y8); or its value as
    text."""
    allow_lossy_backlog: bool = field(default=False, kw_only=True)
    """Also use backlog queues that drop messages after a while: those with a time to live and
    no dead-lettering, and those that are deleted when idle (P20)."""
    require_secondary: bool = field(default=True, kw_only=True)
    """Whether an unreachable secondary is an error when the pair is created. If False, sends go
    to the primary, and the pair completes itself when the secondary responds (P19)."""
    accept_owners: tuple[str, ...] = field(default=(), kw_only=True)
    """Addresses of primaries whose backlog messages the hosted syphon moves as its own, for
    example an earlier address of this primary; ``*`` for all (P21)."""
    syphon: SyphonHosting = field(default_factory=SyphonHosting, kw_only=True)
    """Where the hosted syphon runs, if it is enabled; on Spark by default."""

    def __post_init__(self) -> None:
        self.check_partners(self.secondary_namespace_manager, self.messaging_factory)
        check_keep_days(self.journal_keep_days)
        for name, value in checked_settings(self).items():
            self._set(name, value)
        self._set("_wanted_queue_count", self.backlog_queue_count)

    @classmethod
    def from_environment(
        cls,
        secondary_namespace_manager: Any,
        messaging_factory: Any,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """Options from the environment (TWINBUS_PAIR_FAILOVER_INTERVAL and so on); ``options``
        have precedence, and the rest are defaults."""
        names = {each.name for each in fields(cls)}
        found = options_in(os.environ if environment is None else environment, names)
        return cls(secondary_namespace_manager, messaging_factory, **{**found, **options})

    @classmethod
    def check_partners(cls, manager: object, factory: object) -> None:
        """Refuse a manager and a factory in the wrong order, or of the wrong API."""
        manager_type, factory_type = cls._partner_types()
        hint = "Pass the manager and the factory of the secondary, created for example with "
        hint += "from_connection_string()"
        if isinstance(manager, factory_type) or isinstance(factory, manager_type):
            hint = "Pass the manager first, then the factory"
        elif any(
            type(each).__name__ in _PARTNERS and not isinstance(each, kind)
            for each, kind in ((manager, manager_type), (factory, factory_type))
        ):
            hint = "Import all of them from twinbus.aio, or all of them from twinbus"
        name = "secondary_namespace_manager"
        check_type(name, manager, manager_type, is_optional=True, hint=hint)
        check_type("messaging_factory", factory, factory_type, hint=hint)

    @staticmethod
    def _partner_types() -> tuple[type, type]:
        # They use the options themselves.
        from twinbus.pairing.client.factory import MessagingFactory
        from twinbus.pairing.client.namespace_manager import NamespaceManager

        return NamespaceManager, MessagingFactory

    def found_queues(self, count: int) -> None:
        """Set the number of backlog queues that pairing has found or created."""
        self._set("backlog_queue_count", count)

    def set_ping_interval(self, interval: Interval) -> None:
        """Set the new ping interval of the pair."""
        self._set("ping_primary_interval", checked_ping_interval(interval))

    @property
    def wanted_queue_count(self) -> int:
        """The number of queues in the original options."""
        wanted: int = self.__dict__["_wanted_queue_count"]
        return wanted

    @property
    def journal_path(self) -> Path | None:
        return None if self.journal is None else Path(self.journal)

    @property
    def control_path(self) -> Path | None:
        return None if self.control is None else Path(self.control)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def checked_settings(given: Any) -> dict[str, object]:
    """Check all settings of a pair, in any class with these fields; returns those that have a
    canonical form, in that form."""
    _check_count(given.backlog_queue_count)
    failover_interval = _interval("failover_interval", given.failover_interval)
    _check_range("failover_interval", failover_interval, timedelta(), FAILOVER_INTERVAL_MAX)
    ping_interval = checked_ping_interval(given.ping_primary_interval)
    for name in _SWITCHES:
        if not isinstance(getattr(given, name), bool):
            raise ConfigurationError(
                f"Invalid value for {name}: {getattr(given, name)!r:.40}",
                hint="Use True or False",
            )
    for name, (kind, hint) in _KINDS.items():
        check_type(name, getattr(given, name), kind, hint=hint)
    for name in ("journal", "control"):
        value = getattr(given, name)
        check_type(name, value, str, os.PathLike, is_optional=True, hint="Use the path of a file")
    if given.ping_mode not in ("message", "attach"):
        raise ConfigurationError(
            f"Invalid value for ping_mode: {given.ping_mode!r:.40}",
            hint="Use 'message' or 'attach'",
        )
    if given.on_event is not None:
        check_listener(given.on_event)
    return {
        "failover_interval": failover_interval,
        "ping_primary_interval": ping_interval,
        "ttl_policy": _ttl_policy(given.ttl_policy),
        "allowed_destinations": _patterns(given.allowed_destinations),
        "accept_owners": _owners(given.accept_owners),
        "namespace_name": _first_segment(given.namespace_name),
    }


def checked_ping_interval(given: object) -> timedelta:
    """The ping interval as a timedelta, checked."""
    interval = _interval("ping_primary_interval", given)
    _check_range("ping_primary_interval", interval, PING_INTERVAL_MIN, PING_INTERVAL_MAX)
    return interval


def _check_count(count: object) -> None:
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not 1 <= count <= BACKLOG_QUEUE_COUNT_MAX
    ):
        raise ConfigurationError(
            f"Invalid value for backlog_queue_count: {count!r:.60}",
            hint=f"Use a whole number from 1 to {BACKLOG_QUEUE_COUNT_MAX}",
        )


def _interval(name: str, given: object) -> timedelta:
    if isinstance(given, timedelta):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ConfigurationError(
            f"Invalid value for {name}: {given!r:.60}",
            hint="Use a timedelta or a number of seconds",
        )
    try:
        return timedelta(seconds=given)
    except OverflowError:
        raise ConfigurationError(
            f"Invalid value for {name}: {given!r:.60}", hint="Use a smaller number of seconds"
        ) from None


def _check_range(name: str, value: timedelta, low: timedelta, high: timedelta) -> None:
    if not low <= value <= high:
        raise ConfigurationError(
            f"Invalid value for {name}: {value.total_seconds():g} s",
            hint=f"Use {low.total_seconds():g} s to {high.total_seconds():g} s",
        )


def _ttl_policy(given: object) -> TtlPolicy:
    try:
        return TtlPolicy(given)
    except ValueError:
        words = ", ".join(repr(policy.value) for policy in TtlPolicy)
        raise ConfigurationError(
            f"Invalid value for ttl_policy: {given!r:.40}", hint=f"Use {words}"
        ) from None


def _patterns(given: object) -> tuple[str, ...]:
    """A single text is refused: each of its letters would become a pattern."""
    if isinstance(given, tuple | list) and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise ConfigurationError(
        f"Invalid value for allowed_destinations: {given!r:.60}",
        hint="Use a tuple of patterns, for example ('orders*',)",
    )


def _owners(given: object) -> tuple[str, ...]:
    if isinstance(given, tuple | list) and all(isinstance(each, str) and each for each in given):
        return tuple(given)
    raise ConfigurationError(
        f"Invalid value for accept_owners: {given!r:.60}",
        hint="Use a tuple of addresses, for example ('old.example.com',), or ('*',) for all",
    )


def _first_segment(name: str | None) -> str | None:
    if name is None:
        return None
    check_type("namespace_name", name, str, hint="Use the name of the primary namespace")
    canonical = parse_entity_path(name)
    if "/" in canonical:
        raise ConfigurationError(
            f"Invalid value for namespace_name: {name!r:.60}", hint="Use a name without a slash"
        )
    return canonical

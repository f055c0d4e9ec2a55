"""How two namespaces are paired (P2): one value, checked when it is built.

    options = SendAvailabilityPairedNamespaceOptions(secondary_manager, secondary_factory)
    await primary_factory.pair_namespace(options)

Rule 1: a value outside its range raises ConfigurationError here, before anything is contacted.
Rule 2: two fields ever change. Pairing sets ``backlog_queue_count`` to the number of queues that
        it really found or made, and ``primary.set_ping_interval()`` sets ``ping_primary_interval``.
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

# A link for each is opened on demand, and an idle syphon polls each (Y3): more help nobody.
BACKLOG_QUEUE_COUNT_MAX: Final = 1_000
FAILOVER_INTERVAL_MAX: Final = timedelta(minutes=60)
PING_INTERVAL_MIN: Final = timedelta(seconds=1)
PING_INTERVAL_MAX: Final = timedelta(minutes=30)
ONE_MINUTE: Final = timedelta(minutes=1)

_PARTNERS: Final = frozenset({"NamespaceManager", "MessagingFactory"})
_SWITCHES: Final = ("enable_syphon", "allow_lossy_backlog", "require_secondary")
_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "classifier": (Classifier, "Give a Classifier(), with rows of your own"),
    "rotation": (RotationPolicy, "Give a RotationPolicy()"),
    "thresholds": (BacklogThresholds, "Give BacklogThresholds()"),
    "syphon": (SyphonHosting, "Give SyphonHosting('spark') or SyphonHosting('local')"),
}


class PairedNamespaceOptions:
    """What every kind of pairing has; use SendAvailabilityPairedNamespaceOptions."""

    secondary_namespace_manager: NamespaceManager | None
    messaging_factory: MessagingFactory
    failover_interval: timedelta

    @property
    def secondary_messaging_factory(self) -> MessagingFactory:
        """The factory of the namespace that helps out."""
        return self.messaging_factory


@dataclass(frozen=True, eq=False)
class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends that keep working: while an entity of the primary is away, its messages wait in
    backlog queues on the secondary."""

    secondary_namespace_manager: NamespaceManager | None
    """Makes the backlog queues; needs Manage. None, or one that may only Send: the queues must
    be there."""
    messaging_factory: MessagingFactory
    """The factory of the secondary."""
    backlog_queue_count: int = 10
    """From 1. After pairing: the number of queues that were really found or made, 0 as long as
    the secondary has not answered."""
    failover_interval: timedelta = ONE_MINUTE
    """How long an entity may fail before it is diverted, 0 to 60 minutes; timedelta or seconds.
    0: the first failure that survives one immediate retry."""
    enable_syphon: bool = False
    """Bring backlog messages home in this process."""
    ping_primary_interval: timedelta = field(default=ONE_MINUTE, kw_only=True)
    """How often a diverted entity is asked whether it is back, 1 s to 30 minutes; see
    ``primary.set_ping_interval()`` for a pair that runs."""
    ping_mode: PingMode = field(default="message", kw_only=True)
    """``attach`` opens a link and sends nothing, for brokers that would deliver a ping."""
    namespace_name: str | None = field(default=None, kw_only=True)
    """The primary's name in the paths of the backlog queues, where the host does not tell it."""
    classifier: Classifier = field(default_factory=Classifier, kw_only=True)
    """Which error means what."""
    rotation: RotationPolicy = field(default_factory=RotationPolicy, kw_only=True)
    """How long a failing backlog queue is left alone."""
    journal: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """A file to which every event is appended as one line of JSON."""
    journal_keep_days: int | None = field(default=None, kw_only=True)
    """Days after which lines of the journal are dropped; None keeps them."""
    control: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """A file with orders of an operator, as `twinbus pair failover` writes them; looked at every
    second. Who may write it may divert sends."""
    thresholds: BacklogThresholds = field(default_factory=BacklogThresholds, kw_only=True)
    """Which levels of the backlog are events."""
    on_event: Callable[[EventRecord], object] | None = field(default=None, kw_only=True)
    """Called with every event, on the event loop: be quick."""
    allowed_destinations: tuple[str, ...] = field(default=("*",), kw_only=True)
    """Patterns of the paths to which the syphon of this process delivers (Y6)."""
    ttl_policy: TtlPolicy = field(default=TtlPolicy.RESTART, kw_only=True)
    """What the time in the backlog does to a message's time to live (Y8); also as a word."""
    allow_lossy_backlog: bool = field(default=False, kw_only=True)
    """Use also backlog queues that drop messages after a while: those with a time to live and
    no dead-lettering, and those that are deleted when idle (P20)."""
    require_secondary: bool = field(default=True, kw_only=True)
    """Whether a secondary that is unreachable when the pair is made is an error. False: sends go
    to the primary, and the pair completes itself when the secondary answers (P19)."""
    accept_owners: tuple[str, ...] = field(default=(), kw_only=True)
    """Addresses of primaries whose backlog messages the syphon of this process moves as its own,
    such as the address that this primary had before; ``*`` for all (P21)."""
    syphon: SyphonHosting = field(default_factory=SyphonHosting, kw_only=True)
    """Where the syphon of this process runs, when it is enabled: on Spark unless told."""

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
        """What the environment says (TWINBUS_PAIR_FAILOVER_INTERVAL and so on), the defaults
        for all else; ``options`` are what the program itself decides."""
        names = {each.name for each in fields(cls)}
        found = options_in(os.environ if environment is None else environment, names)
        return cls(secondary_namespace_manager, messaging_factory, **{**found, **options})

    @classmethod
    def check_partners(cls, manager: object, factory: object) -> None:
        """Refuse a manager and a factory that are exchanged, or of the other kind of program."""
        manager_type, factory_type = cls._partner_types()
        hint = "Give the manager and the factory of the secondary, made for example with "
        hint += "from_connection_string()"
        if isinstance(manager, factory_type) or isinstance(factory, manager_type):
            hint = "The manager comes first, then the factory"
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
        """Pairing tells how many backlog queues there really are."""
        self._set("backlog_queue_count", count)

    def set_ping_interval(self, interval: Interval) -> None:
        """The pair that these options made pings at another pace now."""
        self._set("ping_primary_interval", checked_ping_interval(interval))

    @property
    def wanted_queue_count(self) -> int:
        """The number of queues that was asked for."""
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
    """Look at all settings of a pair, wherever they are fields; those that have one form, in it."""
    _check_count(given.backlog_queue_count)
    failover_interval = _interval("failover_interval", given.failover_interval)
    _check_range("failover_interval", failover_interval, timedelta(), FAILOVER_INTERVAL_MAX)
    ping_interval = checked_ping_interval(given.ping_primary_interval)
    for name in _SWITCHES:
        if not isinstance(getattr(given, name), bool):
            raise ConfigurationError(
                f"{name} must be True or False, got {getattr(given, name)!r:.40}"
            )
    for name, (kind, hint) in _KINDS.items():
        check_type(name, getattr(given, name), kind, hint=hint)
    for name in ("journal", "control"):
        value = getattr(given, name)
        check_type(name, value, str, os.PathLike, is_optional=True, hint="Name a file")
    if given.ping_mode not in ("message", "attach"):
        raise ConfigurationError(
            f"ping_mode is {given.ping_mode!r:.40}", hint="Use 'message' or 'attach'"
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
    """How often to ping, in its one form."""
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
            f"backlog_queue_count is {count!r:.60}",
            hint=f"Use a whole number from 1 to {BACKLOG_QUEUE_COUNT_MAX}",
        )


def _interval(name: str, given: object) -> timedelta:
    if isinstance(given, timedelta):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ConfigurationError(
            f"{name} is {given!r:.60}", hint="Use a timedelta or a number of seconds"
        )
    try:
        return timedelta(seconds=given)
    except OverflowError:
        raise ConfigurationError(f"{name} is far too long") from None


def _check_range(name: str, value: timedelta, low: timedelta, high: timedelta) -> None:
    if not low <= value <= high:
        raise ConfigurationError(
            f"{name} is {value.total_seconds():g} s",
            hint=f"Use {low.total_seconds():g} s to {high.total_seconds():g} s",
        )


def _ttl_policy(given: object) -> TtlPolicy:
    try:
        return TtlPolicy(given)
    except ValueError:
        words = ", ".join(repr(policy.value) for policy in TtlPolicy)
        raise ConfigurationError(f"ttl_policy is {given!r:.40}", hint=f"Use {words}") from None


def _patterns(given: object) -> tuple[str, ...]:
    """One text would be taken for a pattern of each of its letters, an asterisk among them."""
    if isinstance(given, tuple | list) and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise ConfigurationError(
        f"allowed_destinations is {given!r:.60}", hint="Use a tuple of patterns, as ('orders*',)"
    )


def _owners(given: object) -> tuple[str, ...]:
    if isinstance(given, tuple | list) and all(isinstance(each, str) and each for each in given):
        return tuple(given)
    raise ConfigurationError(
        f"accept_owners must be a tuple of addresses, got {given!r:.60}",
        hint="Use for example ('old.example.com',), or ('*',) for all",
    )


def _first_segment(name: str | None) -> str | None:
    if name is None:
        return None
    check_type("namespace_name", name, str, hint="Use the name of the primary namespace")
    canonical = parse_entity_path(name)
    if "/" in canonical:
        raise ConfigurationError(
            f"namespace_name is {name!r:.60}", hint="Use the name alone, without a slash"
        )
    return canonical

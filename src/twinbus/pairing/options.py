"""How two namespaces are paired (P2): one value, checked when it is built.

    options = SendAvailabilityPairedNamespaceOptions(secondary_manager, secondary_factory)
    await primary_factory.pair_namespace(options)

Rule 1: a value outside its range raises ConfigurationError here, before anything is contacted.
Rule 2: the only field that ever changes is ``backlog_queue_count``: pairing sets it to the number
        of queues that it really found or made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from twinbus.core.classifier import Classifier
from twinbus.core.envelope import TtlPolicy
from twinbus.core.rotation import RotationPolicy
from twinbus.core.watermarks import Thresholds
from twinbus.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError
from twinbus.pairing.hosting import SyphonHosting
from twinbus.pairing.occurrence import check_listener

if TYPE_CHECKING:
    from twinbus.pairing.factory import MessagingFactory
    from twinbus.pairing.manager import NamespaceManager
    from twinbus.pairing.occurrence import Occurrence

Interval: TypeAlias = timedelta | float
PingMode: TypeAlias = Literal["message", "attach"]

# A link for each is opened on demand, and an idle syphon polls each (Y3): more help nobody.
BACKLOG_QUEUE_COUNT_MAX: Final = 1_000
FAILOVER_INTERVAL_MAX: Final = timedelta(minutes=60)
PING_INTERVAL_MIN: Final = timedelta(seconds=1)
PING_INTERVAL_MAX: Final = timedelta(minutes=30)
ONE_MINUTE: Final = timedelta(minutes=1)


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
    """From 1. After pairing: the number of queues that were really found or made."""
    failover_interval: timedelta = ONE_MINUTE
    """How long an entity may fail before it is diverted, 0 to 60 minutes; timedelta or seconds.
    0: the first failure that survives one immediate retry."""
    enable_syphon: bool = False
    """Bring backlog messages home in this process."""
    ping_primary_interval: timedelta = field(default=ONE_MINUTE, kw_only=True)
    """How often a diverted entity is asked whether it is back, 1 s to 30 minutes."""
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
    control: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """A file with orders of an operator, as `twinbus pair failover` writes them; looked at every
    second. Who may write it may divert sends."""
    thresholds: Thresholds = field(default_factory=Thresholds, kw_only=True)
    """Which levels of the backlog are events."""
    on_event: Callable[[Occurrence], object] | None = field(default=None, kw_only=True)
    """Called with every event, on the event loop: be quick."""
    allowed_destinations: tuple[str, ...] = field(default=("*",), kw_only=True)
    """Patterns of the paths to which the syphon of this process delivers (Y6)."""
    ttl_policy: TtlPolicy = field(default=TtlPolicy.RESTART, kw_only=True)
    """What the time in the backlog does to a message's time to live (Y8); also as a word."""
    syphon: SyphonHosting = field(default_factory=SyphonHosting, kw_only=True)
    """Where the syphon of this process runs, when it is enabled: on Spark unless told."""

    def __post_init__(self) -> None:
        _check_count(self.backlog_queue_count)
        self._set("failover_interval", _interval("failover_interval", self.failover_interval))
        self._set(
            "ping_primary_interval",
            _interval("ping_primary_interval", self.ping_primary_interval),
        )
        _check_range(
            "failover_interval", self.failover_interval, timedelta(), FAILOVER_INTERVAL_MAX
        )
        _check_range(
            "ping_primary_interval",
            self.ping_primary_interval,
            PING_INTERVAL_MIN,
            PING_INTERVAL_MAX,
        )
        if not isinstance(self.enable_syphon, bool):
            raise ConfigurationError("enable_syphon is neither True nor False")
        if self.ping_mode not in ("message", "attach"):
            raise ConfigurationError(
                f"ping_mode is {self.ping_mode!r:.40}", hint="Use 'message' or 'attach'"
            )
        self._set("ttl_policy", _ttl_policy(self.ttl_policy))
        self._set("allowed_destinations", _patterns(self.allowed_destinations))
        check_listener(self.on_event)
        if self.namespace_name is not None:
            self._set("namespace_name", _first_segment(self.namespace_name))

    def found_queues(self, count: int) -> None:
        """Pairing tells how many backlog queues there really are."""
        self._set("backlog_queue_count", count)

    @property
    def journal_path(self) -> Path | None:
        return None if self.journal is None else Path(self.journal)

    @property
    def control_path(self) -> Path | None:
        return None if self.control is None else Path(self.control)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


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


def _first_segment(name: str) -> str:
    canonical = parse_entity_path(name)
    if "/" in canonical:
        raise ConfigurationError(
            f"namespace_name is {name!r:.60}", hint="Use the name alone, without a slash"
        )
    return canonical

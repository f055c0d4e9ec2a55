"""The settings of a syphon: one frozen value, which Spark gets as options.

Rule 1: it contains no secret: the two namespaces are references, resolved where they are used.
Rule 2: an unknown option is refused, with the most similar known one.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.common.entity_path import check_patterns
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.errors import ConfigurationError
from twinbus.metering.log_retention import check_keep_days
from twinbus.pairing.client.driver_name import DriverName, check_driver_name
from twinbus.spark.connection_refs import NamespaceRef, option_names
from twinbus.spark.driver_channel import LOOPBACK
from twinbus.spark.long_poll import POLL_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.drivers.interface import NamespaceAddress
    from twinbus.failover.backoff import Backoff
    from twinbus.mover.options import MoverOptions
    from twinbus.mover.planning.dispatcher import WorkLimits
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["SyphonSettings", "is_local"]

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
# Two chunks stay below the 2,048 unsettled deliveries that a link may have.
CHUNK_COUNT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonSettings:
    """Which backlog is moved, where to, and how fast."""

    primary: NamespaceRef
    secondary: NamespaceRef
    primary_name: str
    """The primary's name in the paths of its backlog queues."""
    queues: tuple[str, ...]
    """The backlog queues."""
    allowed: tuple[str, ...] = ("*",)
    """Patterns of the destinations that messages are delivered to (Y6)."""
    ttl_policy: TtlPolicy = TtlPolicy.RESTART
    owner: str | None = None
    """The mark of this pair (P21); None: derived from the primary's address and name."""
    accepted_owners: tuple[str, ...] = ()
    """Addresses of other pairs whose messages are moved as well; ``*``: all."""
    gone_grace_s: float = 600.0
    """How long a destination may be missing before its messages are dead-lettered."""
    rate_per_s: float | None = None
    """Messages a second, all tasks together; None: no limit."""
    chunk_count: int = 1_000
    """Messages of a task that may be sent and not yet completed: a kill may repeat these."""
    tasks: int = 2
    """Tasks of one batch."""
    batch_messages: int = 1_000_000
    batch_s: float = 15.0
    """A batch ends, and writes its receipts, after this many messages or seconds."""
    poll_s: float = POLL_S
    """Seconds that one long poll waits for a message (Y3)."""
    state_dir: str | None = None
    """Where control.json and status.json are, on the driver's machine."""
    run: str | None = None
    """The id of this run: it ends when control.json names another one."""
    driver_host: str = LOOPBACK
    """An address of the driver that executors can reach."""
    is_dry_run: bool = False
    metering: str | None = None
    """A directory for operations logs, on every machine that moves messages (C1)."""
    keep_days: int | None = None
    """Days after which files in that directory are deleted; None keeps them."""
    driver: DriverName = "amqp"
    """The library that moves messages: our lean client, or ``servicebus``, the official SDK."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("A syphon requires at least one backlog queue")
        check_patterns(self.allowed)
        if not 1 <= self.chunk_count <= CHUNK_COUNT_MAX:
            raise _invalid("chunk_count", self.chunk_count, f"Use 1 to {CHUNK_COUNT_MAX:,}")
        check_keep_days(self.keep_days)
        check_driver_name(self.driver)
        if not self.gone_grace_s >= 0:
            raise _invalid("gone_grace_s", self.gone_grace_s, "Use 0 seconds or more")
        for name in ("tasks", "batch_messages"):
            if getattr(self, name) < 1:
                raise _invalid(name, getattr(self, name), "Use a whole number of at least 1")
        for name in ("batch_s", "poll_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise _invalid(name, getattr(self, name), "Use a number of seconds above 0")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < math.inf:
            raise _invalid(
                "rate_per_s", self.rate_per_s, "Use a number above 0, or omit it for no limit"
            )

    # -- for the mover: most of Spark's processes only pass settings on, and load none of this --

    def mover_options(self, primary: NamespaceAddress) -> MoverOptions:
        """The options of a mover to the primary at this address."""
        from twinbus.mover.options import MoverOptions
        from twinbus.mover.planning.chunk_plan import DeliveryRules
        from twinbus.pairing.backlog_queues import owner_mark

        owner = owner_mark(primary, self.primary_name) if self.owner is None else self.owner
        return MoverOptions(
            rules=DeliveryRules(
                primary_name=self.primary_name,
                allowed=self.allowed,
                ttl_policy=self.ttl_policy,
                owner=owner,
                accepted_owners=self.accepted_owners,
            ),
            chunk_count=self.chunk_count,
            backoff=self.backoff,
        )

    @property
    def backoff(self) -> Backoff:
        from twinbus.failover.backoff import Backoff

        return Backoff(gone_grace_s=self.gone_grace_s)

    @property
    def limits(self) -> WorkLimits:
        from twinbus.mover.planning.dispatcher import WorkLimits

        return WorkLimits(
            tasks=self.tasks,
            messages_max=self.batch_messages,
            seconds_max=self.batch_s,
            rate_per_s=self.rate_per_s,
        )

    def on(self, spark: SparkSession) -> SyphonSettings:
        """The settings for a session: as many tasks as it has cores, and its driver's address."""
        if is_local(spark):
            return replace(self, tasks=_cores(spark) or self.tasks)
        host = spark.conf.get("spark.driver.host", None) or LOOPBACK
        return replace(self, tasks=max(_cores(spark), self.tasks), driver_host=host)

    # -- the two namespaces ---------------------------------------------------------------

    def open_primary(self) -> AbstractAsyncContextManager[NamespaceConnection]:
        return self.primary.open(
            metering=self.metering,
            keep_days=self.keep_days,
            name=self.primary_name,
            driver=self.driver,
        )

    def open_secondary(self) -> AbstractAsyncContextManager[NamespaceConnection]:
        return self.secondary.open(
            metering=self.metering, keep_days=self.keep_days, driver=self.driver
        )

    # -- as options -----------------------------------------------------------------------

    def to_options(self) -> dict[str, str]:
        """The arguments of ``spark.readStream.options()``."""
        options = self.primary.to_options(role=PRIMARY) | self.secondary.to_options(role=SECONDARY)
        for name, (field, _read, write) in _FIELDS.items():
            value = getattr(self, field)
            if value is not None:
                options[name] = write(value)
        return options

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SyphonSettings:
        """The value that to_options() was called on; Spark does not keep the case of names."""
        lowered = {name.lower(): value for name, value in options.items()}
        _check_names(lowered)
        values: dict[str, Any] = {}
        for name, (field, read, _write) in _FIELDS.items():
            if (text := lowered.get(name.lower())) is not None:
                values[field] = _read(name, text, read)
        for name in ("primaryName", "queues"):
            if _FIELDS[name][0] not in values:
                raise ConfigurationError(f"The option {name} is missing")
        return cls(
            primary=NamespaceRef.from_options(options, role=PRIMARY),
            secondary=NamespaceRef.from_options(options, role=SECONDARY),
            **values,
        )


def is_local(spark: SparkSession) -> bool:
    """Whether all of Spark is on this machine, in one JVM. A Connect server may be anywhere."""
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return not is_connect and (spark.conf.get("spark.master", None) or "").startswith("local")


def _cores(spark: SparkSession) -> int:
    """How many tasks may run at once; 0 when the session does not provide it."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, RuntimeError):  # Spark Connect: the server has the context.
        return 0


_Field = tuple[str, Callable[[str], Any], Callable[[Any], str]]


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def _parse_flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_FIELDS: Final[Mapping[str, _Field]] = {
    "primaryName": ("primary_name", str, str),
    "queues": ("queues", _parse_list, ",".join),
    "allow": ("allowed", _parse_list, ",".join),
    "ttlPolicy": ("ttl_policy", TtlPolicy, lambda policy: policy.value),
    "owner": ("owner", str, str),
    "acceptOwners": ("accepted_owners", _parse_list, ",".join),
    "goneGrace": ("gone_grace_s", float, repr),
    "rate": ("rate_per_s", float, repr),
    "chunk": ("chunk_count", int, str),
    "tasks": ("tasks", int, str),
    "batchMessages": ("batch_messages", int, str),
    "batchSeconds": ("batch_s", float, repr),
    "maxWaitTime": ("poll_s", float, repr),
    "stateDir": ("state_dir", str, str),
    "run": ("run", str, str),
    "driverHost": ("driver_host", str, str),
    "metering": ("metering", str, str),
    "keepDays": ("keep_days", int, str),
    "driver": ("driver", str, str),
    "dryRun": ("is_dry_run", _parse_flag, lambda value: str(value).lower()),
}


def _check_names(names: Iterable[str]) -> None:
    known = [*_FIELDS, *option_names(PRIMARY), *option_names(SECONDARY)]
    by_lower = {name.lower(): name for name in known}
    for name in names:
        if name not in by_lower:
            near = difflib.get_close_matches(name, by_lower, n=1)
            hint = f"Did you mean {by_lower[near[0]]}?" if near else f"Use {', '.join(known)}"
            raise ConfigurationError(f"Unknown option of the syphon: {name!r:.60}", hint=hint)


def _read(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"Invalid value for the option {name}: {text!r:.60}") from None


def _invalid(name: str, value: object, hint: str) -> ConfigurationError:
    return ConfigurationError(f"Invalid value for {name}: {value!r:.60}", hint=hint)

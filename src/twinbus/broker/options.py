"""Everything about a broker that can be set, in one frozen value."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

from twinbus.amqp.limits import AmqpLimits
from twinbus.errors import ConfigurationError
from twinbus.metering.log_retention import check_keep_days

# A client needs a moment between the attach of a link and its first use.
IDLE_DETACH_S_MIN: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleThresholds:
    """Beyond these the broker refuses sends with ServerBusy before it stores them (rule M11)."""

    pending_bytes_max: int = 64 << 20
    """Bytes in memory that are not on disk yet, for one namespace."""
    disk_free_bytes_min: int = 256 << 20
    """Free space on the data directory's disk below which sends are refused."""
    commit_latency_s_max: float = 5.0
    """A commit that takes longer than this means that the disk is too slow."""
    entity_messages_per_s_max: float | None = None
    """Sends into one queue; None is unlimited."""
    namespace_messages_per_s_max: float | None = None
    """Sends into one namespace; None is unlimited."""

    def __post_init__(self) -> None:
        for name in ("entity_messages_per_s_max", "namespace_messages_per_s_max"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise ConfigurationError(
                    f"Option {name} must be greater than 0, got {rate!r}",
                    hint="Remove the option for no limit",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a broker runs."""

    data_directory: Path | None = None
    """Where messages and keys are kept; None keeps everything in memory."""
    host: str = "127.0.0.1"
    """The address to listen on: loopback by default."""
    admin_port: int | None = 0
    """The port of the administration over HTTP; 0 takes a free one, None opens none."""
    limits: AmqpLimits = field(default_factory=AmqpLimits)
    thresholds: ThrottleThresholds = field(default_factory=ThrottleThresholds)
    metering_directory: Path | None = None
    """Directory of the operations log; None is a folder of the data directory, or no log without
    a data directory."""
    audit: bool = False
    """Whether to write the audit log, with what happens to each message."""
    connections_max: int = 5_000
    """Connections with a valid token to one namespace; Service Bus allows as many."""
    strangers_max: int = 512
    """Connections without a token, for each port. If there are more, one of the address with the
    most of them is closed: the one that made no progress for the longest time. A handshake takes
    milliseconds, so thousands of clients can connect within a second."""
    tarpit_max: int = 0
    """How many of the connections that were evicted in a flood stay open for some seconds without
    being served, for each port (broker/listener/tarpit.py). ``twinbus serve`` uses the file
    descriptors that are left; a broker inside an application leaves them to the application."""
    links_max: int = 32_768
    """Links of all connections to one namespace. At the maximum, keys that have their share of
    them open no more; others still do. 5,000 connections of the Azure SDK, each with a sender,
    a receiver and their management links, have 25,000."""
    unsettled_max: int = 262_144
    """Unsettled deliveries of one namespace; shared like the links."""
    tls_certificate: Path | None = None
    """A certificate to use instead of the broker's own, with its chain (PEM)."""
    tls_key: Path | None = None
    """The key of that certificate (PEM, without a password)."""
    tls_names: tuple[str, ...] = ()
    """More names for the broker's own certificate: host names and addresses that clients use."""
    tls_only: bool = False
    """Whether plain AMQP and plain HTTP are refused on every port."""
    faults: bool | None = None
    """Whether faults, stops and the clock can be controlled over HTTP. None: only if the broker
    listens on loopback alone. Otherwise any client with the Manage claim could stop a service."""
    keep_days: int | None = None
    """Days after which files of the operations and audit logs are deleted; None keeps them."""
    idle_detach_s: float | None = None
    """After how long an idle link is detached; Azure does it after 600 s. None: never."""
    close_timeout_s: float = 5.0
    """How long a clean stop waits for writes to disk."""

    def __post_init__(self) -> None:
        self._check_tls()
        for name in ("connections_max", "strangers_max"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"Option {name} must be 1 or more, got {getattr(self, name)!r}",
                    hint="Remove the option for the default",
                )
        check_keep_days(self.keep_days)
        if self.idle_detach_s is not None and not IDLE_DETACH_S_MIN <= self.idle_detach_s < inf:
            raise ConfigurationError(
                f"Idle links cannot be detached after {self.idle_detach_s:g} s",
                hint=f"Use {IDLE_DETACH_S_MIN:g} s or more, for example 10m",
            )
        if self.audit and self.metering_path is None:
            raise ConfigurationError(
                "The audit log has no directory",
                hint="Set a data directory or a metering directory",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the broker."""
        return is_loopback(self.host)

    @property
    def has_faults(self) -> bool:
        return self.is_loopback if self.faults is None else self.faults

    @property
    def metering_path(self) -> Path | None:
        if self.metering_directory is not None or self.data_directory is None:
            return self.metering_directory
        return self.data_directory / "metering"

    def _check_tls(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigurationError(
                "A TLS certificate and its key must be set together",
                hint="Set both files, or neither",
            )
        for name in self.tls_names:
            if not (name.isascii() and name.isprintable() and 0 < len(name) <= 253) or " " in name:
                raise ConfigurationError(
                    f"Invalid name for a TLS certificate: {name[:60]!a}",
                    hint="Use an IP address or a host name, an international one in its xn-- form",
                )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is a loopback address; a name is not resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

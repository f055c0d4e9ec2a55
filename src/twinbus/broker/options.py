"""Everything about a broker that can be set, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinbus.amqp.limits import AmqpLimits
from twinbus.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Above these the broker answers ServerBusy before it stores anything (rule M11)."""

    pending_bytes_max: int = 64 << 20
    """Accepted into memory but not yet on disk, for one namespace."""
    disk_free_bytes_min: int = 256 << 20
    """Room on the data directory's disk below which sends are refused."""
    commit_latency_s_max: float = 5.0
    """A commit under way for longer than this means the disk does not keep up."""
    entity_messages_per_s_max: float | None = None
    """Sends into one queue; None is unlimited."""
    namespace_messages_per_s_max: float | None = None
    """Sends into one namespace; None is unlimited."""

    def __post_init__(self) -> None:
        for name in ("entity_messages_per_s_max", "namespace_messages_per_s_max"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise ConfigurationError(
                    f"{name} must be above 0, not {rate!r}", hint="Leave it out for no limit"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a broker runs."""

    data_directory: Path | None = None
    """Where messages and keys are kept; None keeps everything in memory."""
    host: str = "127.0.0.1"
    """The address to listen on: loopback unless told otherwise."""
    admin_port: int | None = 0
    """The port of the HTTP side; 0 takes a free one, None opens none."""
    limits: AmqpLimits = field(default_factory=AmqpLimits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    metering_directory: Path | None = None
    """Where the operations log goes; None is below the data directory, and nowhere without one."""
    audit: bool = False
    """Whether to log, beside the operations, what happens to each message."""
    connections_max: int = 5_000
    """Connections to one namespace; Service Bus allows as many."""
    tls_certificate: Path | None = None
    """A certificate to show instead of our own, with its chain (PEM)."""
    tls_key: Path | None = None
    """The key of that certificate (PEM, without a password)."""
    tls_names: tuple[str, ...] = ()
    """More names for our own certificate: host names and addresses that clients use."""
    tls_only: bool = False
    """Whether plain AMQP and plain HTTP are refused on every port."""
    close_timeout_s: float = 5.0
    """How long a clean stop waits for what is on its way to disk."""

    def __post_init__(self) -> None:
        self._check_tls()
        if self.audit and self.metering_path is None:
            raise ConfigurationError(
                "an audit log needs a place", hint="Name a data directory, or one for metering"
            )

    @property
    def metering_path(self) -> Path | None:
        if self.metering_directory is not None or self.data_directory is None:
            return self.metering_directory
        return self.data_directory / "metering"

    def _check_tls(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigurationError(
                "A certificate and its key come together", hint="Give both files, or neither"
            )
        for name in self.tls_names:
            if not (name.isascii() and name.isprintable() and 0 < len(name) <= 253) or " " in name:
                raise ConfigurationError(
                    f"{name[:60]!a} cannot stand in a certificate",
                    hint="Use a host name, in its xn-- form if it is international, or an address",
                )

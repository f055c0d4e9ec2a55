"""The options of the AMQP client, and its endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.limits import AmqpLimits
from twinbus.common.connection_string import PLAIN_PORT, TLS_PORT, ConnectionString
from twinbus.drivers.interface import NamespaceAddress

__all__ = ["CLIENT_LIMITS", "AmqpOptions", "Endpoint"]

# The largest message of any tier of Service Bus, with room for its annotations.
_MESSAGE_BYTES_MAX: Final = 104_857_600 + 1_048_576

# After half a minute without traffic an empty frame is sent; after two minutes without traffic the
# connection counts as lost.
_IDLE_TIMEOUT_S: Final = 60.0

CLIENT_LIMITS: Final = AmqpLimits(
    idle_timeout_s=_IDLE_TIMEOUT_S,
    message_size_bytes_max=_MESSAGE_BYTES_MAX,
    batch_size_bytes_max=_MESSAGE_BYTES_MAX,
    partial_bytes_per_connection_max=2 * _MESSAGE_BYTES_MAX,
    # A reply may hold a thousand peeked messages, each in a map.
    compound_count_max=1_048_576,
    value_count_max=4_194_304,
)
"""The limits for the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpOptions:
    """How to connect."""

    ca_file: str | None = None
    """A file with the certificate authority that signed the service's certificate, if this
    machine does not trust it already."""
    limits: AmqpLimits = CLIENT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The AMQP endpoint of a namespace."""

    host: str
    port: int | None = None
    """None: the default port."""
    uses_tls: bool = True

    @classmethod
    def of(cls, parsed: ConnectionString) -> Endpoint:
        return cls(host=parsed.host, port=parsed.port, uses_tls=parsed.uses_tls)

    @property
    def address(self) -> NamespaceAddress:
        usual = TLS_PORT if self.uses_tls else PLAIN_PORT
        return NamespaceAddress(self.host, self.port or usual)

    def audience(self, path: str) -> str:
        """The resource of a token for an entity."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"sb://{host}{port}/{path}"

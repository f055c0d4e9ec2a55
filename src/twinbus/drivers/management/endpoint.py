"""Which door a namespace has for HTTP.

    sb://contoso.servicebus.windows.net      https, port 443
    sb://localhost:5672 (emulator flag)      http on the same port: our broker serves both there
    sb://localhost      (emulator flag)      http on port 5300, as the official emulator does

Rule 1: plain HTTP is spoken only where the connection string speaks plain AMQP.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.connection_string import ConnectionString
from twinbus.errors import ConfigurationError

__all__ = ["AdministrationEndpoint"]

HTTPS_PORT: Final = 443
EMULATOR_PORT: Final = 5300
"""Where the official emulator, and ``twinbus serve``, have their HTTP side."""


@dataclass(frozen=True, slots=True)
class AdministrationEndpoint:
    """A host, a port and whether TLS is spoken there."""

    host: str
    port: int
    uses_tls: bool

    @classmethod
    def of(
        cls, parsed: ConnectionString, *, administration_port: int | None = None
    ) -> AdministrationEndpoint:
        """The door of the namespace that a connection string names."""
        if administration_port is not None and not 1 <= administration_port <= 65_535:
            raise ConfigurationError(
                f"administration_port is {administration_port!r}",
                hint="Use a number from 1 to 65535",
            )
        usual = HTTPS_PORT if parsed.uses_tls else EMULATOR_PORT
        return cls(parsed.host, administration_port or parsed.port or usual, parsed.uses_tls)

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.uses_tls and self.port == HTTPS_PORT
        return host if is_usual else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.uses_tls else 'http'}://{self.authority}/"

    def url_of(self, target: str) -> str:
        """The URL here of an entity that is given by its path or URL; whatever host that names, a
        token is made out to this one."""
        _scheme, is_url, rest = target.strip().partition("://")
        return f"{self.url}{rest.partition('/')[2] if is_url else target.strip()}"

    def tls_context(self, ca_file: str | Path | None) -> ssl.SSLContext | None:
        """What verifies the other side; None where plain HTTP is spoken."""
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context()
            if ca_file is not None:
                context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise ConfigurationError(
                f"the certificates in {str(ca_file)!r} cannot be read: {error.strerror or error}",
                hint="Name a PEM file with the authority's certificate",
            ) from error
        return context

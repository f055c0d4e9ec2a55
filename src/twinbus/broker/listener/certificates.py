"""Stores the certificate of a broker, and renews it when necessary.

    <data>/tls/ca.pem          what clients trust; world-readable
    <data>/tls/authority.pem   the authority with its key   (0600)
    <data>/tls/server.pem      the certificate with its key (0600)

Rule 1: a certificate is created when it is first needed, and again when it expires soon or when the
        names of the broker have changed. The authority stays the same, so that clients that trust
        it are not affected, unless it may not sign for a configured name. The machine's own name,
        which changes with every container, is left out in that case.
Rule 2: TLS 1.2 or later. No compression, no renegotiation, no session tickets and thus no early
        data: nothing can be replayed.
Rule 3: the user's own certificate is used as it is and never changed.
Rule 4: when renewal fails, the existing certificate stays in use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.broker.storage.data_directory import read_private, write_private
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.broker.listener.certificate_authority import IssuedCertificate

logger = logging.getLogger("twinbus.broker")

DAY_S: Final = 86_400
# A month before the expiry there is time to notice that renewal fails.
RENEW_BEFORE_S: Final = 30 * DAY_S
# After a failed attempt.
RETRY_S: Final = 3_600
# No certificate is valid longer than the authority that signed it: they last a year.
RENEW_AUTHORITY_BEFORE_S: Final = 400 * DAY_S

LOCAL_NAMES: Final = ("localhost", "*.localhost", "127.0.0.1", "::1")
# ECDHE only, so that a key that leaks later does not decrypt recorded connections.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_HEADLINE: Final = b"twinbus "


@dataclass(frozen=True, slots=True)
class Credentials:
    """The TLS context of the listeners, and when it expires or is renewed."""

    context: ssl.SSLContext
    expires_s: float
    renew_at_s: float


class CertificateStore:
    """The certificate of one broker. ``prepare`` may be called on any thread."""

    def __init__(
        self,
        data_directory: Path | None,
        *,
        names: tuple[str, ...] = (),
        given: tuple[Path, Path] | None = None,
    ) -> None:
        self._data_directory = data_directory
        self._names = tuple(dict.fromkeys((*LOCAL_NAMES, *(name.lower() for name in names))))
        self._given = given
        self._passing: Path | None = None
        self._credentials: Credentials | None = None
        self._lock = threading.Lock()

    @property
    def ca_path(self) -> Path | None:
        """The file that clients trust, created if necessary; None for a user's certificate."""
        if self._given is not None:
            return None
        self.prepare()
        return self._directory() / "ca.pem"

    @property
    def expires_s(self) -> float | None:
        """When the certificate expires (Unix time); None before it was first used."""
        return None if self._credentials is None else self._credentials.expires_s

    def ready(self) -> ssl.SSLContext | None:
        """The context, if nothing has to be created or read for it."""
        credentials = self._credentials
        # Clients check a certificate against the real time, so this never uses a clock for tests.
        if credentials is None or time.time() >= credentials.renew_at_s:
            return None
        return credentials.context

    async def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self.ready() or (await asyncio.to_thread(self.prepare)).context

    def prepare(self) -> Credentials:
        """Ensure a valid certificate; raises ConfigurationError when that is not possible."""
        with self._lock:
            if self._credentials is None:
                self._credentials = self._obtain()
            elif self.ready() is None:
                self._credentials = self._renewed(self._credentials)
            return self._credentials

    def _obtain(self) -> Credentials:
        if self._given is not None:
            return self._read_given(self._given)
        try:
            return self._keep_own()
        except OSError as error:
            raise ConfigurationError(
                f"The TLS certificate cannot be stored: {error.strerror}",
                hint="Check the data directory and its disk",
            ) from error

    def _renewed(self, old: Credentials) -> Credentials:
        try:
            return self._obtain()
        except ConfigurationError as error:
            logger.warning("TLS certificate could not be renewed: %s", error)
            return replace(old, renew_at_s=time.time() + RETRY_S)

    def close(self) -> None:
        """Delete the temporary directory, if there is one."""
        if self._passing is not None:
            shutil.rmtree(self._passing, ignore_errors=True)
            self._passing = None

    # -- the user's own -------------------------------------------------------------------

    def _read_given(self, given: tuple[Path, Path]) -> Credentials:
        from twinbus.broker.listener.certificate_authority import expiry_of

        certificate, key = given
        try:
            context = _server_context(certificate, key)
            expires_s = expiry_of(certificate.read_bytes())
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"The certificate {certificate.name!r} with the key {key.name!r} cannot be used: "
                f"{reason}",
                hint="Use PEM files of one certificate and its key, without a password",
            ) from None
        if expires_s < time.time():
            logger.warning("TLS certificate %s has expired", certificate.name)
        return Credentials(context, expires_s, renew_at_s=float("inf"))

    # -- the broker's own -----------------------------------------------------------------

    def _directory(self) -> Path:
        if self._data_directory is not None:
            return self._data_directory / "tls"
        if self._passing is None:
            self._passing = Path(tempfile.mkdtemp(prefix="twinbus-tls-"))
        return self._passing

    def _keep_own(self) -> Credentials:
        directory = self._directory()
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        existing = self._read_existing(directory / "server.pem", directory / "ca.pem")
        if existing is None:
            self._make(directory)
            existing = self._read_existing(directory / "server.pem", directory / "ca.pem")
        if existing is None:
            raise ConfigurationError(
                f"The TLS certificate in {str(directory)!r} cannot be used",
                hint="Delete the directory, and the broker creates a new certificate",
            )
        return existing

    def _read_existing(self, server: Path, ca: Path) -> Credentials | None:
        """The certificate in the directory, if it is valid for these names."""
        content = read_private(server)
        headline = _headline(content or b"")
        if content is None or headline is None or not ca.exists():
            return None
        begins_s, expires_s = headline.get("begins_s"), headline.get("expires_s")
        if not isinstance(begins_s, int) or not isinstance(expires_s, int):
            return None
        renew_at_s = expires_s - RENEW_BEFORE_S
        # If the clock was ahead when the certificate was created, it is not valid yet.
        names = headline.get("names")
        if names not in ([*self._names], [*self._asked_names()]):
            return None
        if not begins_s <= time.time() < renew_at_s:
            return None
        try:
            return Credentials(_server_context(server), expires_s, renew_at_s)
        except ssl.SSLError:
            return None

    def _make(self, directory: Path) -> None:
        from twinbus.broker.listener.certificate_authority import issue, missing_names

        authority = self._authority(directory / "authority.pem")
        _write_public(directory / "ca.pem", authority.certificate_pem)
        names = self._names
        if missing_names(authority, names):
            names = self._asked_names()
            logger.warning(
                "TLS authority cannot sign for %s: the certificate does not contain this name. "
                "If clients use it, delete %s and distribute the new ca.pem to clients",
                socket.gethostname(),
                directory,
            )
        write_private(directory / "server.pem", issue(authority, names, time.time()).bundle)

    def _asked_names(self) -> tuple[str, ...]:
        """All names but the machine's own, unless that is a local one."""
        own = socket.gethostname().lower()
        return tuple(name for name in self._names if name != own or name in LOCAL_NAMES)

    def _authority(self, path: Path) -> IssuedCertificate:
        """The existing authority, or a new one."""
        from twinbus.broker.listener.certificate_authority import (
            make_authority,
            missing_names,
            read_bundle,
        )

        content = read_private(path)
        if content is not None:
            try:
                existing = read_bundle(content)
                left_s = existing.certificate.not_valid_after_utc.timestamp() - time.time()
                missing = missing_names(existing, self._asked_names())
                if left_s > RENEW_AUTHORITY_BEFORE_S and not missing:
                    return existing
                if missing:
                    logger.warning("TLS authority cannot sign for %s", ", ".join(missing))
            except ValueError:
                logger.warning("TLS authority cannot be read and is replaced")
            logger.warning("TLS authority is new: distribute the new ca.pem to clients")
        created = make_authority(socket.gethostname(), time.time(), self._names)
        write_private(path, created.bundle)
        return created


def names_for(host: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names, beside the local ones, under which clients may reach a broker on that host."""
    if host in ("", "0.0.0.0", "::"):
        # Every address of this machine: only its name is known.
        return (socket.gethostname(), *more)
    return more if host in LOCAL_NAMES else (host, *more)


def _server_context(certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_ciphers(CIPHERS)
    # Without a password OpenSSL would ask for one on the terminal, and wait.
    context.load_cert_chain(certificate, key, password=lambda: b"")
    return context


def _headline(content: bytes) -> dict[str, Any] | None:
    first, _, _ = content.partition(b"\n")
    try:
        headline = json.loads(first.removeprefix(_HEADLINE))
    except ValueError:
        return None
    return headline if isinstance(headline, dict) else None


def _write_public(path: Path, content: bytes) -> None:
    write_private(path, content)
    os.chmod(path, 0o644)

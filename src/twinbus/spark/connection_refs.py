"""References to a namespace and its credential, which Spark may show to every user.

    connectionStringEnv       the name of an environment variable, in the process that connects
    connectionStringFile      a file, on the machine that connects
    credentialProvider        "package.module:callable", called in the process that connects
    fullyQualifiedNamespace   a host; the credential is the identity of the machine that connects
    connectionString          the secret itself: for tests on one machine

A reference travels in options, plans and partitions; the secret is read where it is needed. For
one of several namespaces the options carry its role: ``primaryConnectionStringEnv``.

A raw connection string is accepted with a warning, and is for local masters. A task in another JVM
than the driver's refuses to connect with it; by then Spark has carried it there, inside the
pickled reader or writer. It cannot be refused sooner: Spark's Python processes do not get the
master's address, but all processes of one JVM have the same scratch directories, with a random
name.

Rule 1: a secret is read when a connection is opened, in that process, and kept in no other one.
Rule 2: no secret is in a repr or an error; of a provider's error only the type is reported.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.common.connection_string import (
    CONNECTION_STRING_LENGTH_MAX,
    ConnectionString,
    namespace_at,
    parse_connection_string,
)
from twinbus.errors import ConfigurationError
from twinbus.pairing.client.environment import NamespaceReference

if TYPE_CHECKING:
    from twinbus.drivers.credentials import Credential, IdentityCredential
    from twinbus.pairing.client.driver_name import DriverName
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["NamespaceRef", "RefKind", "option_names"]

_LOG = logging.getLogger("twinbus.spark.references")

_CA_FILE: Final = "caFile"
_ADMINISTRATION_PORT: Final = "administrationPort"
_PROVIDER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


class RefKind(StrEnum):
    """How a namespace is referred to; the value is the option's name."""

    ENV = "connectionStringEnv"
    FILE = "connectionStringFile"
    PROVIDER = "credentialProvider"
    HOST = "fullyQualifiedNamespace"
    RAW = "connectionString"


def option_names(role: str = "") -> tuple[str, ...]:
    """The options that name a namespace, as they are documented; Spark ignores their case."""
    return tuple(_with_role(name, role) for name in (*RefKind, _CA_FILE, _ADMINISTRATION_PORT))


@dataclass(frozen=True, slots=True, repr=False)
class NamespaceRef:
    """A namespace by reference; small, and safe to pickle unless its kind is RAW."""

    kind: RefKind
    text: str
    """A variable, a path, a callable or a host; a connection string when the kind is RAW."""
    ca_file: str | None = None
    administration_port: int | None = None
    jvm: str | None = None
    """When the kind is RAW: the mark of the JVM whose process read the options; see _own_jvm()."""

    def __repr__(self) -> str:
        shown = "..." if self.kind is RefKind.RAW else repr(self.text)
        return f"NamespaceRef({self.kind.value}={shown})"

    # -- options --------------------------------------------------------------------------

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, role: str = "") -> NamespaceRef:
        """The namespace that the options of a data source name; other options are ignored."""
        lowered = {name.lower(): value.strip() for name, value in options.items()}
        texts = {kind: lowered.get(_with_role(kind, role).lower(), "") for kind in RefKind}
        kinds = [kind for kind, text in texts.items() if text]
        if len(kinds) != 1:
            raise _not_one(kinds, role)
        return cls(
            kinds[0],
            _check_text(kinds[0], texts[kinds[0]], role),
            lowered.get(_with_role(_CA_FILE, role).lower()) or None,
            _parse_port(lowered.get(_with_role(_ADMINISTRATION_PORT, role).lower()), role),
            _accept_raw(_with_role(RefKind.RAW, role)) if kinds[0] is RefKind.RAW else None,
        )

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> NamespaceRef:
        return cls(RefKind.FILE, os.fspath(path))

    @classmethod
    def of_env(cls, name: str) -> NamespaceRef:
        return cls(RefKind.ENV, name)

    def to_options(self, role: str = "") -> dict[str, str]:
        """The options from which from_options() makes an equal reference."""
        options = {self.kind.value: self.text}
        if self.ca_file is not None:
            options[_CA_FILE] = self.ca_file
        if self.administration_port is not None:
            options[_ADMINISTRATION_PORT] = str(self.administration_port)
        return {_with_role(name, role): text for name, text in options.items()}

    # -- connections ----------------------------------------------------------------------

    def open(
        self,
        *,
        metering: str | None = None,
        keep_days: int | None = None,
        name: str | None = None,
        driver: DriverName = "amqp",
    ) -> AbstractAsyncContextManager[NamespaceConnection]:
        """The namespace, for as long as the context lasts; the secret is read on entering.
        ``metering`` is the directory for operations logs, ``keep_days`` how long files in it are
        kept, and ``name`` the namespace's name in them. ``driver`` is the library for messages."""
        directory = None if metering is None else Path(metering)
        return self._open(directory, keep_days, name, driver)

    @asynccontextmanager
    async def _open(
        self, metering: Path | None, keep_days: int | None, name: str | None, driver: DriverName
    ) -> AsyncIterator[NamespaceConnection]:
        # Most of Spark's processes only pass a reference on: they need not load the drivers.
        from twinbus.pairing.client.namespace_connection import open_namespace, open_namespace_with

        ca_file = None if self.ca_file is None else Path(self.ca_file)
        if self.kind is RefKind.HOST:
            reference = NamespaceReference(self.kind.value, fully_qualified_namespace=self.text)
            opening = open_namespace(
                reference,
                ca_file=ca_file,
                administration_port=self.administration_port,
                metering=metering,
                keep_days=keep_days,
                name=name,
                driver=driver,
            )
        else:
            parsed, credential = await self._resolve()
            opening = open_namespace_with(
                parsed,
                credential,
                ca_file=ca_file,
                administration_port=self.administration_port,
                metering=metering,
                keep_days=keep_days,
                name=name,
                driver=driver,
            )
        async with opening as namespace:
            yield namespace

    async def _resolve(self) -> tuple[ConnectionString, Credential | IdentityCredential]:
        match self.kind:
            case RefKind.ENV:
                found: Any = _from_environment(self.text)
            case RefKind.FILE:
                found = _from_file(self.text)
            case RefKind.PROVIDER:
                found = await _from_provider(self.text)
            case _:
                self._check_jvm()
                found = self.text
        if isinstance(found, str):
            from twinbus.drivers.credentials import credential_in

            parsed = parse_connection_string(found.strip())
            return parsed, credential_in(parsed)
        host, credential = found
        return namespace_at(host), credential

    def _check_jvm(self) -> None:
        here = _own_jvm()
        if self.jvm is not None and here is not None and self.jvm != here:
            raise ConfigurationError(
                f"{RefKind.RAW.value} is for local masters only; this task does not run in the "
                "driver's JVM",
                hint=f"Use {RefKind.FILE.value}, {RefKind.ENV.value} or {RefKind.PROVIDER.value}",
            )


# -- options ------------------------------------------------------------------------------


def _own_jvm() -> str | None:
    """A value that all Python processes of this JVM share, and no others; None outside of Spark."""
    return os.environ.get("SPARK_LOCAL_DIRS") or None


@cache
def _accept_raw(option: str) -> str | None:
    """Warned of once for each process."""
    _LOG.warning(
        "Option %s contains a secret, which Spark copies to every task: use %s, %s or %s",
        option,
        *(kind.value for kind in (RefKind.FILE, RefKind.ENV, RefKind.PROVIDER)),
    )
    return _own_jvm()


def _with_role(name: str, role: str) -> str:
    return role + name[0].upper() + name[1:] if role else name


def _not_one(kinds: list[RefKind], role: str) -> ConfigurationError:
    names = [_with_role(kind, role) for kind in kinds]
    best = ", ".join(_with_role(kind, role) for kind in RefKind if kind is not RefKind.RAW)
    whose = f"the {role} namespace" if role else "the namespace"
    if not names:
        return ConfigurationError(f"No option names {whose}", hint=f"Set one of {best}")
    return ConfigurationError(
        f"{len(names)} options name {whose}: {', '.join(names)}", hint="Set only one of them"
    )


def _check_text(kind: RefKind, text: str, role: str) -> str:
    option = _with_role(kind, role)
    if kind is RefKind.PROVIDER and not _PROVIDER.fullmatch(text):
        raise ConfigurationError(
            f"Invalid value for the option {option}: not the name of a callable",
            hint="Use the form package.module:callable",
        )
    # If the options were confused, Spark would show the secret as a name or a path.
    has_secret = any(word in text.lower() for word in ("endpoint=", "sharedaccess"))
    if kind is not RefKind.RAW and has_secret:
        raise ConfigurationError(
            f"The option {option} contains a connection string instead of a reference to one",
            hint="Store the connection string in a file or an environment variable, and set the "
            "option to its name",
        )
    if kind is RefKind.HOST:
        namespace_at(text)
    return text


def _parse_port(text: str | None, role: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text, re.ASCII) or int(text) > 65_535:
        raise ConfigurationError(
            f"Invalid value for the option {_with_role(_ADMINISTRATION_PORT, role)}",
            hint="Use a number from 1 to 65535",
        )
    return int(text)


# -- secrets ------------------------------------------------------------------------------


def _from_environment(name: str) -> str:
    text = os.environ.get(name, "")
    if not text.strip():
        raise ConfigurationError(
            f"The environment variable {name!r} is not set in the process that connects",
            hint="Executors connect as well: set it on every worker, or use connectionStringFile",
        )
    return text


def _from_file(path: str) -> str:
    try:
        # If the path is a pipe, a task must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            is_file = stat.S_ISREG(mode)
            content = file.read(CONNECTION_STRING_LENGTH_MAX * 2) if is_file else b""
    except OSError as error:
        raise ConfigurationError(
            f"The connection string file {path!r} cannot be read: {error.strerror}",
            hint="Make it readable for the user of every process that connects",
        ) from None
    if not is_file:
        raise ConfigurationError(
            f"{path!r} is not a regular file",
            hint="Name a file that contains the connection string",
        )
    if mode & _READABLE_BY_OTHERS and os.name == "posix":
        _warn_of_readers(path)
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigurationError(f"The file {path!r} does not contain a connection string")
    return text


@cache
def _warn_of_readers(path: str) -> None:
    """Once for each file and process."""
    _LOG.warning("Other users can read the connection string in %s: run chmod 600 on it", path)


async def _from_provider(name: str) -> Any:
    try:
        found = await asyncio.to_thread(_provider(name))
        if inspect.isawaitable(found):
            found = await found
    except ConfigurationError:
        raise
    except Exception as error:
        # Its text, or that of its cause, may contain the secret.
        raise ConfigurationError(
            f"The credential provider {name!r} failed with {type(error).__name__}",
            hint="Call it in a Python shell on the machine that connects",
        ) from None
    if isinstance(found, str) or _is_pair(found):
        return found
    raise ConfigurationError(
        f"The credential provider {name!r} returned a {type(found).__name__}",
        hint="Return a connection string, or a host name and a credential",
    )


def _provider(name: str) -> Callable[[], Any]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"The credential provider {name!r} cannot be imported: {type(error).__name__}",
            hint="Install its package on every machine that connects",
        ) from None
    if not callable(found):
        raise ConfigurationError(f"The credential provider {name!r} is not callable")
    callable_found: Callable[[], Any] = found
    return callable_found


def _is_pair(found: object) -> bool:
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str)

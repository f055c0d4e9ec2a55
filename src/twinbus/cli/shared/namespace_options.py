"""The options that select the namespace, or the pair, of a command.

The namespace may be on Azure, the official emulator or a twinbus broker.

    twinbus queue list                                     the environment's primary
    twinbus queue list --secondary                         its secondary
    twinbus queue list --connection-string env:SHOP        another variable
    twinbus queue list --connection-string file:shop.txt   a file

    @with_namespace
    def show(path: ..., *, where: NamespaceTarget) -> None: ...

    @with_pair
    def plan(*, where: PairTarget) -> None: ...            both, --primary and --secondary

Rule 1: these options are declared only here; a command gets them as one value.
Rule 2: a connection string is read when it is needed, and never printed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from twinbus.pairing.client.environment import NamespaceReference, Role
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = [
    "BACKLOG_QUEUE_COUNT_MAX",
    "AdministrationPort",
    "CaFile",
    "NamespaceTarget",
    "PairTarget",
    "parse_reference",
    "run_with_namespace",
    "with_namespace",
    "with_pair",
]

# The limit of the options of a pair.
BACKLOG_QUEUE_COUNT_MAX = 1_000

CaFile = Annotated[
    Path | None,
    typer.Option(help="File with trusted CA certificates (PEM).", metavar="FILE"),
]
AdministrationPort = Annotated[
    int | None,
    typer.Option(
        "--administration-port", help="Port for HTTP administration; official emulator: 5300."
    ),
]


T = TypeVar("T")

ConnectionStringOption = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        help="Connection string: env:VARIABLE, file:PATH, or the text, which other users of this "
        "machine can see [env:SERVICEBUS_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
SecondaryOption = Annotated[
    bool,
    typer.Option(
        "--secondary", help="Use the secondary of the environment, SERVICEBUS_SECONDARY_…"
    ),
]
_BY_REFERENCE: Final = "env:VARIABLE, file:PATH, or the text"
PrimaryReference = Annotated[
    str | None,
    typer.Option(
        "--primary",
        help=f"Primary: {_BY_REFERENCE} [env:SERVICEBUS_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
SecondaryReference = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        help=f"Secondary: {_BY_REFERENCE} [env:SERVICEBUS_SECONDARY_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
PrimaryName = Annotated[
    str | None,
    typer.Option(
        "--primary-name",
        help="Name of the primary in backlog queue paths [first label of its host].",
        metavar="TEXT",
    ),
]
PrimaryPort = Annotated[
    int | None,
    typer.Option(
        "--primary-administration-port",
        help="Port of the primary for HTTP administration; official emulator: 5300.",
    ),
]
SecondaryPort = Annotated[
    int | None,
    typer.Option(
        "--secondary-administration-port",
        help="Port of the secondary for HTTP administration; official emulator: 5300.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTarget:
    """The namespace that the options select."""

    connection_string: str | None = None
    secondary: bool = False
    ca_file: Path | None = None
    administration_port: int | None = None

    @property
    def role(self) -> Role:
        return "secondary" if self.secondary else "primary"

    def open(self) -> AbstractAsyncContextManager[NamespaceConnection]:
        """Connect over AMQP and HTTP."""
        if self.ca_file is not None and not self.ca_file.is_file():
            # A connection without TLS would ignore it.
            raise ConfigurationError(
                f"Invalid value for --ca-file: {str(self.ca_file)!r:.200} is not a file",
                hint="Use a file with certificates in PEM format",
            )
        # Imported late: the drivers take 100 ms to load.
        from twinbus.pairing.client.namespace_connection import open_namespace

        return open_namespace(
            self._reference(), ca_file=self.ca_file, administration_port=self.administration_port
        )

    def text(self) -> str | None:
        """The connection string; None if the identity of the machine is used instead."""
        return self._reference().connection_string

    def _reference(self) -> NamespaceReference:
        from twinbus.pairing.client.environment import require_namespace

        if self.connection_string is None:
            return require_namespace(os.environ, self.role)
        if self.secondary:
            raise ConfigurationError(
                "--secondary and --connection-string exclude each other",
                hint="Remove --secondary or --connection-string",
            )
        return parse_reference(self.connection_string)


def parse_reference(text: str) -> NamespaceReference:
    """The value of --connection-string: a variable, a file, or the text."""
    from twinbus.pairing.client.environment import NamespaceReference

    kind, colon, name = text.partition(":")
    if colon and kind == "env":
        found = os.environ.get(name, "").strip()
        if not found:
            raise ConfigurationError(
                f"Environment variable {name!r:.80} is not set or empty",
                hint="Set the variable, or use env: with another name",
            )
        return NamespaceReference(name, connection_string=found)
    if colon and kind == "file":
        try:
            found = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(
                f"Cannot read the connection string in {name!r:.200}: {reason}",
                hint="Check the path after file:",
            ) from error
        return NamespaceReference(name, connection_string=found)
    return NamespaceReference("--connection-string", connection_string=text)


def run_with_namespace(
    where: NamespaceTarget, ask: Callable[[NamespaceConnection], Awaitable[T]]
) -> T:
    """Open the namespace, call ``ask`` with it, close it; the result of ``ask``."""
    import asyncio

    async def call() -> T:
        async with where.open() as namespace:
            return await ask(namespace)

    return asyncio.run(call())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTarget:
    """The two namespaces of a pair that the options select."""

    primary: str | None = None
    secondary: str | None = None
    primary_name_given: str | None = None
    ca_file: Path | None = None
    primary_administration_port: int | None = None
    secondary_administration_port: int | None = None

    def open(self, role: Role) -> AbstractAsyncContextManager[NamespaceConnection]:
        is_secondary = role == "secondary"
        given = self.secondary if is_secondary else self.primary
        return NamespaceTarget(
            connection_string=given,
            secondary=is_secondary and given is None,
            ca_file=self.ca_file,
            administration_port=self.secondary_administration_port
            if is_secondary
            else self.primary_administration_port,
        ).open()

    async def primary_name(self) -> str:
        """The primary's name in the paths of its backlog queues. It is requested from the primary
        only if neither --primary-name nor the host contains it; if the primary does not respond,
        it is read from the marks of the backlog queues."""
        from twinbus.cli.pair.backlog_cleanup import find_primary_name
        from twinbus.errors import ServiceError

        async with self.open("primary") as primary, self.open("secondary") as secondary:
            _check_apart(primary, secondary)
            try:
                return await primary.primary_name(self.primary_name_given)
            except ServiceError:
                return await find_primary_name(primary, secondary)


def _check_apart(primary: NamespaceConnection, secondary: NamespaceConnection) -> None:
    """P3: a namespace that is its own secondary would be unreachable in every outage."""
    from twinbus.pairing.backlog_queues import is_same_place

    if is_same_place(primary.driver.address, secondary.driver.address):
        raise ConfigurationError(
            f"{primary.driver.address} cannot be its own secondary",
            hint="Use another namespace for --secondary",
        )


# -- the options of a command ---------------------------------------------------------------

_NAMESPACE: Final = (
    ("connection_string", ConnectionStringOption, None),
    ("secondary", SecondaryOption, False),
    ("ca_file", CaFile, None),
    ("administration_port", AdministrationPort, None),
)
_PAIR: Final = (
    ("primary", PrimaryReference, None),
    ("secondary", SecondaryReference, None),
    ("primary_name_given", PrimaryName, None),
    ("ca_file", CaFile, None),
    ("primary_administration_port", PrimaryPort, None),
    ("secondary_administration_port", SecondaryPort, None),
)


def with_namespace(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for one namespace to a command, which gets them as ``where``."""
    return _with(command, _NAMESPACE, NamespaceTarget)


def with_pair(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for both namespaces to a command, which gets them as ``where``."""
    return _with(command, _PAIR, PairTarget)


def _with(
    command: Callable[..., None], options: Sequence[tuple[str, Any, Any]], kind: type
) -> Callable[..., None]:
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in signature.parameters.values()
        if each.name != "where"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)
        for name, type_, default in options
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        given = {name: values.pop(name) for name, _type, _default in options}
        command(**values, where=kind(**given))

    # Typer reads the options from these two.
    called.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return called

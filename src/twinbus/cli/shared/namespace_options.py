"""Which namespace a command means, and the options that say so.

Options that several commands share.

Which namespace a command speaks to: Azure, the official emulator or our broker, all alike.

    twinbus queue list                                     the environment's primary
    twinbus queue list --secondary                         its secondary
    twinbus queue list --connection-string env:SHOP        another variable
    twinbus queue list --connection-string file:shop.txt   a file

    @with_namespace
    def show(path: ..., *, where: Where) -> None: ...

    @with_pair
    def plan(*, where: PairTarget) -> None: ...                both, --primary and --secondary

Rule 1: these options are declared here, once; a command gets them as one value.
Rule 2: a connection string is read when it is needed, and shown by nobody.
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
    "reference_of",
    "run_with_namespace",
    "with_namespace",
    "with_pair",
]

# As the options of a pair have it.
BACKLOG_QUEUE_COUNT_MAX = 1_000

CaFile = Annotated[
    Path | None, typer.Option(help="Trust the certificates in this file (PEM).", metavar="FILE")
]
AdministrationPort = Annotated[
    int | None,
    typer.Option("--management-port", help="The port for HTTP, for the official emulator (5300)."),
]


T = TypeVar("T")

ConnectionStringOption = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        help="Of the namespace: env:VARIABLE, file:PATH, or the text itself, which other users of "
        "this machine could see [SERVICEBUS_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
SecondaryOption = Annotated[
    bool,
    typer.Option(
        "--secondary", help="The secondary namespace of the environment, SERVICEBUS_SECONDARY_…"
    ),
]
_BY_REFERENCE: Final = "env:VARIABLE, file:PATH, or the text itself"
PrimaryReference = Annotated[
    str | None,
    typer.Option(
        "--primary",
        help=f"The primary: {_BY_REFERENCE} [SERVICEBUS_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
SecondaryReference = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        help=f"The secondary: {_BY_REFERENCE} [SERVICEBUS_SECONDARY_CONNECTION_STRING].",
        metavar="REFERENCE",
    ),
]
PrimaryName = Annotated[
    str | None,
    typer.Option(
        "--primary-name",
        help="The primary's name in the backlog queues [its host's first label].",
        metavar="TEXT",
    ),
]
PrimaryPort = Annotated[
    int | None,
    typer.Option(
        "--primary-management-port", help="The primary's port for HTTP (official emulator: 5300)."
    ),
]
SecondaryPort = Annotated[
    int | None,
    typer.Option(
        "--secondary-management-port",
        help="The secondary's port for HTTP (official emulator: 5300).",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTarget:
    """A namespace, as the command line names it."""

    connection_string: str | None = None
    secondary: bool = False
    ca_file: Path | None = None
    administration_port: int | None = None

    @property
    def role(self) -> Role:
        return "secondary" if self.secondary else "primary"

    def opened(self) -> AbstractAsyncContextManager[NamespaceConnection]:
        """The namespace, with both its doors."""
        if self.ca_file is not None and not self.ca_file.is_file():
            # Plain connections would not look at it.
            raise ConfigurationError(
                f"--ca-file {str(self.ca_file)!r:.200} is no file",
                hint="Name a file with PEM in it",
            )
        # The drivers: 100 ms that a wrong option need not wait for.
        from twinbus.pairing.client.namespace_connection import open_namespace

        return open_namespace(
            self._reference(), ca_file=self.ca_file, administration_port=self.administration_port
        )

    def text(self) -> str | None:
        """The connection string itself; None where the machine's identity stands for one."""
        return self._reference().connection_string

    def _reference(self) -> NamespaceReference:
        from twinbus.pairing.client.environment import require_namespace

        if self.connection_string is None:
            return require_namespace(os.environ, self.role)
        if self.secondary:
            raise ConfigurationError(
                "--secondary means the environment's, and --connection-string another one",
                hint="Leave one of them out",
            )
        return reference_of(self.connection_string)


def reference_of(text: str) -> NamespaceReference:
    """What --connection-string says: a variable, a file, or the text itself."""
    from twinbus.pairing.client.environment import NamespaceReference

    kind, colon, name = text.partition(":")
    if colon and kind == "env":
        found = os.environ.get(name, "").strip()
        if not found:
            raise ConfigurationError(
                f"the environment has no connection string in {name!r:.80}",
                hint="Set it, or name another variable",
            )
        return NamespaceReference(name, connection_string=found)
    if colon and kind == "file":
        try:
            found = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(
                f"the connection string in {name!r:.200} cannot be read: {reason}",
                hint="Check the path behind file:",
            ) from error
        return NamespaceReference(name, connection_string=found)
    return NamespaceReference("--connection-string", connection_string=text)


def run_with_namespace(
    where: NamespaceTarget, ask: Callable[[NamespaceConnection], Awaitable[T]]
) -> T:
    """Open the namespace, ask it, close it; the answer."""
    import asyncio

    async def opened() -> T:
        async with where.opened() as namespace:
            return await ask(namespace)

    return asyncio.run(opened())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTarget:
    """Both namespaces of a pair, as the command line names them."""

    primary: str | None = None
    secondary: str | None = None
    primary_name_given: str | None = None
    ca_file: Path | None = None
    primary_administration_port: int | None = None
    secondary_administration_port: int | None = None

    def opened(self, role: Role) -> AbstractAsyncContextManager[NamespaceConnection]:
        is_secondary = role == "secondary"
        given = self.secondary if is_secondary else self.primary
        return NamespaceTarget(
            connection_string=given,
            secondary=is_secondary and given is None,
            ca_file=self.ca_file,
            administration_port=self.secondary_administration_port
            if is_secondary
            else self.primary_administration_port,
        ).opened()

    async def primary_name(self) -> str:
        """The primary's name in the paths of its backlog queues. The primary is asked only where
        neither --primary-name nor its host tells it; when it does not answer, the marks of the
        backlog queues tell it."""
        from twinbus.cli.pair.backlog_cleanup import name_in_backlog
        from twinbus.errors import ServiceError

        async with self.opened("primary") as primary, self.opened("secondary") as secondary:
            _check_apart(primary, secondary)
            try:
                return await primary.primary_name(self.primary_name_given)
            except ServiceError:
                return await name_in_backlog(primary, secondary)


def _check_apart(primary: NamespaceConnection, secondary: NamespaceConnection) -> None:
    """P3: its own secondary would be away together with it."""
    from twinbus.pairing.backlog_queues import is_same_place

    if is_same_place(primary.driver.address, secondary.driver.address):
        raise ConfigurationError(
            f"{primary.driver.address} cannot be its own secondary", hint="Name another namespace"
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
    """The command with the options for one namespace, which it is given as ``where``."""
    return _with(command, _NAMESPACE, NamespaceTarget)


def with_pair(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options for both namespaces, which it is given as ``where``."""
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

    # What is typed is read off these two.
    called.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return called

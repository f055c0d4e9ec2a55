"""Which namespace a command speaks to: Azure, the official emulator or our broker, all alike.

    twinbus queue list                                     the environment's primary
    twinbus queue list --secondary                         its secondary
    twinbus queue list --connection-string env:SHOP        another variable
    twinbus queue list --connection-string file:shop.txt   a file

    @with_namespace
    def show(path: ..., *, where: Where) -> None: ...

Rule 1: these options are declared here, once; a command gets them as one value.
Rule 2: a connection string is read when it is needed, and shown by nobody.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from twinbus.cli.shared_options import CaFile, ManagementPort
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from twinbus.pairing.environment import NamespaceReference, Role
    from twinbus.pairing.open_namespace import OpenNamespace

__all__ = ["Where", "asked", "with_namespace"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A namespace, as the command line names it."""

    connection_string: str | None = None
    secondary: bool = False
    ca_file: Path | None = None
    management_port: int | None = None

    @property
    def role(self) -> Role:
        return "secondary" if self.secondary else "primary"

    def opened(self) -> AbstractAsyncContextManager[OpenNamespace]:
        """The namespace, with both its doors."""
        # The drivers: 100 ms that a wrong option need not wait for.
        from twinbus.pairing.open_namespace import opened_namespace

        return opened_namespace(
            self._reference(), ca_file=self.ca_file, management_port=self.management_port
        )

    def _reference(self) -> NamespaceReference:
        from twinbus.pairing.open_namespace import namespace_named_in

        if self.connection_string is None:
            return namespace_named_in(os.environ, self.role)
        if self.secondary:
            raise ConfigurationError(
                "--secondary means the environment's, and --connection-string another one",
                hint="Leave one of them out",
            )
        return _named(self.connection_string)


def _named(text: str) -> NamespaceReference:
    from twinbus.pairing.environment import NamespaceReference

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


def asked(where: Where, ask: Callable[[OpenNamespace], Awaitable[T]]) -> T:
    """Open the namespace, ask it, close it; the answer."""
    import asyncio

    async def opened() -> T:
        async with where.opened() as namespace:
            return await ask(namespace)

    return asyncio.run(opened())


# -- the options of a command ---------------------------------------------------------------

_OPTIONS: Final = (
    ("connection_string", ConnectionStringOption, None),
    ("secondary", SecondaryOption, False),
    ("ca_file", CaFile, None),
    ("management_port", ManagementPort, None),
)


def with_namespace(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options above, which it is given as ``where``."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in signature.parameters.values()
        if each.name != "where"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _OPTIONS
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        given = {name: values.pop(name) for name, _kind, _default in _OPTIONS}
        command(**values, where=Where(**given))

    # What is typed is read off these two.
    called.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return called

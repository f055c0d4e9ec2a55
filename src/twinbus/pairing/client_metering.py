"""The books of a client: where they are kept, and under which name.

Rule 1: a namespace has in the books the name that its backlog queues have in their paths. Where
        its host does not tell it, the namespace is asked; where nobody tells, the address serves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from twinbus.drivers.port import NamespaceAddress
from twinbus.errors import ConfigurationError
from twinbus.metering.client_books import ClientBooks
from twinbus.metering.lines import check_directory
from twinbus.pairing.backlog_queues import has_no_name, primary_name_of

__all__ = ["client_books"]

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+", re.ASCII)


def client_books(
    address: NamespaceAddress,
    directory: str | os.PathLike[str] | None,
    *,
    told_name: Callable[[], Awaitable[str | None]],
    name: str | None = None,
    audit: bool = False,
) -> ClientBooks | None:
    """The books that somebody wants; None for none. ``told_name`` asks the namespace itself."""
    if directory is None:
        if audit:
            raise ConfigurationError(
                "an audit needs a place", hint="Name a directory with metering, too"
            )
        return None
    check_directory(Path(directory), "metering")

    async def ask() -> str:
        return primary_name_of(address, told=await told_name())

    if name is not None or not has_no_name(address):
        name = primary_name_of(address, given=name)
    other_name = _NOT_IN_NAMES.sub("-", str(address).lower()).strip("-.")
    return ClientBooks(Path(directory), name=name, other_name=other_name, ask_name=ask, audit=audit)

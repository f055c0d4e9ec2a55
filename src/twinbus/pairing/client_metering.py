"""The books of a client: where they are kept, and under which name.

Rule 1: a namespace has in the books the name that its backlog queues have in their paths. Where
        its host does not tell it, the namespace is asked; where nobody tells, the address serves.
        Whoever uses the namespace may say it, and a pair's word counts most.
Rule 2: a directory in which nothing can be written is told to who has chosen it. On a machine that
        somebody else has chosen (a task of Spark's) it costs the books, and no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from twinbus.drivers.port import NamespaceAddress
from twinbus.errors import ConfigurationError
from twinbus.metering.client_books import ClientMeter
from twinbus.metering.lines import check_directory
from twinbus.pairing.backlog_queues import has_no_name, primary_name_of

__all__ = ["checked_directory", "client_books"]

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+", re.ASCII)


def checked_directory(given: str | os.PathLike[str], said: str = "metering") -> Path:
    """The directory that an option names; ``said`` is what the user calls it."""
    directory = _directory(given, said)
    check_directory(directory, said)
    return directory


def _directory(given: object, said: str = "metering") -> Path:
    """Where it is now: a program may change its working directory later on."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{said} cannot be {given!r:.60}", hint="Name a directory")
    return Path(text).absolute()


def client_books(
    address: NamespaceAddress,
    directory: str | os.PathLike[str] | None,
    *,
    told_name: Callable[[], Awaitable[str | None]],
    name: str | None = None,
    audit: bool = False,
    keep_days: int | None = None,
) -> ClientMeter | None:
    """The books that somebody wants; None for none. ``told_name`` asks the namespace itself."""
    if directory is None:
        if audit:
            raise ConfigurationError(
                "an audit needs a place", hint="Name a directory with metering, too"
            )
        return None

    async def ask() -> str:
        return primary_name_of(address, told=await told_name())

    if name is not None or not has_no_name(address):
        name = primary_name_of(address, given=name)
    other_name = _NOT_IN_NAMES.sub("-", str(address).lower()).strip("-.")
    return ClientMeter(
        _directory(directory),
        name=name,
        other_name=other_name,
        ask_name=ask,
        audit=audit,
        keep_days=keep_days,
    )

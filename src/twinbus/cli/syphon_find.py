"""Which backlog ``twinbus syphon`` brings home: both namespaces, and the queues."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.cli.backlog_found import backlog_path_of
from twinbus.cli.connecting import reference_of
from twinbus.cli.syphon import SyphonOptions
from twinbus.drivers.management import QueueProperties
from twinbus.entity_path import backlog_prefix
from twinbus.pairing.backlog_queues import backlog_paths
from twinbus.pairing.backlog_search import BacklogSearch
from twinbus.pairing.environment import NamespaceReference, Role, require_namespace
from twinbus.pairing.open_namespace import (
    NamespaceConnection,
    open_namespace,
)
from twinbus.service_errors import AccessRefused, NoBacklogQueue

__all__ = ["CONNECTION_STRING_FILE", "Found", "find_backlog", "named", "opened", "spool_file"]

CONNECTION_STRING_FILE: Final = "connection-string"
"""As drivers.embedded has it, which loads the broker."""


@dataclass(frozen=True, slots=True)
class Found:
    """A primary's backlog."""

    primary_name: str
    queues: tuple[str, ...]
    waiting: int | None
    """Messages in all of them; None when nobody said."""


def named(role: Role, options: SyphonOptions) -> NamespaceReference:
    """The namespace that the environment names, or the spool."""
    if role == "secondary" and options.spool is not None:
        return reference_of(f"file:{spool_file(options.spool)}")
    return require_namespace(os.environ, role)


def spool_file(spool: Path) -> Path:
    """Where a spool has its connection string while it is served."""
    return spool.absolute() / CONNECTION_STRING_FILE


def opened(role: Role, options: SyphonOptions) -> AbstractAsyncContextManager[NamespaceConnection]:
    """The namespace, with both its doors."""
    return open_namespace(
        named(role, options),
        ca_file=options.ca_file,
        administration_port=options.administration_port,
        metering=options.metering,
        keep_days=options.keep_days,
        name=options.primary_name if role == "primary" else None,
        driver=options.driver,
    )


async def find_backlog(
    primary: NamespaceConnection, secondary: NamespaceConnection, options: SyphonOptions
) -> Found:
    """The queues to empty: as many as we were told, or all that a listing shows, or without
    Manage a look. The syphon itself finds more that hold messages (Y9)."""
    name = await primary.primary_name(options.primary_name)
    if options.backlog_queue_count is not None:
        return Found(name, tuple(backlog_paths(name, options.backlog_queue_count)), None)
    prefix = backlog_prefix(name)
    try:
        listed = [queue async for queue in secondary.management.list_queues(prefix)]
    except AccessRefused:
        return Found(name, await _looked_for(secondary, name), None)
    found = [queue for queue in listed if backlog_path_of(queue.path) is not None]
    if not found:
        raise NoBacklogQueue(
            f"the secondary has no backlog queue of {name!r}",
            hint=f"They are called {prefix}0 and so on; check --primary-name",
        )
    return Found(name, tuple(queue.path for queue in found), _waiting(found))


async def _looked_for(secondary: NamespaceConnection, name: str) -> tuple[str, ...]:
    found = await BacklogSearch(secondary.driver.receiver, name).existing()
    if not found:
        raise NoBacklogQueue(
            f"no backlog queue of {name!r} was found, and they cannot be listed without Manage",
            hint="Check --primary-name, and the claim Listen on the backlog queues",
        )
    return found


def _waiting(queues: list[QueueProperties]) -> int | None:
    return sum(queue.counts.active for queue in queues if queue.counts is not None)

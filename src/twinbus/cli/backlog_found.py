"""Which backlog queues a secondary has."""

from __future__ import annotations

from contextlib import suppress

from twinbus.drivers.management import QueueProperties
from twinbus.entity_path import BacklogPath, parse_backlog_path
from twinbus.errors import InvalidEntityPath
from twinbus.pairing.backlog_queues import backlog_paths, backlog_queue, owner_mark
from twinbus.pairing.backlog_search import BacklogSearch
from twinbus.pairing.open_namespace import NamespaceConnection
from twinbus.service_errors import AccessRefused, PairingError, ServiceError

__all__ = ["backlog_path_of", "listed", "name_in_backlog", "queues_of"]


def backlog_path_of(path: str) -> BacklogPath | None:
    """The parts of a backlog queue's path; None for any other queue."""
    try:
        return parse_backlog_path(path)
    except InvalidEntityPath:
        return None


async def listed(
    secondary: NamespaceConnection, primary_name: str | None = None
) -> list[tuple[BacklogPath, QueueProperties]]:
    """All backlog queues, or those of one primary, in order."""
    try:
        found = [
            (parts, queue)
            async for queue in secondary.management.list_queues()
            if (parts := backlog_path_of(queue.path)) is not None
            and primary_name in (None, parts.primary)
        ]
    except AccessRefused as error:
        raise AccessRefused(
            "the backlog queues cannot be listed: Manage is missing on the secondary",
            hint="Use an access rule with the claim Manage",
        ) from error
    return sorted(found, key=lambda each: (each[0].primary, each[0].index))


async def name_in_backlog(primary: NamespaceConnection, secondary: NamespaceConnection) -> str:
    """The name of a primary that cannot be asked: backlog queues bear the mark of their pair,
    which has the primary's address in it (P21). A name without such a mark is not guessed."""
    names: list[str] = []
    with suppress(ServiceError):
        for parts, queue in await listed(secondary):
            mark = owner_mark(primary.driver.address, parts.primary)
            if queue.user_metadata == backlog_queue(queue.path, mark).user_metadata:
                return parts.primary
            names.append(parts.primary)
    example = f" {names[0]}" if len(set(names)) == 1 else ""
    raise PairingError(
        "the primary did not tell its name, and no backlog queue has its address",
        hint=f"Give its name with --primary-name{example}",
    )


async def queues_of(
    secondary: NamespaceConnection, primary_name: str, count: int | None
) -> tuple[str, ...]:
    """The paths of a primary's backlog queues: so many, or all that a listing shows, or without
    Manage a look."""
    if count is not None:
        return backlog_paths(primary_name, count)
    try:
        return tuple(queue.path for _parts, queue in await listed(secondary, primary_name))
    except AccessRefused:
        if found := await BacklogSearch(secondary.driver.receiver, primary_name).existing():
            return found
        raise

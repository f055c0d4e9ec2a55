"""Lists the backlog queues of a secondary, and deletes extra ones without losing a message.

    checked -> sends disabled -> checked again -> deleted
                                     | not empty
                                     +-> sends enabled, left

Rule 1: a queue is deleted only if it is empty by its counts and by a peek while its sends are
        disabled: deferred, scheduled and dead-lettered messages count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from twinbus.cli.shared.output import plural
from twinbus.common.entity_path import BacklogPath, parse_backlog_path
from twinbus.drivers.administration import QueueProperties
from twinbus.errors import (
    AccessRefused,
    EntityNotFound,
    InvalidEntityPath,
    PairingError,
    ServiceError,
)
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.mover import Mover
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.pairing.backlog_queues import backlog_paths, backlog_queue, owner_mark
from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = [
    "delete_extra_queues",
    "find_primary_name",
    "find_queue_paths",
    "list_backlog_queues",
    "try_parse_backlog_path",
]


def try_parse_backlog_path(path: str) -> BacklogPath | None:
    """The parts of a backlog queue's path; None for any other queue."""
    try:
        return parse_backlog_path(path)
    except InvalidEntityPath:
        return None


async def list_backlog_queues(
    secondary: NamespaceConnection, primary_name: str | None = None
) -> list[tuple[BacklogPath, QueueProperties]]:
    """All backlog queues, or those of one primary, by primary and index."""
    try:
        found = [
            (parts, queue)
            async for queue in secondary.management.list_queues()
            if (parts := try_parse_backlog_path(queue.path)) is not None
            and primary_name in (None, parts.primary)
        ]
    except AccessRefused as error:
        raise AccessRefused(
            "Cannot list the backlog queues: the Manage claim on the secondary is missing",
            hint="Use an access rule with the Manage claim",
        ) from error
    return sorted(found, key=lambda each: (each[0].primary, each[0].index))


async def find_primary_name(primary: NamespaceConnection, secondary: NamespaceConnection) -> str:
    """The name of a primary that does not return it: backlog queues have the mark of their pair,
    which contains the primary's address (P21). Without such a mark the name is not guessed."""
    names: list[str] = []
    with suppress(ServiceError):
        for parts, queue in await list_backlog_queues(secondary):
            mark = owner_mark(primary.driver.address, parts.primary)
            if queue.user_metadata == backlog_queue(queue.path, mark).user_metadata:
                return parts.primary
            names.append(parts.primary)
    example = f" {names[0]}" if len(set(names)) == 1 else ""
    raise PairingError(
        "The primary did not return its name, and no backlog queue has its address",
        hint=f"Add --primary-name{example or ' NAME'}",
    )


async def find_queue_paths(
    secondary: NamespaceConnection, primary_name: str, count: int | None
) -> tuple[str, ...]:
    """The paths of a primary's backlog queues: ``count`` of them, or all that are listed, or
    without the Manage claim those that a search finds."""
    if count is not None:
        return backlog_paths(primary_name, count)
    try:
        return tuple(
            queue.path for _parts, queue in await list_backlog_queues(secondary, primary_name)
        )
    except AccessRefused:
        if found := await BacklogSearch(secondary.driver.receiver, primary_name).find_existing():
            return found
        raise


PEEK_TIMEOUT_S: Final = 30.0
_DEAD: Final = "/$DeadLetterQueue"


async def delete_extra_queues(
    secondary: NamespaceConnection,
    primary_name: str,
    count: int,
    *,
    dry_run: bool = False,
    primary: NamespaceConnection | None = None,
) -> list[dict[str, Any]]:
    """Delete the extra queues; a row for each. With a ``primary`` they are drained first."""
    extra = [
        queue
        for parts, queue in await list_backlog_queues(secondary, primary_name)
        if parts.index >= count
    ]
    if primary is not None and extra:
        await _drain(primary, secondary, primary_name, [queue.path for queue in extra])
    return [await _delete_if_empty(secondary, queue, dry_run) for queue in extra]


async def _drain(
    primary: NamespaceConnection,
    secondary: NamespaceConnection,
    primary_name: str,
    queues: list[str],
) -> None:
    owner = owner_mark(primary.driver.address, primary_name)
    options = MoverOptions(rules=DeliveryRules(primary_name=primary_name, owner=owner))
    await Mover(secondary.driver, primary.driver, queues, options).run(once=True)


async def _delete_if_empty(
    secondary: NamespaceConnection, queue: QueueProperties, dry_run: bool
) -> dict[str, Any]:
    path = queue.path
    contents = await _describe_contents(secondary, path)
    if contents or dry_run:
        return _row(path, "left" if contents else "would be deleted", contents)
    before = queue.status
    await secondary.management.set_queue_status(path, "SendDisabled")
    contents = "the contents are unknown"
    try:
        contents = await _describe_contents(secondary, path)
        if not contents:
            await secondary.management.delete_queue(path)
    finally:
        if contents:
            await secondary.management.set_queue_status(path, before)
    return _row(path, "left" if contents else "deleted", contents)


async def _describe_contents(secondary: NamespaceConnection, path: str) -> str:
    """The contents of a queue as text; empty when the queue is empty."""
    found = await secondary.management.get_queue(path)
    if found is None:
        raise EntityNotFound(
            f"Backlog queue {path!r} not found: another client deleted it",
            path=path,
            hint="Run the command again",
        )
    if found.counts.total:
        return f"{plural(found.counts.total, 'message')}: run `twinbus syphon`, or add --drain"
    for where in (path, f"{path}{_DEAD}"):
        receiver = secondary.driver.receiver(where)
        try:
            if await receiver.peek(1, timeout_s=PEEK_TIMEOUT_S):
                return "at least one message: run `twinbus syphon`, or add --drain"
        finally:
            await receiver.close()
    return ""


def _row(queue: str, what: str, why: str) -> dict[str, Any]:
    return {"queue": queue, "what": what, "why": why}

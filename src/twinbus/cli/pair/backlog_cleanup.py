"""Backlog queues that are listed and removed.

Which backlog queues a secondary has.

Deletes extra backlog queues, and no message with them.

    looked at -> sends off -> looked at again -> deleted
                                   | something is in it
                                   +-> sends on, left

Rule 1: a queue goes only if it is empty by its counts and by a peek, after nobody could send to
        it any more: set aside, scheduled and dead messages count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from twinbus.cli.shared.output import counted
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

__all__ = ["backlog_path_of", "cleaned", "listed", "name_in_backlog", "queues_of"]


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
        if found := await BacklogSearch(secondary.driver.receiver, primary_name).find_existing():
            return found
        raise


PEEK_TIMEOUT_S: Final = 30.0
_DEAD: Final = "/$DeadLetterQueue"


async def cleaned(
    secondary: NamespaceConnection,
    primary_name: str,
    count: int,
    *,
    dry_run: bool = False,
    primary: NamespaceConnection | None = None,
) -> list[dict[str, Any]]:
    """What became of each extra queue; with a ``primary`` they are drained first."""
    extra = [
        queue for parts, queue in await listed(secondary, primary_name) if parts.index >= count
    ]
    if primary is not None and extra:
        await _drained(primary, secondary, primary_name, [queue.path for queue in extra])
    return [await _cleaned(secondary, queue, dry_run) for queue in extra]


async def _drained(
    primary: NamespaceConnection,
    secondary: NamespaceConnection,
    primary_name: str,
    queues: list[str],
) -> None:
    owner = owner_mark(primary.driver.address, primary_name)
    options = MoverOptions(rules=DeliveryRules(primary_name=primary_name, owner=owner))
    await Mover(secondary.driver, primary.driver, queues, options).run(once=True)


async def _cleaned(
    secondary: NamespaceConnection, queue: QueueProperties, dry_run: bool
) -> dict[str, Any]:
    path = queue.path
    held = await _held(secondary, path)
    if held or dry_run:
        return _row(path, "left" if held else "would be deleted", held)
    before = queue.status
    await secondary.management.set_queue_status(path, "SendDisabled")
    held = "it could not be looked at"
    try:
        held = await _held(secondary, path)
        if not held:
            await secondary.management.delete_queue(path)
    finally:
        if held:
            await secondary.management.set_queue_status(path, before)
    return _row(path, "left" if held else "deleted", held)


async def _held(secondary: NamespaceConnection, path: str) -> str:
    """What is in a queue, in a few words; nothing when it is empty."""
    found = await secondary.management.get_queue(path)
    if found is None:
        raise EntityNotFound(
            f"the backlog queue {path!r} is gone", path=path, hint="Somebody else deleted it"
        )
    if found.counts.total:
        return f"{counted(found.counts.total, 'message')} in it: run `twinbus syphon`, or --drain"
    for where in (path, f"{path}{_DEAD}"):
        receiver = secondary.driver.receiver(where)
        try:
            if await receiver.peek(1, timeout_s=PEEK_TIMEOUT_S):
                return "at least one message in it: run `twinbus syphon`, or --drain"
        finally:
            await receiver.close()
    return ""


def _row(queue: str, what: str, why: str) -> dict[str, Any]:
    return {"queue": queue, "what": what, "why": why}

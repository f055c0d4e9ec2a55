"""Deletes extra backlog queues, and no message with them.

    looked at -> sends off -> looked at again -> deleted
                                   | something is in it
                                   +-> sends on, left

Rule 1: a queue goes only if it is empty by its counts and by a peek, after nobody could send to
        it any more: set aside, scheduled and dead messages count.
"""

from __future__ import annotations

from typing import Any, Final

from twinbus.cli.backlog_found import listed
from twinbus.cli.showing import counted
from twinbus.core.chunk import DeliveryRules
from twinbus.drivers.management import QueueProperties
from twinbus.pairing.backlog_queues import owner_mark
from twinbus.pairing.mover import Mover
from twinbus.pairing.mover_options import MoverOptions
from twinbus.pairing.open_namespace import NamespaceConnection
from twinbus.service_errors import EntityNotFound

__all__ = ["cleaned"]

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

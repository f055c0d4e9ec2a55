"""``twinbus queue list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as of
from twinbus.cli.entities.purge import purge_it
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["queue_app"]

queue_app = of.entity_group("queue", "Queues: list, show, create, delete, purge.")

Path = Annotated[str, typer.Argument(help="Path of the queue.")]


@queue_app.command("list")
@with_namespace
def list_queues(
    prefix: of.Prefix = "", output: Output = "table", *, where: NamespaceTarget
) -> None:
    """List queues with their message counts.

    Requires the Manage claim.
    """
    columns = ("path", *of.QUEUE_COLUMNS)
    of.list_entities(where, output, lambda each: each.list_queues(prefix), columns, numbers_from=2)


@queue_app.command("show")
@with_namespace
def show(path: Path, output: Output = "table", *, where: NamespaceTarget) -> None:
    """Show the properties and message counts of a queue.

    Requires the Manage claim.
    """
    of.show_entity(where, output, f"queue {path!r}", lambda each: each.get_queue(path))


@queue_app.command("create")
@with_namespace
def create(
    path: Path,
    lock_duration: of.LockDuration = "1m",
    max_delivery_count: of.DeliveryCount = 10,
    ttl: of.TimeToLive = None,
    sessions: of.Sessions = False,
    duplicate_window: of.Duplicates = None,
    dead_letter_expired: of.ExpiredDie = False,
    size_mb: of.Size = 1024,
    delete_when_idle: of.IdleTime = None,
    forward_to: of.ForwardTo = None,
    forward_dead_letters_to: of.ForwardDead = None,
    partitioned: of.Partitioned = False,
    status: of.Status = "Active",
    metadata: of.Note = "",
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Create a queue.

    Requires the Manage claim.
    """
    from twinbus.drivers.administration import QueueProperties

    usual = QueueProperties(path=path)
    wanted = QueueProperties(
        path=path,
        lock_duration=of.duration(lock_duration),
        max_delivery_count=max_delivery_count,
        default_message_time_to_live=of.duration(ttl, None),
        requires_session=sessions,
        requires_duplicate_detection=duplicate_window is not None,
        duplicate_detection_history_time_window=of.duration(
            duplicate_window, usual.duplicate_detection_history_time_window
        ),
        enable_dead_lettering_on_message_expiration=dead_letter_expired,
        max_size_in_megabytes=size_mb,
        auto_delete_on_idle=of.duration(delete_when_idle, None),
        forward_to=forward_to,
        forward_dead_lettered_messages_to=forward_dead_letters_to,
        enable_partitioning=partitioned,
        status=of.status_of(status),
        user_metadata=metadata,
    )
    of.create_entity(
        where,
        output,
        dry_run,
        f"queue {path!r}",
        wanted,
        lambda each: each.create_queue(wanted),
        lambda each: of.taken(each, path),
    )


@queue_app.command("delete")
@with_namespace
def delete(
    path: Path,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Delete a queue and all its messages.

    Requires the Manage claim.
    """
    of.delete_entity(
        where,
        output,
        yes=yes,
        dry_run=dry_run,
        named=f"queue {path!r}",
        get=lambda each: each.get_queue(path),
        delete=lambda each: each.delete_queue(path),
    )


@queue_app.command("purge")
@with_namespace
def purge(
    path: Path,
    dead_letters: of.DeadLettersInstead = False,
    keep_deferred: of.KeepDeferred = False,
    keep_scheduled: Annotated[
        bool, typer.Option("--keep-scheduled", help="Keep scheduled messages.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Remove all messages of a queue, except those that are locked by a receiver.

    Requires the Listen claim, and the Send claim for scheduled messages.
    """
    purge_it(
        where,
        output,
        path,
        dead_letters=dead_letters,
        deferred=not keep_deferred,
        scheduled=not keep_scheduled,
        yes=yes,
        dry_run=dry_run,
    )

"""``twinbus queue list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as entity
from twinbus.cli.entities.purge import purge_source
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["queue_app"]

queue_app = entity.entity_group("queue", "Queues: list, show, create, delete, purge.")

Path = Annotated[str, typer.Argument(help="Path of the queue.")]


QUEUE = entity.EntityKind(
    arguments=(entity.parameter("path", Path),),
    list_arguments=(entity.parameter("prefix", entity.Prefix, ""),),
    columns=("path", *entity.QUEUE_COLUMNS),
    numbers_from=2,
    label=lambda path: f"queue {path!r}",
    list_all=lambda client, prefix: client.list_queues(prefix),
    get=lambda client, path: client.get_queue(path),
    delete=lambda client, path: client.delete_queue(path),
    list_help="List queues with their message counts.",
    show_help="Show the properties and message counts of a queue.",
    delete_help="Delete a queue and all its messages.",
)
entity.register_list(queue_app, QUEUE)
entity.register_show(queue_app, QUEUE)


@queue_app.command("create")
@with_namespace
def create(
    path: Path,
    lock_duration: entity.LockDuration = "1m",
    max_delivery_count: entity.DeliveryCount = 10,
    ttl: entity.TimeToLive = None,
    sessions: entity.Sessions = False,
    duplicate_window: entity.Duplicates = None,
    dead_letter_expired: entity.ExpiredDie = False,
    size_mb: entity.Size = 1024,
    delete_when_idle: entity.IdleTime = None,
    forward_to: entity.ForwardTo = None,
    forward_dead_letters_to: entity.ForwardDead = None,
    partitioned: entity.Partitioned = False,
    status: entity.Status = "Active",
    metadata: entity.Note = "",
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
        lock_duration=entity.parse_duration(lock_duration),
        max_delivery_count=max_delivery_count,
        default_message_time_to_live=entity.parse_duration(ttl, None),
        requires_session=sessions,
        requires_duplicate_detection=duplicate_window is not None,
        duplicate_detection_history_time_window=entity.parse_duration(
            duplicate_window, usual.duplicate_detection_history_time_window
        ),
        enable_dead_lettering_on_message_expiration=dead_letter_expired,
        max_size_in_megabytes=size_mb,
        auto_delete_on_idle=entity.parse_duration(delete_when_idle, None),
        forward_to=forward_to,
        forward_dead_lettered_messages_to=forward_dead_letters_to,
        enable_partitioning=partitioned,
        status=entity.parse_status(status),
        user_metadata=metadata,
    )
    entity.create_entity(
        where,
        output,
        dry_run,
        QUEUE.label(path),
        wanted,
        lambda each: each.create_queue(wanted),
        lambda each: entity.find_entity(each, path),
    )


entity.register_delete(queue_app, QUEUE)


@queue_app.command("purge")
@with_namespace
def purge(
    path: Path,
    dead_letters: entity.DeadLettersInstead = False,
    keep_deferred: entity.KeepDeferred = False,
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
    purge_source(
        where,
        output,
        path,
        dead_letters=dead_letters,
        deferred=not keep_deferred,
        scheduled=not keep_scheduled,
        yes=yes,
        dry_run=dry_run,
    )

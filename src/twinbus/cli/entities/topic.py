"""``twinbus topic list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as of
from twinbus.cli.entities.purge import purge_topic
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["topic_app"]

topic_app = of.entity_group("topic", "Topics: list, show, create, delete, purge.")

Path = Annotated[str, typer.Argument(help="Path of the topic.")]


@topic_app.command("list")
@with_namespace
def list_topics(
    prefix: of.Prefix = "", output: Output = "table", *, where: NamespaceTarget
) -> None:
    """List topics.

    Requires the Manage claim.
    """
    columns = ("path", "status", "subscription_count", "scheduled_messages", "size_bytes")
    of.list_entities(where, output, lambda each: each.list_topics(prefix), columns, numbers_from=2)


@topic_app.command("show")
@with_namespace
def show(path: Path, output: Output = "table", *, where: NamespaceTarget) -> None:
    """Show the properties of a topic.

    Requires the Manage claim.
    """
    of.show_entity(where, output, f"topic {path!r}", lambda each: each.get_topic(path))


@topic_app.command("create")
@with_namespace
def create(
    path: Path,
    ttl: of.TimeToLive = None,
    duplicate_window: of.Duplicates = None,
    size_mb: of.Size = 1024,
    delete_when_idle: of.IdleTime = None,
    partitioned: of.Partitioned = False,
    status: of.Status = "Active",
    metadata: of.Note = "",
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Create a topic.

    Requires the Manage claim.
    """
    from twinbus.drivers.administration import TopicProperties

    wanted = TopicProperties(
        path=path,
        default_message_time_to_live=of.duration(ttl, None),
        requires_duplicate_detection=duplicate_window is not None,
        duplicate_detection_history_time_window=of.duration(
            duplicate_window, TopicProperties(path=path).duplicate_detection_history_time_window
        ),
        max_size_in_megabytes=size_mb,
        auto_delete_on_idle=of.duration(delete_when_idle, None),
        enable_partitioning=partitioned,
        status=of.status_of(status),
        user_metadata=metadata,
    )
    of.create_entity(
        where,
        output,
        dry_run,
        f"topic {path!r}",
        wanted,
        lambda each: each.create_topic(wanted),
        lambda each: of.taken(each, path),
    )


@topic_app.command("delete")
@with_namespace
def delete(
    path: Path,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Delete a topic, its subscriptions and all their messages.

    Requires the Manage claim.
    """
    of.delete_entity(
        where,
        output,
        yes=yes,
        dry_run=dry_run,
        named=f"topic {path!r}",
        get=lambda each: each.get_topic(path),
        delete=lambda each: each.delete_topic(path),
    )


@topic_app.command("purge")
@with_namespace
def purge(
    path: Path,
    dead_letters: of.DeadLettersInstead = False,
    keep_deferred: of.KeepDeferred = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Remove all messages of the subscriptions of a topic, except those locked by a receiver.

    Scheduled messages of the topic itself are kept. Requires the Manage and Listen claims.
    """
    purge_topic(
        where,
        output,
        path,
        dead_letters=dead_letters,
        deferred=not keep_deferred,
        yes=yes,
        dry_run=dry_run,
    )

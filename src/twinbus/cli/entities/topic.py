"""``twinbus topic list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as entity
from twinbus.cli.entities.purge import purge_topic
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["topic_app"]

topic_app = entity.entity_group("topic", "Topics: list, show, create, delete, purge.")

Path = Annotated[str, typer.Argument(help="Path of the topic.")]


TOPIC = entity.EntityKind(
    arguments=(entity.parameter("path", Path),),
    list_arguments=(entity.parameter("prefix", entity.Prefix, ""),),
    columns=("path", "status", "subscription_count", "scheduled_messages", "size_bytes"),
    numbers_from=2,
    label=lambda path: f"topic {path!r}",
    list_all=lambda client, prefix: client.list_topics(prefix),
    get=lambda client, path: client.get_topic(path),
    delete=lambda client, path: client.delete_topic(path),
    list_help="List topics.",
    show_help="Show the properties of a topic.",
    delete_help="Delete a topic, its subscriptions and all their messages.",
)
entity.register_list(topic_app, TOPIC)
entity.register_show(topic_app, TOPIC)


@topic_app.command("create")
@with_namespace
def create(
    path: Path,
    ttl: entity.TimeToLive = None,
    duplicate_window: entity.Duplicates = None,
    size_mb: entity.Size = 1024,
    delete_when_idle: entity.IdleTime = None,
    partitioned: entity.Partitioned = False,
    status: entity.Status = "Active",
    metadata: entity.Note = "",
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
        default_message_time_to_live=entity.parse_duration(ttl, None),
        requires_duplicate_detection=duplicate_window is not None,
        duplicate_detection_history_time_window=entity.parse_duration(
            duplicate_window, TopicProperties(path=path).duplicate_detection_history_time_window
        ),
        max_size_in_megabytes=size_mb,
        auto_delete_on_idle=entity.parse_duration(delete_when_idle, None),
        enable_partitioning=partitioned,
        status=entity.parse_status(status),
        user_metadata=metadata,
    )
    entity.create_entity(
        where,
        output,
        dry_run,
        TOPIC.label(path),
        wanted,
        lambda each: each.create_topic(wanted),
        lambda each: entity.find_entity(each, path),
    )


entity.register_delete(topic_app, TOPIC)


@topic_app.command("purge")
@with_namespace
def purge(
    path: Path,
    dead_letters: entity.DeadLettersInstead = False,
    keep_deferred: entity.KeepDeferred = False,
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

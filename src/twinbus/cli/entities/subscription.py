"""``twinbus subscription list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as entity
from twinbus.cli.entities.purge import purge_source
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["Name", "Topic", "subscription_app"]

subscription_app = entity.entity_group(
    "subscription", "Subscriptions: list, show, create, delete, purge."
)

Topic = Annotated[
    str, typer.Argument(help="Path of the topic, or TOPIC/subscriptions/NAME for both.")
]
Name = Annotated[str, typer.Argument(help="Name of the subscription.", metavar="SUBSCRIPTION")]


SUBSCRIPTION = entity.EntityKind(
    arguments=(entity.parameter("topic", Topic), entity.parameter("name", Name)),
    list_arguments=(
        entity.parameter("topic", Annotated[str, typer.Argument(help="Path of the topic.")]),
    ),
    columns=("name", *entity.QUEUE_COLUMNS),
    numbers_from=2,
    label=lambda topic, name: f"subscription {name!r} of topic {topic!r}",
    list_all=lambda client, topic: client.list_subscriptions(topic),
    get=lambda client, topic, name: client.get_subscription(topic, name),
    delete=lambda client, topic, name: client.delete_subscription(topic, name),
    list_help="List the subscriptions of a topic with their message counts.",
    show_help="Show the properties and message counts of a subscription.",
    delete_help="Delete a subscription and all its messages.",
    command_class=entity.SubscriptionCommand,
)
entity.register_list(subscription_app, SUBSCRIPTION)
entity.register_show(subscription_app, SUBSCRIPTION)


@subscription_app.command("create", cls=entity.SubscriptionCommand)
@with_namespace
def create(
    topic: Topic,
    name: Name,
    lock_duration: entity.LockDuration = "1m",
    max_delivery_count: entity.DeliveryCount = 10,
    ttl: entity.TimeToLive = None,
    sessions: entity.Sessions = False,
    dead_letter_expired: entity.ExpiredDie = False,
    delete_when_idle: entity.IdleTime = None,
    forward_to: entity.ForwardTo = None,
    forward_dead_letters_to: entity.ForwardDead = None,
    status: entity.Status = "Active",
    metadata: entity.Note = "",
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Create a subscription that gets every message of its topic.

    Select messages with `twinbus rule`. Requires the Manage claim.
    """
    from twinbus.drivers.administration import SubscriptionProperties

    wanted = SubscriptionProperties(
        topic=topic,
        name=name,
        lock_duration=entity.parse_duration(lock_duration),
        max_delivery_count=max_delivery_count,
        default_message_time_to_live=entity.parse_duration(ttl, None),
        requires_session=sessions,
        enable_dead_lettering_on_message_expiration=dead_letter_expired,
        auto_delete_on_idle=entity.parse_duration(delete_when_idle, None),
        forward_to=forward_to,
        forward_dead_lettered_messages_to=forward_dead_letters_to,
        status=entity.parse_status(status),
        user_metadata=metadata,
    )
    entity.create_entity(
        where,
        output,
        dry_run,
        SUBSCRIPTION.label(topic, name),
        wanted,
        lambda each: each.create_subscription(wanted),
        lambda each: each.get_subscription(topic, name),
    )


entity.register_delete(subscription_app, SUBSCRIPTION)


@subscription_app.command("purge", cls=entity.SubscriptionCommand)
@with_namespace
def purge(
    topic: Topic,
    name: Name,
    dead_letters: entity.DeadLettersInstead = False,
    keep_deferred: entity.KeepDeferred = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Remove all messages of a subscription, except those that are locked by a receiver.

    Requires the Listen claim.
    """
    purge_source(
        where,
        output,
        f"{topic}/subscriptions/{name}",
        dead_letters=dead_letters,
        deferred=not keep_deferred,
        scheduled=False,
        yes=yes,
        dry_run=dry_run,
    )

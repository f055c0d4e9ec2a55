"""``twinbus subscription list|show|create|delete|purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.entities import commands as of
from twinbus.cli.entities.purge import purge_it
from twinbus.cli.shared.namespace_options import NamespaceTarget, with_namespace
from twinbus.cli.shared.output import DryRun, Output, Yes

__all__ = ["Name", "Topic", "subscription_app"]

subscription_app = of.entity_group(
    "subscription", "Subscriptions: list, show, create, delete, purge."
)

Topic = Annotated[
    str, typer.Argument(help="Path of the topic, or TOPIC/subscriptions/NAME for both.")
]
Name = Annotated[str, typer.Argument(help="Name of the subscription.", metavar="SUBSCRIPTION")]


@subscription_app.command("list")
@with_namespace
def list_subscriptions(
    topic: Annotated[str, typer.Argument(help="Path of the topic.")],
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """List the subscriptions of a topic with their message counts.

    Requires the Manage claim.
    """
    columns = ("name", *of.QUEUE_COLUMNS)
    of.list_entities(
        where, output, lambda each: each.list_subscriptions(topic), columns, numbers_from=2
    )


@subscription_app.command("show", cls=of.SubscriptionCommand)
@with_namespace
def show(topic: Topic, name: Name, output: Output = "table", *, where: NamespaceTarget) -> None:
    """Show the properties and message counts of a subscription.

    Requires the Manage claim.
    """
    of.show_entity(
        where, output, _named(topic, name), lambda each: each.get_subscription(topic, name)
    )


@subscription_app.command("create", cls=of.SubscriptionCommand)
@with_namespace
def create(
    topic: Topic,
    name: Name,
    lock_duration: of.LockDuration = "1m",
    max_delivery_count: of.DeliveryCount = 10,
    ttl: of.TimeToLive = None,
    sessions: of.Sessions = False,
    dead_letter_expired: of.ExpiredDie = False,
    delete_when_idle: of.IdleTime = None,
    forward_to: of.ForwardTo = None,
    forward_dead_letters_to: of.ForwardDead = None,
    status: of.Status = "Active",
    metadata: of.Note = "",
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
        lock_duration=of.duration(lock_duration),
        max_delivery_count=max_delivery_count,
        default_message_time_to_live=of.duration(ttl, None),
        requires_session=sessions,
        enable_dead_lettering_on_message_expiration=dead_letter_expired,
        auto_delete_on_idle=of.duration(delete_when_idle, None),
        forward_to=forward_to,
        forward_dead_lettered_messages_to=forward_dead_letters_to,
        status=of.status_of(status),
        user_metadata=metadata,
    )
    of.create_entity(
        where,
        output,
        dry_run,
        _named(topic, name),
        wanted,
        lambda each: each.create_subscription(wanted),
        lambda each: each.get_subscription(topic, name),
    )


@subscription_app.command("delete", cls=of.SubscriptionCommand)
@with_namespace
def delete(
    topic: Topic,
    name: Name,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Delete a subscription and all its messages.

    Requires the Manage claim.
    """
    of.delete_entity(
        where,
        output,
        yes=yes,
        dry_run=dry_run,
        named=_named(topic, name),
        get=lambda each: each.get_subscription(topic, name),
        delete=lambda each: each.delete_subscription(topic, name),
    )


@subscription_app.command("purge", cls=of.SubscriptionCommand)
@with_namespace
def purge(
    topic: Topic,
    name: Name,
    dead_letters: of.DeadLettersInstead = False,
    keep_deferred: of.KeepDeferred = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Remove all messages of a subscription, except those that are locked by a receiver.

    Requires the Listen claim.
    """
    purge_it(
        where,
        output,
        f"{topic}/subscriptions/{name}",
        dead_letters=dead_letters,
        deferred=not keep_deferred,
        scheduled=False,
        yes=yes,
        dry_run=dry_run,
    )


def _named(topic: str, name: str) -> str:
    return f"subscription {name!r} of topic {topic!r}"

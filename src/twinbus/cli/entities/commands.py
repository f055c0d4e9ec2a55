"""What ``queue``, ``topic``, ``subscription`` and ``rule`` share: list, show, create, delete.

Rule 1: a command that changes something says what it would do with ``--dry-run``.
Rule 2: what is deleted for good is asked for first, unless ``--yes`` is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, overload

import typer
from typer.core import TyperCommand

from twinbus.cli.shared.messages import split_subscription
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace
from twinbus.cli.shared.output import (
    check_output_format,
    confirm,
    plain,
    print_result,
    show_record,
    show_records,
)
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError, TwinbusError

if TYPE_CHECKING:
    from twinbus.drivers.administration import (
        AdministrationClient,
        QueueProperties,
        TopicProperties,
    )

__all__ = [
    "QUEUE_COLUMNS",
    "SubscriptionCommand",
    "create_entity",
    "delete_entity",
    "duration",
    "entity_group",
    "list_entities",
    "show_entity",
    "status_of",
    "taken",
]

T = TypeVar("T")

QUEUE_COLUMNS: Final = (
    "status",
    "active_messages",
    "dead_letter_messages",
    "scheduled_messages",
)
STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

# -- options of several nouns ---------------------------------------------------------------

Prefix = Annotated[str, typer.Option(help="Only paths that begin so.", metavar="TEXT")]
LockDuration = Annotated[
    str, typer.Option(help="How long a received message is locked.", metavar="TIME")
]
DeliveryCount = Annotated[
    int, typer.Option(help="Deliveries before a message is dead-lettered.", min=1)
]
TimeToLive = Annotated[
    str | None,
    typer.Option("--ttl", help="How long messages live unless they say less.", metavar="TIME"),
]
Sessions = Annotated[bool, typer.Option("--sessions", help="Messages belong to sessions.")]
ExpiredDie = Annotated[
    bool, typer.Option("--dead-letter-expired", help="Dead-letter what expires.")
]
IdleTime = Annotated[
    str | None,
    typer.Option("--delete-when-idle", help="Delete it after so long unused.", metavar="TIME"),
]
ForwardTo = Annotated[
    str | None, typer.Option(help="Hand every message on to this entity.", metavar="PATH")
]
ForwardDead = Annotated[
    str | None,
    typer.Option("--forward-dead-letters-to", help="Hand dead letters on to it.", metavar="PATH"),
]
Size = Annotated[int, typer.Option("--size-mb", help="Its quota in megabytes.", min=1)]
Duplicates = Annotated[
    str | None,
    typer.Option(
        "--duplicate-window", help="Drop messages whose id came within this time.", metavar="TIME"
    ),
]
Partitioned = Annotated[bool, typer.Option("--partitioned", help="Spread over partitions.")]
Status = Annotated[
    str, typer.Option(help="Active, Disabled, SendDisabled or ReceiveDisabled.", metavar="TEXT")
]
DeadLettersInstead = Annotated[
    bool, typer.Option("--dead-letters", help="Dead letters instead of the others.")
]
KeepDeferred = Annotated[bool, typer.Option("--keep-deferred", help="Leave deferred messages.")]
Note = Annotated[str, typer.Option("--metadata", help="A note that it carries.", metavar="TEXT")]


@overload
def duration(text: str) -> timedelta: ...
@overload
def duration(text: str | None, otherwise: T) -> timedelta | T: ...
def duration(text: str | None, otherwise: Any = None) -> Any:
    """A time from the command line; nothing is not what 0 is."""
    return otherwise if text is None else timedelta(seconds=seconds(text))


def status_of(text: str) -> str:
    """The status as the service spells it."""
    for status in STATUSES:
        if status.lower() == text.lower():
            return status
    raise ConfigurationError(
        f"--status cannot be {text!r:.40}", hint=f"Use one of {', '.join(STATUSES)}"
    )


def entity_group(name: str, explanation: str) -> typer.Typer:
    """The group of a noun's commands."""
    return typer.Typer(name=name, help=explanation, no_args_is_help=True, rich_markup_mode=None)


class SubscriptionCommand(TyperCommand):
    """A command whose first arguments are TOPIC SUBSCRIPTION, or TOPIC/subscriptions/SUBSCRIPTION
    as receivers write it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The first word: behind an option it could be the option's value.
        if args and (parts := split_subscription(args[0])) is not None:
            args = [*parts, *args[1:]]
        return super().parse_args(ctx, args)


# -- the verbs ------------------------------------------------------------------------------


def list_entities(
    where: NamespaceTarget,
    output: str,
    listing: Callable[[AdministrationClient], AsyncIterator[Any]],
    columns: Sequence[str],
    *,
    numbers_from: int | None = None,
) -> None:
    check_output_format(output)

    async def ask(namespace: Any) -> list[Any]:
        return [each async for each in listing(namespace.management)]

    show_records(
        [record_of(each) for each in run_with_namespace(where, ask)],
        output,
        columns,
        numbers_from=numbers_from,
    )


def show_entity(
    where: NamespaceTarget,
    output: str,
    named: str,
    get: Callable[[AdministrationClient], Awaitable[Any]],
) -> None:
    """``named`` is what it is called in a sentence: "queue 'orders'"."""
    check_output_format(output)
    show_record(
        record_of(run_with_namespace(where, lambda each: _found(each.management, named, get))),
        output,
    )


async def taken(
    management: AdministrationClient, path: str
) -> QueueProperties | TopicProperties | None:
    """The queue or topic that has this name; None: neither."""
    return await management.get_queue(path) or await management.get_topic(path)


def create_entity(
    where: NamespaceTarget,
    output: str,
    dry_run: bool,
    named: str,
    wanted: Any,
    create: Callable[[AdministrationClient], Awaitable[Any]],
    get: Callable[[AdministrationClient], Awaitable[Any]],
) -> None:
    check_output_format(output)
    record = _settings(wanted)

    async def ask(namespace: Any) -> None:
        if not dry_run:
            await create(namespace.management)
        elif await get(namespace.management) is not None:
            raise TwinbusError(f"the name of the {named} is taken", hint="Choose another name")

    run_with_namespace(where, ask)
    if dry_run:
        print_result(output, {"would_create": record}, f"the {named} would be created")
    else:
        print_result(output, {"created": record}, f"the {named} was created")


def delete_entity(
    where: NamespaceTarget,
    output: str,
    *,
    yes: bool,
    dry_run: bool,
    named: str,
    get: Callable[[AdministrationClient], Awaitable[Any]],
    delete: Callable[[AdministrationClient], Awaitable[None]],
) -> None:
    check_output_format(output)
    found = run_with_namespace(where, lambda each: _found(each.management, named, get))
    counts = getattr(found, "counts", None)
    holds = f" with {counts.total:,} messages in it" if counts is not None and counts.total else ""
    if dry_run:
        print_result(
            output, {"would_delete": record_of(found)}, f"the {named}{holds} would be deleted"
        )
        return
    confirm(yes, f"Delete the {named}{holds} for good?", "deletes it")
    run_with_namespace(where, lambda each: delete(each.management))
    print_result(output, {"deleted": record_of(found)}, f"the {named}{holds} was deleted")


async def _found(
    management: AdministrationClient,
    named: str,
    get: Callable[[AdministrationClient], Awaitable[Any]],
) -> Any:
    found = await get(management)
    if found is None:
        from twinbus.errors import EntityNotFound

        raise EntityNotFound(f"there is no {named}", hint="Check its spelling")
    return found


def record_of(entity: Any) -> dict[str, Any]:
    """Everything that is known of it, its counts among the rest."""
    record = _settings(entity)
    counts = getattr(entity, "counts", None)
    if counts is not None:
        record |= {f"{each.name}_messages": getattr(counts, each.name) for each in fields(counts)}
    for name in ("size_bytes", "subscription_count"):
        if hasattr(entity, name):
            record[name] = getattr(entity, name)
    return record


def _settings(entity: Any) -> dict[str, Any]:
    """What was chosen when it was made; what was not and is counted is left out."""
    return {each.name: plain(getattr(entity, each.name)) for each in fields(entity) if each.compare}

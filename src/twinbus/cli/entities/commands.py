"""Common parts of ``queue``, ``topic``, ``subscription`` and ``rule``: options and the verbs list,
show, create and delete.

Rule 1: every command that changes something has ``--dry-run``, which prints what it would do.
Rule 2: a permanent deletion asks for confirmation, unless ``--yes`` is given.
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

# -- options of several groups --------------------------------------------------------------

Prefix = Annotated[str, typer.Option(help="Prefix of the paths to list.", metavar="TEXT")]
LockDuration = Annotated[
    str, typer.Option(help="Lock duration of a received message.", metavar="TIME")
]
DeliveryCount = Annotated[
    int, typer.Option(help="Number of deliveries before a message is dead-lettered.", min=1)
]
TimeToLive = Annotated[
    str | None,
    typer.Option("--ttl", help="Default time to live of messages.", metavar="TIME"),
]
Sessions = Annotated[bool, typer.Option("--sessions", help="Require sessions.")]
ExpiredDie = Annotated[
    bool, typer.Option("--dead-letter-expired", help="Dead-letter expired messages.")
]
IdleTime = Annotated[
    str | None,
    typer.Option(
        "--delete-when-idle", help="Idle time after which the entity is deleted.", metavar="TIME"
    ),
]
ForwardTo = Annotated[
    str | None, typer.Option(help="Entity that every message is forwarded to.", metavar="PATH")
]
ForwardDead = Annotated[
    str | None,
    typer.Option(
        "--forward-dead-letters-to",
        help="Entity that dead letters are forwarded to.",
        metavar="PATH",
    ),
]
Size = Annotated[int, typer.Option("--size-mb", help="Maximum size in megabytes.", min=1)]
Duplicates = Annotated[
    str | None,
    typer.Option(
        "--duplicate-window",
        help="Duplicate detection window, for example 10m [no duplicate detection].",
        metavar="TIME",
    ),
]
Partitioned = Annotated[bool, typer.Option("--partitioned", help="Enable partitioning.")]
Status = Annotated[
    str,
    typer.Option(help="Status: Active, Disabled, SendDisabled or ReceiveDisabled.", metavar="TEXT"),
]
DeadLettersInstead = Annotated[
    bool, typer.Option("--dead-letters", help="Purge the dead-letter queue instead.")
]
KeepDeferred = Annotated[bool, typer.Option("--keep-deferred", help="Keep deferred messages.")]
Note = Annotated[str, typer.Option("--metadata", help="User metadata.", metavar="TEXT")]


@overload
def duration(text: str) -> timedelta: ...
@overload
def duration(text: str | None, otherwise: T) -> timedelta | T: ...
def duration(text: str | None, otherwise: Any = None) -> Any:
    """A time from the command line; ``otherwise`` if the option is missing."""
    return otherwise if text is None else timedelta(seconds=seconds(text))


def status_of(text: str) -> str:
    """The status as the service spells it."""
    for status in STATUSES:
        if status.lower() == text.lower():
            return status
    raise ConfigurationError(
        f"Invalid value for --status: {text!r:.40}",
        hint="Use Active, Disabled, SendDisabled or ReceiveDisabled",
    )


def entity_group(name: str, explanation: str) -> typer.Typer:
    """The command group of an entity kind."""
    return typer.Typer(name=name, help=explanation, no_args_is_help=True, rich_markup_mode=None)


class SubscriptionCommand(TyperCommand):
    """A command whose first arguments are TOPIC SUBSCRIPTION, or TOPIC/subscriptions/SUBSCRIPTION,
    the address of a receiver."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Only the first word: after an option it could be the value of the option.
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
    """``named`` is the entity in a sentence: "queue 'orders'"."""
    check_output_format(output)
    show_record(
        record_of(run_with_namespace(where, lambda each: _found(each.management, named, get))),
        output,
    )


async def taken(
    management: AdministrationClient, path: str
) -> QueueProperties | TopicProperties | None:
    """The queue or topic with this name, or None."""
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
            raise TwinbusError(
                f"Cannot create {named}: the name is in use", hint="Use another name"
            )

    run_with_namespace(where, ask)
    if dry_run:
        print_result(output, {"would_create": record}, f"{_capitalize(named)} would be created")
    else:
        print_result(output, {"created": record}, f"{_capitalize(named)} was created")


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
    holds = f" with {counts.total:,} messages" if counts is not None and counts.total else ""
    if dry_run:
        print_result(
            output,
            {"would_delete": record_of(found)},
            f"{_capitalize(named)}{holds} would be deleted",
        )
        return
    confirm(yes, f"Permanently delete {named}{holds}?", f"deletes {named}")
    run_with_namespace(where, lambda each: delete(each.management))
    print_result(output, {"deleted": record_of(found)}, f"{_capitalize(named)}{holds} was deleted")


async def _found(
    management: AdministrationClient,
    named: str,
    get: Callable[[AdministrationClient], Awaitable[Any]],
) -> Any:
    found = await get(management)
    if found is None:
        from twinbus.errors import EntityNotFound

        raise EntityNotFound(
            f"{_capitalize(named)} not found in the namespace", hint="Check the name"
        )
    return found


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def record_of(entity: Any) -> dict[str, Any]:
    """All properties of an entity, with its counts."""
    record = _settings(entity)
    counts = getattr(entity, "counts", None)
    if counts is not None:
        record |= {f"{each.name}_messages": getattr(counts, each.name) for each in fields(counts)}
    for name in ("size_bytes", "subscription_count"):
        if hasattr(entity, name):
            record[name] = getattr(entity, name)
    return record


def _settings(entity: Any) -> dict[str, Any]:
    """The settings of an entity, without counts and other measured values."""
    return {each.name: plain(getattr(entity, each.name)) for each in fields(entity) if each.compare}

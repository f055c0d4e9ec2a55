"""Common parts of ``queue``, ``topic``, ``subscription`` and ``rule``: options and the verbs list,
show, create and delete.

``list``, ``show`` and ``delete`` differ only by an EntityKind and are registered from it;
``create`` has its own options in each group.

Rule 1: every command that changes something has ``--dry-run``, which prints what it would do.
Rule 2: a permanent deletion asks for confirmation, unless ``--yes`` is given.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, overload

import typer
from typer.core import TyperCommand

from twinbus.cli.shared.messages import split_subscription
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
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
    "EntityKind",
    "SubscriptionCommand",
    "create_entity",
    "entity_group",
    "find_entity",
    "parameter",
    "parse_duration",
    "parse_status",
    "register_delete",
    "register_list",
    "register_show",
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
def parse_duration(text: str) -> timedelta: ...
@overload
def parse_duration(text: str | None, otherwise: T) -> timedelta | T: ...
def parse_duration(text: str | None, otherwise: Any = None) -> Any:
    """A time from the command line; ``otherwise`` if the option is missing."""
    return otherwise if text is None else timedelta(seconds=seconds(text))


def parse_status(text: str) -> str:
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


def parameter(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    """An argument or option of a registered command."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


_OUTPUT: Final = parameter("output", Output, "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityKind:
    """A kind of entity. Its functions get the command's arguments by name."""

    arguments: tuple[inspect.Parameter, ...]
    """Those of ``show`` and ``delete``, which name one entity."""
    list_arguments: tuple[inspect.Parameter, ...]
    columns: Sequence[str]
    numbers_from: int | None = None
    label: Callable[..., str]
    """The entity in a sentence: "queue 'orders'"."""
    list_all: Callable[..., AsyncIterator[Any]]
    get: Callable[..., Awaitable[Any]]
    delete: Callable[..., Awaitable[None]]
    list_help: str
    show_help: str
    delete_help: str
    command_class: type[TyperCommand] | None = None
    list_class: type[TyperCommand] | None = None


def register_list(group: typer.Typer, kind: EntityKind) -> None:
    def run(*, output: str, where: NamespaceTarget, **names: str) -> None:
        check_output_format(output)

        async def ask(namespace: Any) -> list[Any]:
            return [each async for each in kind.list_all(namespace.management, **names)]

        records = [to_record(each) for each in run_with_namespace(where, ask)]
        show_records(records, output, kind.columns, numbers_from=kind.numbers_from)

    options = (*kind.list_arguments, _OUTPUT)
    _register(group, "list", run, kind.list_help, options, kind.list_class)


def register_show(group: typer.Typer, kind: EntityKind) -> None:
    def run(*, output: str, where: NamespaceTarget, **names: str) -> None:
        check_output_format(output)
        found = run_with_namespace(where, lambda each: _require(each.management, kind, names))
        show_record(to_record(found), output)

    options = (*kind.arguments, _OUTPUT)
    _register(group, "show", run, kind.show_help, options, kind.command_class)


def register_delete(group: typer.Typer, kind: EntityKind) -> None:
    def run(*, yes: bool, dry_run: bool, output: str, where: NamespaceTarget, **names: str) -> None:
        check_output_format(output)
        found = run_with_namespace(where, lambda each: _require(each.management, kind, names))
        counts = getattr(found, "counts", None)
        holds = f" with {counts.total:,} messages" if counts is not None and counts.total else ""
        label, record = kind.label(**names), to_record(found)
        sentence = f"{_capitalize(label)}{holds}"
        if dry_run:
            print_result(output, {"would_delete": record}, f"{sentence} would be deleted")
            return
        confirm(yes, f"Permanently delete {label}{holds}?", f"deletes {label}")
        run_with_namespace(where, lambda each: kind.delete(each.management, **names))
        print_result(output, {"deleted": record}, f"{sentence} was deleted")

    options = (*kind.arguments, parameter("yes", Yes, False), parameter("dry_run", DryRun, False))
    _register(group, "delete", run, kind.delete_help, (*options, _OUTPUT), kind.command_class)


def _register(
    group: typer.Typer,
    verb: str,
    run: Callable[..., None],
    help_text: str,
    options: Sequence[inspect.Parameter],
    command_class: type[TyperCommand] | None,
) -> None:
    where = inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, annotation=NamespaceTarget)
    # Typer reads the options from the signature and the annotations.
    run.__signature__ = inspect.Signature([*options, where])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*options, where)}
    run.__doc__ = f"{help_text}\n\nRequires the Manage claim."
    group.command(verb, cls=command_class)(with_namespace(run))


async def find_entity(
    management: AdministrationClient, path: str
) -> QueueProperties | TopicProperties | None:
    """The queue or topic with this name, or None."""
    return await management.get_queue(path) or await management.get_topic(path)


def create_entity(
    where: NamespaceTarget,
    output: str,
    dry_run: bool,
    label: str,
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
                f"Cannot create {label}: the name is in use", hint="Use another name"
            )

    run_with_namespace(where, ask)
    if dry_run:
        print_result(output, {"would_create": record}, f"{_capitalize(label)} would be created")
    else:
        print_result(output, {"created": record}, f"{_capitalize(label)} was created")


async def _require(
    management: AdministrationClient, kind: EntityKind, names: Mapping[str, str]
) -> Any:
    found = await kind.get(management, **names)
    if found is None:
        from twinbus.errors import EntityNotFound

        label = _capitalize(kind.label(**names))
        raise EntityNotFound(f"{label} not found in the namespace", hint="Check the name")
    return found


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def to_record(entity: Any) -> dict[str, Any]:
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

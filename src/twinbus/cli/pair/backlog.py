"""``twinbus backlog list|show|cleanup``: the backlog queues on a secondary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.entities.commands import entity_group
from twinbus.cli.shared.namespace_options import PairTarget, with_pair
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    show_records,
)
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.encoding.transit import ReceivedMessage

__all__ = ["backlog_app"]

EXIT_LEFT = 3
"""At least one extra queue was kept because it contains messages."""

backlog_app = entity_group("backlog", "Backlog queues on the secondary: list, show, cleanup.")


@backlog_app.command("list")
@with_pair
def list_backlog(
    every: Annotated[
        bool, typer.Option("--all", help="Include the queues of all primaries of this secondary.")
    ] = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """List backlog queues with their message counts.

    Requires the Manage claim on the secondary.
    """
    check_output_format(output)
    import asyncio

    from twinbus.cli.pair.backlog_cleanup import list_backlog_queues

    async def ask() -> list[dict[str, Any]]:
        name = None if every else await where.primary_name()
        async with where.open("secondary") as secondary:
            return [
                {
                    "queue": queue.path,
                    "primary": parts.primary,
                    "index": parts.index,
                    "messages": queue.counts.active,
                    "dead_letters": queue.counts.dead_letter,
                    "percent_full": queue.percent_full,
                }
                for parts, queue in await list_backlog_queues(secondary, name)
            ]

    columns = ("queue", "messages", "dead_letters", "percent_full")
    show_records(asyncio.run(ask()), output, columns, numbers_from=1)


@backlog_app.command("show")
@with_pair
def show(
    index: Annotated[int, typer.Argument(help="Number of the backlog queue.", min=0)],
    count: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 10,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Use the dead-letter queue.")
    ] = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Peek at the messages of a backlog queue and their destinations.

    Requires the Listen claim on the secondary.
    """
    check_output_format(output)
    import asyncio

    from twinbus.cli.messages.receive import peek_messages
    from twinbus.cli.shared.messages import MessageSource, show_message_records, to_message_record
    from twinbus.common.entity_path import BacklogPath
    from twinbus.encoding.envelope.restored_message import read_destination

    async def ask() -> list[ReceivedMessage]:
        path = str(BacklogPath(await where.primary_name(), index))
        async with where.open("secondary") as secondary:
            return await peek_messages(secondary, MessageSource(path, dead_letters), count)

    found = asyncio.run(ask())
    records = [
        {"destination": read_destination(each.encoded)[0], **to_message_record(each)}
        for each in found
    ]
    columns = ("number", "enqueued", "destination", "message_id", "state", "dead_letter_reason")
    show_message_records(records, output, columns)


@backlog_app.command("cleanup")
@with_pair
def cleanup(
    backlog_queue_count: Annotated[
        int,
        typer.Option(
            help="Number of backlog queues that the pair uses; queues above it are extra.", min=1
        ),
    ],
    drain: Annotated[
        bool,
        typer.Option("--drain", help="First move the messages of the extra queues to the primary."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Delete empty extra backlog queues that remain from a larger --backlog-queue-count.

    A queue that contains an active, deferred, scheduled or dead-lettered message is never deleted.
    Sends to a queue are disabled before its last check, and enabled again if the queue is kept.
    Requires the Manage claim on the secondary; with --drain also Listen there and Send on the
    primary.

    Exit codes: 0 no extra queue is left, 1 the command failed, 2 wrong usage, 3 some were left.
    """
    check_output_format(output)
    if drain and dry_run:
        raise ConfigurationError(
            "--drain and --dry-run exclude each other", hint="Remove --drain or --dry-run"
        )
    if not dry_run:
        confirm(yes, "Delete the empty extra backlog queues?", "deletes queues")
    import asyncio

    from twinbus.cli.pair.backlog_cleanup import delete_extra_queues

    async def ask() -> list[dict[str, Any]]:
        name = await where.primary_name()
        async with where.open("secondary") as secondary:
            if not drain:
                return await delete_extra_queues(
                    secondary, name, backlog_queue_count, dry_run=dry_run
                )
            async with where.open("primary") as primary:
                return await delete_extra_queues(
                    secondary, name, backlog_queue_count, primary=primary
                )

    rows = asyncio.run(ask())
    show_records(rows, output, ("queue", "what", "why"))
    if any(each["what"] == "left" for each in rows):
        raise typer.Exit(EXIT_LEFT)

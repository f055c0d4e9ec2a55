"""``twinbus backlog list|show|cleanup``: the queues in which messages wait for their primary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.entities import commands as of
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
"""A queue was left, because messages are in it."""

backlog_app = of.entity_group("backlog", "Backlog queues on the secondary: list, show, cleanup.")


@backlog_app.command("list")
@with_pair
def list_backlog(
    every: Annotated[
        bool, typer.Option("--all", help="Those of every primary that uses this secondary.")
    ] = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """List the backlog queues with what waits in them. Needs Manage on the secondary."""
    check_output_format(output)
    import asyncio

    from twinbus.cli.pair.backlog_cleanup import listed

    async def ask() -> list[dict[str, Any]]:
        name = None if every else await where.primary_name()
        async with where.opened("secondary") as secondary:
            return [
                {
                    "queue": queue.path,
                    "primary": parts.primary,
                    "index": parts.index,
                    "messages": queue.counts.active,
                    "dead_letters": queue.counts.dead_letter,
                    "percent_full": queue.percent_full,
                }
                for parts, queue in await listed(secondary, name)
            ]

    columns = ("queue", "messages", "dead_letters", "percent_full")
    show_records(asyncio.run(ask()), output, columns, numbers_from=1)


@backlog_app.command("show")
@with_pair
def show(
    index: Annotated[int, typer.Argument(help="The queue's number.", min=0)],
    count: Annotated[int, typer.Option(help="At most so many.", min=1)] = 10,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Of its dead-letter queue.")
    ] = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Look at messages of a backlog queue and where they are meant to go; nothing is taken.

    Needs Listen on the secondary.
    """
    check_output_format(output)
    import asyncio

    from twinbus.cli.messages.receive import peeked
    from twinbus.cli.shared.messages import MessageSource, record_of_message, show_message_records
    from twinbus.common.entity_path import BacklogPath
    from twinbus.encoding.envelope.restored_message import read_destination

    async def ask() -> list[ReceivedMessage]:
        path = str(BacklogPath(await where.primary_name(), index))
        async with where.opened("secondary") as secondary:
            return await peeked(secondary, MessageSource(path, dead_letters), count)

    found = asyncio.run(ask())
    records = [
        {"destination": read_destination(each.encoded)[0], **record_of_message(each)}
        for each in found
    ]
    columns = ("number", "enqueued", "destination", "message_id", "state", "dead_letter_reason")
    show_message_records(records, output, columns)


@backlog_app.command("cleanup")
@with_pair
def cleanup(
    backlog_queue_count: Annotated[
        int,
        typer.Option(help="How many backlog queues the pair uses; those beyond are extra.", min=1),
    ],
    drain: Annotated[
        bool,
        typer.Option("--drain", help="First bring home what waits in the extra queues."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Delete extra backlog queues that are empty, left over from a larger --backlog-queue-count.

    A queue with a message in it, waiting, set aside, scheduled or dead-lettered, is never deleted.
    Sends to a queue are switched off before it is looked at for the last time, and on again if it
    stays. Needs Manage on the secondary; with --drain also Listen there and Send on the primary.

    Exit codes: 0 no extra queue is left, 1 the command failed, 2 wrong usage, 3 some were left.
    """
    check_output_format(output)
    if drain and dry_run:
        raise ConfigurationError("--drain moves messages", hint="Leave it or --dry-run out")
    if not dry_run:
        confirm(yes, "Delete the extra backlog queues that are empty?", "deletes queues")
    import asyncio

    from twinbus.cli.pair.backlog_cleanup import cleaned

    async def ask() -> list[dict[str, Any]]:
        name = await where.primary_name()
        async with where.opened("secondary") as secondary:
            if not drain:
                return await cleaned(secondary, name, backlog_queue_count, dry_run=dry_run)
            async with where.opened("primary") as primary:
                return await cleaned(secondary, name, backlog_queue_count, primary=primary)

    rows = asyncio.run(ask())
    show_records(rows, output, ("queue", "what", "why"))
    if any(each["what"] == "left" for each in rows):
        raise typer.Exit(EXIT_LEFT)

"""``twinbus dlq list|show|resubmit|drop``: dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.entities.commands import entity_group
from twinbus.cli.entities.purge import purge_source
from twinbus.cli.messages.receive import FromNumber, peek_messages
from twinbus.cli.shared.messages import parse_source, show_messages
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    plural,
    print_result,
    show_progress,
    show_records,
)
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["dlq_app"]

dlq_app = entity_group("dlq", "Dead letters: list, show, resubmit, drop.")

Path = Annotated[str, typer.Argument(help="Queue, or <topic>/subscriptions/<name>.")]
IDS = ("auto", "keep", "new")


@dlq_app.command("list")
@with_namespace
def list_dead_letters(
    everything: Annotated[
        bool, typer.Option("--all", help="Include entities without dead letters.")
    ] = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """List the number of dead letters of each queue and subscription.

    Requires the Manage claim.
    """
    check_output_format(output)
    counts = run_with_namespace(where, _counts)
    found = [each for each in counts if everything or any(list(each.values())[1:])]
    show_records(found, output, ("entity", "dead_letters", "transfer_dead_letters"), numbers_from=1)


async def _counts(namespace: NamespaceConnection) -> list[dict[str, Any]]:
    management = namespace.management
    found = [(each.path, each.counts) async for each in management.list_queues()]
    topics = [each.path async for each in management.list_topics()]
    for topic in topics:
        async for each in management.list_subscriptions(topic):
            found.append((f"{topic}/subscriptions/{each.name}", each.counts))
    return [
        {
            "entity": path,
            "dead_letters": counts.dead_letter,
            "transfer_dead_letters": counts.transfer_dead_letter,
        }
        for path, counts in found
    ]


@dlq_app.command("show")
@with_namespace
def show(
    path: Path,
    count: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 10,
    from_number: FromNumber = 1,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Peek at dead letters and their reasons.

    Requires the Listen claim.
    """
    check_output_format(output)
    source = parse_source(path, dead_letters=True)
    found = run_with_namespace(where, lambda each: peek_messages(each, source, count, from_number))
    show_messages(found, output, as_dead_letters=True)


@dlq_app.command("resubmit")
@with_namespace
def resubmit(
    path: Path,
    to: Annotated[
        str | None,
        typer.Option(help="Queue or topic to send to [the original queue].", metavar="PATH"),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Maximum number of messages, oldest first [all].", min=1)
    ] = None,
    message_id: Annotated[
        list[str] | None,
        typer.Option("--id", help="Message id of a message to send; repeatable.", metavar="ID"),
    ] = None,
    number: Annotated[
        list[int] | None,
        typer.Option(help="Sequence number of a message to send; repeatable.", min=1),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(help="Dead-letter reason of the messages to send, as in `dlq show`."),
    ] = None,
    ids: Annotated[
        str,
        typer.Option(
            help="Message ids: keep, new, or auto (new if the target detects duplicates).",
        ),
    ] = "auto",
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Send dead letters to their queue again.

    A message is removed from the dead-letter queue only after its target has accepted it: a crash
    in between repeats the message and loses none. Its dead-letter reason is removed and its time
    to live restarts. A subscription cannot be sent to: use --to with its topic, whose subscriptions
    all get a copy. With several of --id, --number and --reason a message must match all of them;
    the other messages are received and abandoned, which increases their delivery count.

    Requires the Listen and Send claims.
    """
    check_output_format(output)
    if ids not in IDS:
        raise ConfigurationError(
            f"Invalid value for --ids: {ids!r:.40}", hint="Use auto, keep or new"
        )
    source = parse_source(path, dead_letters=True)
    if to is None and source.topic is not None:
        raise ConfigurationError(
            f"Subscription {source.entity!r} cannot be sent to",
            hint=f"Add --to {source.topic} if all its subscriptions may get a copy",
        )
    from twinbus.cli.messages import resubmit as work

    target = to or source.entity
    choice = work.Choice(frozenset(message_id or ()), frozenset(number or ()), reason)
    if dry_run:
        found = run_with_namespace(
            where, lambda each: work.count_matching(each, source, choice, count)
        )
        sentence = f"{plural(found, 'message')} would be sent from {source} to {target!r}"
        print_result(output, {"would_resubmit": found, "to": target}, sentence)
        return
    with show_progress("resubmitted", output) as progress:
        done = run_with_namespace(
            where,
            lambda each: work.resubmit_dead_letters(
                each, source, target, choice, count, ids, progress
            ),
        )
    changed = ", with new ids" if done.has_new_ids else ""
    print_result(
        output,
        {"resubmitted": done.count, "to": target, "new_ids": done.has_new_ids},
        f"{plural(done.count, 'message')} sent from {source} to {target!r}{changed}",
    )


@dlq_app.command("drop")
@with_namespace
def drop(
    path: Path,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Permanently remove all dead letters of a queue or subscription.

    Requires the Listen claim.
    """
    purge_source(
        where,
        output,
        path,
        dead_letters=True,
        deferred=True,
        scheduled=False,
        yes=yes,
        dry_run=dry_run,
    )

"""``twinbus queue purge`` and ``twinbus reset``: empty a queue, or a whole namespace.

Both remove messages for good, so both ask first, unless ``--yes`` is given or ``--dry-run`` only
shows what would go.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from twinbus.cli.admin_client import (
    DEFAULT_URL,
    AdminClient,
    AdminConnectionString,
    AdminNamespace,
    AdminUrl,
)
from twinbus.cli.output import check_output, counted
from twinbus.errors import ConfigurationError

queue_app = typer.Typer(
    name="queue", help="Queues of a running broker.", no_args_is_help=True, rich_markup_mode=None
)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and stop.")]
Output = Annotated[str, typer.Option(help="text or json.")]


@queue_app.callback()
def _queues() -> None:
    """Queues of a running broker."""


@queue_app.command("purge")
def purge(
    path: Annotated[str, typer.Argument(help="The queue, or <topic>/subscriptions/<name>.")],
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Its dead-letter queue instead.")
    ] = False,
    keep_deferred: Annotated[
        bool, typer.Option("--keep-deferred", help="Leave deferred messages.")
    ] = False,
    keep_scheduled: Annotated[
        bool, typer.Option("--keep-scheduled", help="Leave scheduled messages.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "text",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Remove the messages of a queue; those that a receiver holds are left to it."""
    check_output(output, "text")
    client = AdminClient.from_options(admin, connection_string, namespace)
    where = f"the dead-letter queue of {path!r}" if dead_letters else repr(path)
    address = client.in_namespace(f"queues/{path}/purge")
    wanted = {
        "dead_letters": dead_letters,
        "deferred": not keep_deferred,
        "scheduled": not keep_scheduled,
    }
    count = client.post(address, {**wanted, "dry_run": True})["removed_count"]
    found = counted(count, "message")
    if dry_run:
        _say(output, {"would_remove": count}, f"{found} would be removed from {where}")
        return
    _confirm(yes, f"Remove {found} from {where} for good?")
    purged = client.post(address, wanted)
    held = purged["locked_count"]
    rest = f"; receivers hold {counted(held, 'message')}, which stay" if held else ""
    _say(
        output, purged, f"{counted(purged['removed_count'], 'message')} removed from {where}{rest}"
    )


def reset(
    keep_entities: Annotated[
        bool, typer.Option("--keep-entities", help="Remove the messages only.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "text",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Remove all messages of a namespace, and its queues, topics and subscriptions."""
    check_output(output, "text")
    client = AdminClient.from_options(admin, connection_string, namespace)
    name = client.namespace
    what = "all messages" if keep_entities else "all messages and entities"
    if dry_run:
        _show_what_goes(client, output, what)
        return
    _confirm(yes, f"Remove {what} of the namespace {name!r} for good?")
    done = client.post(client.in_namespace("reset"), {"keep_entities": keep_entities})
    fate = "emptied" if keep_entities else "removed"
    _say(
        output, done, f"{done['entity_count']} queues, topics and subscriptions {fate} in {name!r}"
    )


def _show_what_goes(client: AdminClient, output: str, what: str) -> None:
    queues = [each["path"] for each in client.get(client.in_namespace("queues"))]
    topics = client.get(client.in_namespace("topics"))
    inside = sum(each["subscription_count"] for each in topics)
    values = {
        "would_remove": what,
        "queues": queues,
        "topics": [each["path"] for each in topics],
        "subscription_count": inside,
    }
    counts = (
        f"{counted(len(queues), 'queue')}, {counted(len(topics), 'topic')}, "
        f"{counted(inside, 'subscription')}"
    )
    _say(output, values, f"{what} of {client.namespace!r} would be removed: {counts}")


def _confirm(is_given: bool, question: str) -> None:
    if is_given:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "this removes messages for good, and nobody is there to be asked",
            hint="Give --yes, or --dry-run to see what would be removed",
        )
    typer.confirm(question, abort=True)


def _say(output: str, values: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(values) if output == "json" else text)

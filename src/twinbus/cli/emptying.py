"""``twinbus reset``: empty a whole namespace of a running broker of ours.

It removes messages for good, so it asks first, unless ``--yes`` is given or ``--dry-run`` only
shows what would go.
"""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.admin_client import (
    DEFAULT_URL,
    AdminClient,
    AdminConnectionString,
    AdminNamespace,
    AdminUrl,
)
from twinbus.cli.showing import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    counted,
    print_result,
)


def reset(
    keep_entities: Annotated[
        bool, typer.Option("--keep-entities", help="Remove the messages only.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Remove all messages of a namespace, and its queues, topics and subscriptions."""
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    name = client.namespace
    what = "all messages" if keep_entities else "all messages and entities"
    if dry_run:
        _show_what_goes(client, output, what)
        return
    confirm(yes, f"Remove {what} of the namespace {name!r} for good?", "removes messages")
    done = client.post(client.in_namespace("reset"), {"keep_entities": keep_entities})
    fate = "emptied" if keep_entities else "removed"
    print_result(
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
    print_result(output, values, f"{what} of {client.namespace!r} would be removed: {counts}")

"""``twinbus fault`` and ``twinbus reset``.

``twinbus fault …``: switch failures of a running broker on and off.

``twinbus reset``: empty a whole namespace of a running broker of ours.

It removes messages for good, so it asks first, unless ``--yes`` is given or ``--dry-run`` only
shows what would go.

Rule 1: the broker's parts are loaded by the commands that need them: all commands load this.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from twinbus.cli.shared.admin_client import (
    DEFAULT_URL,
    AdminClient,
    AdminConnectionString,
    AdminNamespace,
    AdminUrl,
)
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    counted,
    print_result,
    show_json,
    show_records,
    show_table,
)
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError

fault_app = typer.Typer(
    name="fault",
    help="Switch failures of a running broker on and off.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@fault_app.command("add")
def add(
    kind: Annotated[str, typer.Argument(help="One of `twinbus fault kinds`.")],
    entity: Annotated[
        str, typer.Option(help="Path of an entity, or the beginning of paths and a *.")
    ] = "",
    subsystem: Annotated[str, typer.Option(help="All entities of a subsystem.")] = "",
    partition: Annotated[int | None, typer.Option(help="One partition of the entity.")] = None,
    how: Annotated[str, typer.Option(help="The form of the failure.")] = "",
    lasts: Annotated[str | None, typer.Option("--for", help="How long, as 30s or 5m.")] = None,
    after: Annotated[str | None, typer.Option(help="Begin so much later.")] = None,
    name: Annotated[str, typer.Option("--id", help="A name to clear it by.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other option of the kind; repeatable.", metavar="KEY=JSON"),
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Switch a failure on."""
    options: dict[str, Any] = {"how": how, "id": name, **_settings(option or [])}
    if lasts is not None:
        options["lasts_s"] = seconds(lasts)
    if after is not None:
        options["starts_after_s"] = seconds(after)
    scope = {"entity": entity, "subsystem": subsystem, "partition": partition}
    from twinbus.broker.faults.fault import Fault

    # Checked here first: what is wrong is said without a broker, too.
    check_output_format(output)
    fault = Fault.from_json({**options, "kind": kind, "scope": scope})
    if dry_run:
        sentence = f"{kind} would be switched on for {fault.scope}"
        print_result(output, {"would_add": fault.to_json()}, sentence)
        return
    client = AdminClient.from_options(admin, connection_string, namespace)
    added = client.post(client.in_namespace("faults"), fault.to_json())
    _show([added], output)


@fault_app.command("list")
def list_faults(
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Show what is switched on, until when, and how often it struck."""
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    _show(client.get(client.in_namespace("faults")), output)


@fault_app.command("clear")
def clear(
    fault_id: Annotated[str | None, typer.Argument(help="Its id; all of them if left out.")] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Switch one failure off, or all of them."""
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    if dry_run:
        there = [each["id"] for each in client.get(client.in_namespace("faults"))]
        found = [each for each in there if fault_id in (None, each)]
        if fault_id is not None and not found:
            names = ", ".join(map(repr, there))
            raise ConfigurationError(
                f"there is no fault {fault_id!r:.60}",
                hint=f"Switched on: {names}" if names else "No fault is switched on",
            )
        print_result(
            output, {"would_clear": found}, f"{counted(len(found), 'fault')} would be cleared"
        )
        return
    path = "faults" if fault_id is None else f"faults/{fault_id}"
    done = client.delete(client.in_namespace(path))
    print_result(output, done, f"{counted(done['cleared'], 'fault')} cleared")


@fault_app.command("kinds")
def kinds(output: Output = "table") -> None:
    """Show every kind of failure with its options."""
    from twinbus.broker.faults.fault import KINDS

    check_output_format(output)
    if output != "table":
        told = {
            name: {"summary": kind.summary, "options": sorted(kind.options)}
            for name, kind in KINDS.items()
        }
        show_json(told, output)
        return
    rows = [
        (name, kind.summary, ", ".join(_told(*each) for each in kind.options.items()))
        for name, kind in KINDS.items()
    ]
    show_table(("kind", "what happens", "options"), rows)


@fault_app.command("stop")
def stop(
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Stop the whole namespace, while the others of the broker run on."""
    _whole_namespace("stop", "stopped", dry_run, output, (admin, connection_string, namespace))


@fault_app.command("start")
def start(
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Start a stopped namespace again."""
    _whole_namespace("start", "started", dry_run, output, (admin, connection_string, namespace))


def _whole_namespace(
    verb: str, done: str, dry_run: bool, output: str, where: tuple[str, str | None, str | None]
) -> None:
    check_output_format(output)
    client = AdminClient.from_options(*where)
    name = client.namespace
    if dry_run:
        print_result(output, {f"would_{verb}": name}, f"{name} would be {done}")
        return
    client.post(client.in_namespace(verb))
    print_result(output, {done: name}, f"{name} {done}")


def _told(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"{name}={'|'.join(value)}"
    return name if value is None else f"{name}={value:g}" if isinstance(value, float) else name


def _settings(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--set {text!r:.60} has no value", hint="Write KEY=VALUE")
        try:
            found[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            # Text needs no quotes.
            found[key.replace("-", "_")] = value
    return found


def _show(faults: list[dict[str, Any]], output: str) -> None:
    if output != "table":
        show_records(faults, output, ())
        return
    if not faults:
        typer.echo("no fault is switched on")
        return
    columns = ("id", "kind", "how", "where", "phase", "remaining", "hits")
    show_table(columns, [_row(each) for each in faults])


def _row(told: dict[str, Any]) -> tuple[str, ...]:
    from twinbus.broker.faults.fault import Scope

    remaining_s = told.get("remaining_s")
    return (
        str(told.get("id", "")),
        told.get("kind", ""),
        told.get("how", ""),
        str(Scope(**told.get("scope", {}))),
        told.get("phase", "over"),
        "until cleared" if remaining_s is None else f"{remaining_s:.0f} s",
        str(told.get("hit_count", "")),
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

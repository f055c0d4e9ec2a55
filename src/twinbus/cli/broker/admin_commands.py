"""``twinbus fault`` and ``twinbus reset``: administration of a running twinbus broker.

``fault`` switches failures on and off; ``reset`` empties a whole namespace. ``reset`` removes
messages permanently, so it asks for confirmation, unless ``--yes`` or ``--dry-run`` is given.

Rule 1: the broker's modules are imported by the commands that need them, because every command
        imports this module.
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
    plural,
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
    kind: Annotated[str, typer.Argument(help="Kind of fault, as listed by `twinbus fault kinds`.")],
    entity: Annotated[
        str, typer.Option(help="Path of an entity, or a prefix of paths followed by *.")
    ] = "",
    subsystem: Annotated[str, typer.Option(help="Subsystem: all its entities are affected.")] = "",
    partition: Annotated[int | None, typer.Option(help="Partition of the entity.")] = None,
    how: Annotated[str, typer.Option(help="Variant of the fault.")] = "",
    lasts: Annotated[
        str | None, typer.Option("--for", help="Duration of the fault, for example 30s or 5m.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Delay before the fault starts, for example 30s.")
    ] = None,
    name: Annotated[str, typer.Option("--id", help="Id of the fault, for `fault clear`.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="Other option of the kind; repeatable.", metavar="KEY=JSON"),
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Switch a fault on.

    Requires the Manage claim.
    """
    options: dict[str, Any] = {"how": how, "id": name, **_settings(option or [])}
    if lasts is not None:
        options["lasts_s"] = seconds(lasts)
    if after is not None:
        options["starts_after_s"] = seconds(after)
    scope = {"entity": entity, "subsystem": subsystem, "partition": partition}
    from twinbus.broker.faults.fault import Fault

    # Checked before the request: a wrong option is reported without a broker.
    check_output_format(output)
    fault = Fault.from_json({**options, "kind": kind, "scope": scope})
    if dry_run:
        sentence = f"Fault {kind} would be switched on for {fault.scope}"
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
    """List the faults that are switched on, their remaining time and their number of hits.

    Requires the Manage claim.
    """
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    _show(client.get(client.in_namespace("faults")), output)


@fault_app.command("clear")
def clear(
    fault_id: Annotated[str | None, typer.Argument(help="Id of the fault [all faults].")] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Switch one fault off, or all faults.

    Requires the Manage claim.
    """
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    if dry_run:
        active = [each["id"] for each in client.get(client.in_namespace("faults"))]
        found = [each for each in active if fault_id in (None, each)]
        if fault_id is not None and not found:
            names = ", ".join(map(repr, active))
            raise ConfigurationError(
                f"Fault {fault_id!r:.60} not found in namespace {client.namespace!r}",
                hint=f"Use one of {names}" if names else "No fault is switched on",
            )
        print_result(
            output, {"would_clear": found}, f"{plural(len(found), 'fault')} would be cleared"
        )
        return
    path = "faults" if fault_id is None else f"faults/{fault_id}"
    done = client.delete(client.in_namespace(path))
    print_result(output, done, f"{plural(done['cleared'], 'fault')} cleared")


@fault_app.command("kinds")
def kinds(output: Output = "table") -> None:
    """List the kinds of faults with their options."""
    from twinbus.broker.faults.fault import KINDS

    check_output_format(output)
    if output != "table":
        records = {
            name: {"summary": kind.summary, "options": sorted(kind.options)}
            for name, kind in KINDS.items()
        }
        show_json(records, output)
        return
    rows = [
        (name, kind.summary, ", ".join(_format_option(*each) for each in kind.options.items()))
        for name, kind in KINDS.items()
    ]
    show_table(("kind", "effect", "options"), rows)


@fault_app.command("stop")
def stop(
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Stop a namespace; the other namespaces of the broker keep running.

    Requires the Manage claim.
    """
    _whole_namespace("stop", "stopped", dry_run, output, (admin, connection_string, namespace))


@fault_app.command("start")
def start(
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Start a stopped namespace.

    Requires the Manage claim.
    """
    _whole_namespace("start", "started", dry_run, output, (admin, connection_string, namespace))


def _whole_namespace(
    verb: str, done: str, dry_run: bool, output: str, where: tuple[str, str | None, str | None]
) -> None:
    check_output_format(output)
    client = AdminClient.from_options(*where)
    name = client.namespace
    if dry_run:
        print_result(output, {f"would_{verb}": name}, f"Namespace {name!r} would be {done}")
        return
    client.post(client.in_namespace(verb))
    print_result(output, {done: name}, f"Namespace {name!r} {done}")


def _format_option(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"{name}={'|'.join(value)}"
    return name if value is None else f"{name}={value:g}" if isinstance(value, float) else name


def _settings(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"Invalid value for --set: {text!r:.60}", hint="Use --set KEY=VALUE"
            )
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
        typer.echo("No fault is switched on")
        return
    columns = ("id", "kind", "how", "where", "phase", "remaining", "hits")
    show_table(columns, [_row(each) for each in faults])


def _row(fault: dict[str, Any]) -> tuple[str, ...]:
    from twinbus.broker.faults.fault import Scope

    remaining_s = fault.get("remaining_s")
    return (
        str(fault.get("id", "")),
        fault.get("kind", ""),
        fault.get("how", ""),
        str(Scope(**fault.get("scope", {}))),
        fault.get("phase", "over"),
        "until cleared" if remaining_s is None else f"{remaining_s:.0f} s",
        str(fault.get("hit_count", "")),
    )


def reset(
    keep_entities: Annotated[
        bool, typer.Option("--keep-entities", help="Keep the entities, remove only messages.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Remove all messages and entities of a namespace.

    Requires the Manage claim.
    """
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    name = client.namespace
    what = "all messages" if keep_entities else "all messages and entities"
    if dry_run:
        _show_contents(client, output, what)
        return
    confirm(yes, f"Permanently remove {what} of namespace {name!r}?", "removes messages")
    done = client.post(client.in_namespace("reset"), {"keep_entities": keep_entities})
    result = "emptied" if keep_entities else "removed"
    print_result(
        output,
        done,
        f"{done['entity_count']} queues, topics and subscriptions {result} in {name!r}",
    )


def _show_contents(client: AdminClient, output: str, what: str) -> None:
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
        f"{plural(len(queues), 'queue')}, {plural(len(topics), 'topic')}, "
        f"{plural(inside, 'subscription')}"
    )
    print_result(
        output, values, f"{what.capitalize()} of {client.namespace!r} would be removed: {counts}"
    )

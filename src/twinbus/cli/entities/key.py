"""``twinbus key list|rotate|create|delete``: access rules of a queue or topic, or of a namespace.

The keys of an entity are part of its description, which the Manage claim may read and change. The
keys of a whole namespace are not: Azure has them in its resource manager, the twinbus broker in its
HTTP API (``--admin``).

Rule 1: keys are printed only with ``--show-keys``.
"""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Annotated, Any

import typer

from twinbus.cli.entities.commands import entity_group
from twinbus.cli.shared.admin_client import (
    DEFAULT_URL,
    URL_VARIABLE,
    AdminClient,
    AdminConnectionString,
    AdminNamespace,
    AdminUrl,
)
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    print_result,
    show_records,
)
from twinbus.errors import ConfigurationError, EntityNotFound, TwinbusError

__all__ = ["key_app"]

key_app = entity_group(
    "key", "Access rules and keys of an entity or a namespace: list, rotate, create, delete."
)

KEY_BYTES = 32
_CLAIMS = {each.lower(): each for each in ("Send", "Listen", "Manage")}

Path = Annotated[
    str | None, typer.Argument(help="Queue or topic [the whole namespace, with --admin].")
]
Rule = Annotated[str, typer.Argument(help="Name of the access rule.")]
ShowKeys = Annotated[bool, typer.Option("--show-keys", help="Show the keys.")]


@key_app.command("list")
@with_namespace
def list_keys(
    path: Path = None,
    show_keys: ShowKeys = False,
    admin: Annotated[
        str | None,
        typer.Option(
            help="HTTP address of a twinbus broker: list the rules of the namespace, without keys.",
            envvar=URL_VARIABLE,
            metavar="URL",
        ),
    ] = None,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """List the access rules of a queue or topic with their claims.

    Requires the Manage claim.
    """
    check_output_format(output)
    if path is None and admin is not None:
        client = AdminClient.from_options(admin, where.text())
        rules = client.get(client.in_namespace("rules"))
        listed = [{"name": each["name"], "rights": each["claims"]} for each in rules]
        show_records(listed, output, ("name", "rights"))
        return
    entity = _entity(path)
    found = run_with_namespace(where, lambda each: each.management.access_rules(entity))
    records: list[dict[str, Any]] = [{"name": each.name, "rights": each.rights} for each in found]
    columns = ["name", "rights"]
    if show_keys:
        columns += ["primary_key", "secondary_key"]
        for record, each in zip(records, found, strict=True):
            record |= {"primary_key": each.primary_key, "secondary_key": each.secondary_key}
    show_records(records, output, columns)


@key_app.command("rotate")
@with_namespace
def rotate(
    path: Annotated[str, typer.Argument(help="Queue or topic.")],
    rule: Annotated[str, typer.Argument(help="Name of the access rule.")],
    which: Annotated[str, typer.Option(help="Key to replace: primary or secondary.")] = "secondary",
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show the new key.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Replace a key of an access rule. Clients with the old key are refused at once.

    To avoid an outage, move all clients to the other key first. Requires the Manage claim.
    """
    check_output_format(output)
    if which not in ("primary", "secondary"):
        raise ConfigurationError(
            f"Invalid value for --which: {which!r:.40}", hint="Use primary or secondary"
        )
    rules = run_with_namespace(where, lambda each: each.management.access_rules(path))
    if rule.lower() not in (each.name.lower() for each in rules):
        names = ", ".join(each.name for each in rules) or "none"
        raise EntityNotFound(
            f"Access rule {rule!r} not found in {path!r}",
            path=path,
            hint=f"Existing access rules: {names}",
        )
    named = f"{which} key of access rule {rule!r} of {path!r}"
    record = {"path": path, "rule": rule, "which": which}
    if dry_run:
        print_result(output, {"would_rotate": record}, f"The {named} would be replaced")
        return
    confirm(yes, f"Replace the {named}?", "replaces a key")
    import base64
    import secrets

    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    run_with_namespace(where, lambda each: each.management.set_access_key(path, rule, which, key))
    shown = {**record, "key": key} if show_keys else record
    hint = f": {key}" if show_keys else "; show it with `twinbus key list --show-keys`"
    print_result(output, {"rotated": shown}, f"The {named} was replaced{hint}")


@key_app.command("create")
def create(
    rule: Rule,
    claims: Annotated[
        str,
        typer.Option(
            "--claims",
            "--rights",
            help="Claims, separated by commas: Send, Listen, Manage.",
            metavar="LIST",
        ),
    ],
    save: Annotated[
        FilePath | None,
        typer.Option(
            help="New file for the connection string of the rule, readable by its owner only.",
            metavar="FILE",
        ),
    ] = None,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show the new keys.")] = False,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Create an access rule of a whole namespace of a running `twinbus serve`.

    The keys are returned only once: use --save or --show-keys. Requires the Manage claim. On Azure
    use `az servicebus namespace authorization-rule create`.
    """
    check_output_format(output)
    wanted = _claims(claims)
    if save is None and not show_keys and not dry_run:
        raise ConfigurationError(
            "The keys of a new access rule are returned only once",
            hint="Add --save FILE or --show-keys",
        )
    client = AdminClient.from_options(admin, connection_string, namespace)
    named = f"access rule {rule!r} of namespace {client.namespace!r}"
    record: dict[str, Any] = {"rule": rule, "claims": wanted, "namespace": client.namespace}
    if dry_run:
        print_result(output, {"would_create": record}, f"The {named} would be created")
        return
    if save is not None:
        _check_new(save)
    made = client.put(client.in_namespace(f"rules/{rule}"), {"claims": wanted})
    text = client.connection_string_of(made["name"], made["primary_key"])
    sentence = f"The {named} was created"
    if save is not None:
        _save(save, text)
        record["saved"] = str(save)
        sentence += f"; its connection string is in {str(save)!r}"
    if show_keys:
        keys = {name: made[name] for name in ("primary_key", "secondary_key")}
        record |= {**keys, "connection_string": text}
        sentence += f": {text}"
    print_result(output, {"created": record}, sentence)


@key_app.command("delete")
def delete(
    rule: Rule,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    admin: AdminUrl = DEFAULT_URL,
    connection_string: AdminConnectionString = None,
    namespace: AdminNamespace = None,
) -> None:
    """Delete an access rule of a whole namespace. Clients with its keys are refused at once.

    The last rule with the Manage claim cannot be deleted. Requires the Manage claim.
    """
    check_output_format(output)
    client = AdminClient.from_options(admin, connection_string, namespace)
    rules = [each["name"] for each in client.get(client.in_namespace("rules"))]
    found = next((each for each in rules if each.lower() == rule.lower()), None)
    if found is None:
        raise EntityNotFound(
            f"Access rule {rule!r} not found in namespace {client.namespace!r}",
            hint=f"Existing access rules: {', '.join(rules)}",
        )
    named = f"access rule {found!r} of namespace {client.namespace!r}"
    record = {"rule": found, "namespace": client.namespace}
    if dry_run:
        print_result(output, {"would_delete": record}, f"The {named} would be deleted")
        return
    confirm(yes, f"Delete {named}?", "deletes an access rule and its keys")
    client.delete(client.in_namespace(f"rules/{found}"))
    print_result(output, {"deleted": record}, f"The {named} was deleted")


def _claims(text: str) -> list[str]:
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        if each.lower() not in _CLAIMS:
            raise ConfigurationError(
                f"Invalid value for --claims: {each!r:.40}", hint="Use Send, Listen or Manage"
            )
        found.append(_CLAIMS[each.lower()])
    if not found:
        raise ConfigurationError(
            "--claims is empty", hint="Use one or more of Send, Listen and Manage"
        )
    return found


def _check_new(path: FilePath) -> None:
    """Checked before the rule is created, because its keys are returned only once."""
    if path.exists() or not path.parent.is_dir():
        reason = "already exists" if path.exists() else "is in a directory that does not exist"
        raise ConfigurationError(
            f"Invalid value for --save: {str(path)!r:.200} {reason}", hint="Use a new file"
        )


def _save(path: FilePath, text: str) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise TwinbusError(
            f"The access rule was created, but {str(path)!r:.200} cannot be written: "
            f"{error.strerror}",
            hint="Delete the rule with `twinbus key delete`, then create it again",
        ) from error


def _entity(path: str | None) -> str:
    if path is None:
        raise ConfigurationError(
            "The access rules of a whole namespace are not available without --admin",
            hint="Name a queue or topic; for a namespace use --admin URL with the HTTP address of "
            "`twinbus serve`, or on Azure `az servicebus namespace authorization-rule keys`",
        )
    return path

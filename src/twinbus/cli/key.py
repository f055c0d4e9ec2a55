"""``twinbus key list|rotate``: the access rules of a queue or topic.

The service keeps the keys of an entity in its description, which holders of Manage may read and
change. The keys of a whole namespace are not told over this protocol: Azure has them in its
resource manager, our broker on its HTTP side.

Rule 1: a key is shown when ``--show-keys`` asks for it, and never otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from twinbus.cli import entities as of
from twinbus.cli.connecting import Where, asked, with_namespace
from twinbus.cli.showing import DryRun, Output, Yes, check_form, confirm, show_records, tell
from twinbus.errors import ConfigurationError

__all__ = ["key_app"]

key_app = of.noun("key", "Access keys of a queue or topic: list, rotate.")

KEY_BYTES = 32

Path = Annotated[str | None, typer.Argument(help="The queue or topic.")]
ShowKeys = Annotated[bool, typer.Option("--show-keys", help="Show the keys themselves.")]


@key_app.command("list")
@with_namespace
def list_keys(
    path: Path = None, show_keys: ShowKeys = False, output: Output = "table", *, where: Where
) -> None:
    """List the access rules of a queue or topic with their rights. Needs the claim Manage."""
    check_form(output)
    entity = _entity(path)
    found = asked(where, lambda each: each.management.access_rules(entity))
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
    path: Annotated[str, typer.Argument(help="The queue or topic.")],
    rule: Annotated[str, typer.Argument(help="The access rule.")],
    which: Annotated[str, typer.Option(help="primary or secondary.")] = "secondary",
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show the new key.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: Where,
) -> None:
    """Give an access rule a new key; whoever uses the old one is refused from then on.

    Without an outage: move everybody to the other key first. Needs the claim Manage.
    """
    check_form(output)
    if which not in ("primary", "secondary"):
        raise ConfigurationError(
            f"--which cannot be {which!r:.40}", hint="Use primary or secondary"
        )
    rules = asked(where, lambda each: each.management.access_rules(path))
    if rule.lower() not in (each.name.lower() for each in rules):
        names = ", ".join(each.name for each in rules) or "none"
        from twinbus.service_errors import EntityNotFound

        raise EntityNotFound(
            f"{path!r} has no access rule {rule!r}", path=path, hint=f"It has {names}"
        )
    named = f"the {which} key of the rule {rule!r} of {path!r}"
    record = {"path": path, "rule": rule, "which": which}
    if dry_run:
        tell(output, {"would_rotate": record}, f"{named} would be replaced")
        return
    confirm(yes, f"Replace {named}?", "replaces a key")
    import base64
    import secrets

    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    asked(where, lambda each: each.management.set_access_key(path, rule, which, key))
    shown = {**record, "key": key} if show_keys else record
    hint = f": {key}" if show_keys else "; `twinbus key list --show-keys` tells it"
    tell(output, {"rotated": shown}, f"{named} was replaced{hint}")


def _entity(path: str | None) -> str:
    if path is None:
        raise ConfigurationError(
            "the keys of a whole namespace are not told over the management protocol",
            hint="Name a queue or topic; for a namespace use `az servicebus namespace "
            "authorization-rule keys`, or the HTTP side of `twinbus serve` (docs/BROKER.md)",
        )
    return path

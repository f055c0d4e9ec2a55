"""``twinbus pair failover|restore|hold``: orders to the applications of a pair.

They go through the file that the applications were given as ``control``: each of them looks at it
every second. Whether an application has carried an order out is told by its journal, not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.pair import pair_app
from twinbus.cli.showing import DryRun, Output, check_output_format, print_result

if TYPE_CHECKING:
    from twinbus.pairing.orders import Verb

__all__ = ["pair_app"]

CONTROL_VARIABLE = "TWINBUS_PAIR_CONTROL"

Entity = Annotated[str, typer.Argument(help="The queue or topic, or * for all.", metavar="PATH")]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Group that may read the control file [all users].",
        metavar="GROUP",
    ),
]
Control = Annotated[
    Path,
    typer.Option(
        "--control",
        help="The file that the applications of the pair have as their option control.",
        envvar=CONTROL_VARIABLE,
        metavar="FILE",
    ),
]


@pair_app.command("failover")
def failover(
    path: Entity,
    control: Control,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep it there until restore, whatever pings say.")
    ] = False,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Divert a path to the backlog although nothing failed.

    A good ping brings it home again, one interval later at the earliest, unless --hold is given.
    Every application that watches the file does so within seconds; one that starts later only
    with --hold.
    """
    _order(control, path, "failover", output, is_held=hold, group=group, dry_run=dry_run)


@pair_app.command("restore")
def restore(
    path: Entity,
    control: Control,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Send to the primary again, whatever was known of it; also the end of a hold."""
    _order(control, path, "restore", output, is_held=False, group=group, dry_run=dry_run)


@pair_app.command("hold")
def hold_it(
    path: Entity,
    control: Control,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Keep a path where it is, at home or on the backlog, until restore or failover.

    Where that is each application knows by itself; `pair failover --hold` says it for all.
    """
    _order(control, path, "hold", output, is_held=True, group=group, dry_run=dry_run)


def _order(
    control: Path,
    path: str,
    verb: Verb,
    output: str,
    *,
    is_held: bool,
    group: str | None,
    dry_run: bool,
) -> None:
    check_output_format(output)
    from twinbus.entity_path import parse_entity_path
    from twinbus.pairing.orders import read_commands, write_command
    from twinbus.pairing.routing import ALL_PATHS

    record = {"path": path, "order": verb, "is_held": is_held, "control": str(control)}
    what = f"{verb} of {'all paths' if path == ALL_PATHS else repr(path)}"
    if dry_run:
        if path != ALL_PATHS:
            parse_entity_path(path)
        read_commands(control)
        print_result(
            output, {"would_order": record}, f"{what} would be ordered in {str(control)!r}"
        )
        return
    write_command(control, path, verb, is_held=is_held, group=group)
    print_result(output, {"ordered": record}, f"{what} is ordered in {str(control)!r}")

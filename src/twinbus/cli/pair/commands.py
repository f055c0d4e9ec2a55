"""``twinbus pair`` and ``twinbus preflight``: the commands.

``twinbus pair plan|apply|status``: two namespaces, and the backlog between them.

``twinbus pair failover|restore|hold``: orders to the applications of a pair.

They go through the file that the applications were given as ``control``: each of them looks at it
every second. Whether an application has carried an order out is told by its journal, not here.

``twinbus preflight``: is this pair ready for the day on which the primary fails?

This module declares the command; execution.py does it, and is imported when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.entities import commands as of
from twinbus.cli.shared.namespace_options import BACKLOG_QUEUE_COUNT_MAX, PairTarget, with_pair
from twinbus.cli.shared.output import DryRun, Output, check_output_format, print_result
from twinbus.cli.shared.values import RATE_PER_S_MIN, rate_between, size_between
from twinbus.common.durations import seconds

if TYPE_CHECKING:
    from twinbus.pairing.operator_commands import Verb

__all__ = [
    "EXIT_NOT_READY",
    "MESSAGE_BYTES_MAX",
    "RATE_PER_S_MAX",
    "PreflightOptions",
    "pair_app",
    "preflight",
]

JOURNAL_VARIABLE = "TWINBUS_PAIR_JOURNAL"
EXIT_ATTENTION = 3
"""Something needs a look: the answer says what."""

pair_app = of.entity_group(
    "pair", "A pair of namespaces: plan, apply, status, failover, restore, hold."
)

Count = Annotated[
    int,
    typer.Option(help="How many backlog queues the pair uses.", min=1, max=BACKLOG_QUEUE_COUNT_MAX),
]


@pair_app.command("plan")
@with_pair
def plan(backlog_queue_count: Count = 10, output: Output = "table", *, where: PairTarget) -> None:
    """Show what `pair apply` would do on the secondary. Needs the claim Manage there.

    Exit codes: 0 everything can be used or made, 1 it could not be found out, 2 wrong usage,
    3 a queue is there that cannot be used.
    """
    _provision(where, backlog_queue_count, output, is_plan=True)


@pair_app.command("apply")
@with_pair
def apply(
    backlog_queue_count: Count = 10,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Make the backlog queues on the secondary that are missing, as pairing does it.

    Existing ones are used as they are, never altered and never deleted. An application with Manage
    on the secondary does this by itself; others need it done beforehand.

    Exit codes: 0 all are there, 1 none could be used, 2 wrong usage, 3 some cannot be used.
    """
    _provision(where, backlog_queue_count, output, is_plan=dry_run)


def _provision(where: PairTarget, count: int, output: str, *, is_plan: bool) -> None:
    check_output_format(output)
    from twinbus.cli.pair.execution import applied, planned

    if not (planned if is_plan else applied)(where, count, output):
        raise typer.Exit(EXIT_ATTENTION)


@pair_app.command("status")
@with_pair
def status(
    backlog_queue_count: Annotated[
        int | None,
        typer.Option(
            help="How many backlog queues to show at least [all that there are].",
            min=1,
            max=BACKLOG_QUEUE_COUNT_MAX,
        ),
    ] = None,
    watch: Annotated[
        str,
        typer.Option(
            help="How long to look whether somebody brings waiting messages home.", metavar="TIME"
        ),
    ] = "5s",
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            help="Journal of an application of the pair, which tells what is diverted; repeatable.",
            envvar=JOURNAL_VARIABLE,
            metavar="FILE",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="State directory of the pair's syphon [as for it].", metavar="DIR"),
    ] = None,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Show whether both namespaces answer, what waits in the backlog, and what needs a look.

    A backlog whose oldest message stays where it is while the primary answers is one that nobody
    receives from: run `twinbus syphon`, or resume one that is paused. Which entities are diverted
    is known to the applications that send: name their journals with --journal.

    Exit codes: 0 all is well, 1 it could not be found out, 2 wrong usage, 3 something needs a look.
    """
    check_output_format(output)
    watch_s = seconds(watch)
    from twinbus.cli.pair.execution import StatusOptions, show_status

    options = StatusOptions(
        backlog_queue_count=backlog_queue_count,
        watch_s=watch_s,
        journals=tuple(journal or ()),
        state=state,
    )
    if not show_status(where, options, output):
        raise typer.Exit(EXIT_ATTENTION)


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
    from twinbus.common.entity_path import parse_entity_path
    from twinbus.pairing.operator_commands import read_commands, write_command
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


# As for an estimate of costs; with more the room that is needed has no meaning.
RATE_PER_S_MAX = 1_000_000_000
# The largest that any tier of the service takes.
MESSAGE_BYTES_MAX = 100 << 20
EXIT_NOT_READY = 3
"""At least one problem was found: the report says what to fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """What the command line said."""

    entities: tuple[str, ...]
    backlog_queue_count: int
    expected_outage_s: float
    rate_per_s: float | None
    message_bytes: int
    has_syphon: bool
    allow_lossy: bool
    may_ping: bool
    timeout_s: float
    output: str


@with_pair
def preflight(
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="Queue or topic that the application uses; repeatable [all that are listed].",
            metavar="PATH",
        ),
    ] = None,
    backlog_queue_count: Count = 10,
    expected_outage: Annotated[
        str,
        typer.Option(
            "--expected-outage",
            "--outage",
            help="How long an outage may last, as 30m or 4h.",
            metavar="TIME",
        ),
    ] = "1h",
    rate: Annotated[
        str | None,
        typer.Option(
            help="Messages to all entities together, for example 200/s or 5k/h.", metavar="RATE"
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "--message-bytes",
            help="Size of an ordinary message, for example 300B or 2KB.",
            metavar="SIZE",
        ),
    ] = "1KB",
    sender_only: Annotated[
        bool,
        typer.Option("--sender-only", help="These credentials are not those of the syphon."),
    ] = False,
    allow_lossy_backlog: Annotated[
        bool,
        typer.Option(
            "--allow-lossy-backlog",
            help="The application pairs with allow_lossy_backlog: queues may drop messages.",
        ),
    ] = False,
    no_ping: Annotated[
        bool,
        typer.Option("--no-ping", help="Send nothing: leave out whether pings are swallowed."),
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="How long one question may take.", metavar="TIME")
    ] = "15s",
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Check a pair of namespaces before the disaster, and say exactly what to fix.

    The namespaces come from the environment unless they are given: SERVICEBUS_CONNECTION_STRING
    or SERVICEBUS_FULLY_QUALIFIED_NAMESPACE for the primary, SERVICEBUS_SECONDARY_… for the
    secondary. Nothing is changed; with Manage on the primary one empty queue is made, pinged and
    deleted again, otherwise each --entity is pinged.

    Exit codes: 0 ready (there may be warnings), 1 the check could not be made, 2 wrong usage,
    3 not ready.
    """
    check_output_format(output)
    options = PreflightOptions(
        entities=tuple(entity or ()),
        backlog_queue_count=backlog_queue_count,
        expected_outage_s=seconds(expected_outage),
        rate_per_s=None
        if rate is None
        else rate_between("--rate", rate, RATE_PER_S_MIN, RATE_PER_S_MAX),
        message_bytes=size_between("--size", size, 1, MESSAGE_BYTES_MAX),
        has_syphon=not sender_only,
        allow_lossy=allow_lossy_backlog,
        may_ping=not no_ping,
        timeout_s=seconds(timeout),
        output=output,
    )
    # The drivers and the pairing: 100 ms that other commands should not pay.
    from twinbus.cli.pair.execution import run_preflight

    if not run_preflight(where, options):
        raise typer.Exit(EXIT_NOT_READY)

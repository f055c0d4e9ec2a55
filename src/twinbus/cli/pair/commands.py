"""``twinbus pair`` and ``twinbus preflight``: the commands and their options.

    pair plan, apply, status            both namespaces and the backlog queues
    pair failover, restore, hold        operator commands to the applications of a pair
    preflight                           whether a pair is ready for an outage

Operator commands are written to the file that the applications have as their option ``control``;
each application reads it every second. Its journal reports when it has executed a command.

execution.py runs the other commands and is imported late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.entities.commands import entity_group
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
"""Something needs attention; the output lists it."""

pair_app = entity_group(
    "pair", "A pair of namespaces: plan, apply, status, failover, restore, hold."
)

Count = Annotated[
    int,
    typer.Option(
        help="Number of backlog queues that the pair uses.", min=1, max=BACKLOG_QUEUE_COUNT_MAX
    ),
]


@pair_app.command("plan")
@with_pair
def plan(backlog_queue_count: Count = 10, output: Output = "table", *, where: PairTarget) -> None:
    """Show what `pair apply` would do on the secondary.

    Requires the Manage claim on the secondary.

    Exit codes: 0 every queue can be used or created, 1 the command failed, 2 wrong usage,
    3 an existing queue cannot be used.
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
    """Create the missing backlog queues on the secondary.

    Existing queues are used as they are; they are not changed or deleted. An application with the
    Manage claim on the secondary creates them itself; for other applications run this command
    first. Creating queues requires the Manage claim on the secondary.

    Exit codes: 0 all queues can be used, 1 no queue can be used or the command failed, 2 wrong
    usage, 3 some queues cannot be used.
    """
    _provision(where, backlog_queue_count, output, is_plan=dry_run)


def _provision(where: PairTarget, count: int, output: str, *, is_plan: bool) -> None:
    check_output_format(output)
    from twinbus.cli.pair.execution import apply_plan, show_plan

    if not (show_plan if is_plan else apply_plan)(where, count, output):
        raise typer.Exit(EXIT_ATTENTION)


@pair_app.command("status")
@with_pair
def status(
    backlog_queue_count: Annotated[
        int | None,
        typer.Option(
            help="Minimum number of backlog queues to show [all existing queues].",
            min=1,
            max=BACKLOG_QUEUE_COUNT_MAX,
        ),
    ] = None,
    watch: Annotated[
        str,
        typer.Option(
            help="Time to observe whether a syphon receives from the backlog; 0s skips it.",
            metavar="TIME",
        ),
    ] = "5s",
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            help="Journal of an application of the pair, for its diversions; repeatable.",
            envvar=JOURNAL_VARIABLE,
            metavar="FILE",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="State directory of the syphon [~/.local/state/twinbus/syphon].", metavar="DIR"
        ),
    ] = None,
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Show whether both namespaces are reachable, the backlog, and what needs attention.

    If the oldest message of the backlog stays the same while the primary is reachable, no syphon
    receives from it: run `twinbus syphon`, or resume a paused syphon. Diversions are read from the
    journals of the applications: add them with --journal.

    Exit codes: 0 nothing needs attention, 1 the command failed, 2 wrong usage, 3 something needs
    attention.
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

Entity = Annotated[str, typer.Argument(help="Queue or topic, or * for all.", metavar="PATH")]
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
        help="Control file: the option control of the applications of the pair.",
        envvar=CONTROL_VARIABLE,
        metavar="FILE",
    ),
]


@pair_app.command("failover")
def failover(
    path: Entity,
    control: Control,
    hold: Annotated[
        bool, typer.Option("--hold", help="Ignore pings until `pair restore`.")
    ] = False,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Divert an entity to the backlog without an outage.

    A successful ping restores the entity, one ping interval later at the earliest, unless --hold
    is given. Every application with this control file diverts within seconds; an application that
    starts later diverts only with --hold.
    """
    _write_command(control, path, "failover", output, is_held=hold, group=group, dry_run=dry_run)


@pair_app.command("restore")
def restore(
    path: Entity,
    control: Control,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Send the messages of an entity to the primary again, and end a hold."""
    _write_command(control, path, "restore", output, is_held=False, group=group, dry_run=dry_run)


@pair_app.command("hold")
def hold_it(
    path: Entity,
    control: Control,
    group: Group = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Keep an entity on the primary or on the backlog until restore or failover.

    Each application keeps its own current state of the entity; to divert all of them use
    `pair failover --hold`.
    """
    _write_command(control, path, "hold", output, is_held=True, group=group, dry_run=dry_run)


def _write_command(
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
    target = "all entities" if path == ALL_PATHS else repr(path)
    what = f"{verb.capitalize()} of {target}"
    if dry_run:
        if path != ALL_PATHS:
            parse_entity_path(path)
        read_commands(control)
        print_result(
            output, {"would_order": record}, f"{what} would be written to {str(control)!r}"
        )
        return
    write_command(control, path, verb, is_held=is_held, group=group)
    print_result(output, {"ordered": record}, f"{what} written to {str(control)!r}")


# As for cost estimates; above it the required space has no meaning.
RATE_PER_S_MAX = 1_000_000_000
# The largest message that any tier of the service accepts.
MESSAGE_BYTES_MAX = 100 << 20
EXIT_NOT_READY = 3
"""At least one problem was found; the report has the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """The options of the command."""

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
            help="Queue or topic of the application; repeatable [all that are listed].",
            metavar="PATH",
        ),
    ] = None,
    backlog_queue_count: Count = 10,
    expected_outage: Annotated[
        str,
        typer.Option(
            "--expected-outage",
            "--outage",
            help="Expected outage duration, for example 30m or 4h.",
            metavar="TIME",
        ),
    ] = "1h",
    rate: Annotated[
        str | None,
        typer.Option(
            help="Message rate of all entities together, for example 200/s or 5k/h.",
            metavar="RATE",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "--message-bytes",
            help="Size of a typical message, for example 300B or 2KB.",
            metavar="SIZE",
        ),
    ] = "1KB",
    sender_only: Annotated[
        bool,
        typer.Option("--sender-only", help="Check the claims of a sender only, not of a syphon."),
    ] = False,
    allow_lossy_backlog: Annotated[
        bool,
        typer.Option(
            "--allow-lossy-backlog",
            help="Accept backlog queues that may drop messages (option allow_lossy_backlog).",
        ),
    ] = False,
    no_ping: Annotated[
        bool,
        typer.Option("--no-ping", help="Send no pings; whether pings expire is not checked."),
    ] = False,
    timeout: Annotated[str, typer.Option(help="Timeout of each request.", metavar="TIME")] = "15s",
    output: Output = "table",
    *,
    where: PairTarget,
) -> None:
    """Check a pair of namespaces before an outage, and list what to fix.

    The namespaces come from the environment unless they are given: SERVICEBUS_CONNECTION_STRING
    or SERVICEBUS_FULLY_QUALIFIED_NAMESPACE for the primary, SERVICEBUS_SECONDARY_… for the
    secondary. Nothing is changed: with the Manage claim on the primary an empty queue is created,
    pinged and deleted; otherwise each --entity is pinged.

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
    # Imported late: the drivers and the pairing take 100 ms to load.
    from twinbus.cli.pair.execution import run_preflight

    if not run_preflight(where, options):
        raise typer.Exit(EXIT_NOT_READY)

"""``twinbus pair plan|apply|status``: two namespaces, and the backlog between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli import entities as of
from twinbus.cli.connecting import PairTarget, with_pair
from twinbus.cli.shared_options import BACKLOG_QUEUE_COUNT_MAX
from twinbus.cli.showing import DryRun, Output, check_output_format
from twinbus.durations import seconds

__all__ = ["pair_app"]

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
    from twinbus.cli.pair_run import applied, planned

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
    from twinbus.cli.pair_status import StatusOptions, show_status

    options = StatusOptions(
        backlog_queue_count=backlog_queue_count,
        watch_s=watch_s,
        journals=tuple(journal or ()),
        state=state,
    )
    if not show_status(where, options, output):
        raise typer.Exit(EXIT_ATTENTION)

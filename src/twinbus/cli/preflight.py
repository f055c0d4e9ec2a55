"""``twinbus preflight``: is this pair ready for the day on which the primary fails?

This module declares the command; preflight_run.py does it, and is imported when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from twinbus.cli.connecting import PairTarget, with_pair
from twinbus.cli.pair import Count
from twinbus.cli.quantities import RATE_PER_S_MIN, rate_between, size_between
from twinbus.cli.showing import Output, check_output_format
from twinbus.durations import seconds

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
    from twinbus.cli.preflight_run import run_preflight

    if not run_preflight(where, options):
        raise typer.Exit(EXIT_NOT_READY)

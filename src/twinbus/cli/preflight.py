"""``twinbus preflight``: is this pair ready for the day on which the primary fails?

This module declares the command; preflight_run.py does it, and is imported when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.durations import seconds
from twinbus.cli.output import check_output
from twinbus.cli.shared_options import CaFile

EXIT_NOT_READY = 3
"""At least one problem was found: the report says what to fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """What the command line said."""

    primary: str | None
    secondary: str | None
    primary_name: str | None
    entities: tuple[str, ...]
    backlog_queue_count: int
    expected_outage_s: float
    rate_per_s: float | None
    message_bytes: int
    has_syphon: bool
    may_ping: bool
    timeout_s: float
    ca_file: Path | None
    primary_management_port: int | None
    secondary_management_port: int | None
    output: str


def preflight(
    primary: Annotated[
        str | None,
        typer.Option(
            help="The primary's connection string. Better in the environment than here.",
            metavar="TEXT",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(
            help="The secondary's connection string. Better in the environment than here.",
            metavar="TEXT",
        ),
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="Queue or topic that the application uses; repeatable [all that are listed].",
            metavar="PATH",
        ),
    ] = None,
    primary_name: Annotated[
        str | None,
        typer.Option(help="The primary's name in the backlog queues [its host's first label]."),
    ] = None,
    backlog_queue_count: Annotated[
        int, typer.Option(help="How many backlog queues the pair uses.", min=1)
    ] = 10,
    expected_outage: Annotated[
        str, typer.Option(help="How long an outage may last, as 30m or 4h.", metavar="TIME")
    ] = "1h",
    rate: Annotated[
        float | None,
        typer.Option(help="Messages a second, to all entities together.", min=0.001),
    ] = None,
    message_bytes: Annotated[int, typer.Option(help="Size of an ordinary message.", min=1)] = 1_024,
    sender_only: Annotated[
        bool,
        typer.Option("--sender-only", help="These credentials are not those of the syphon."),
    ] = False,
    no_ping: Annotated[
        bool,
        typer.Option("--no-ping", help="Send nothing: leave out whether pings are swallowed."),
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="How long one question may take.", metavar="TIME")
    ] = "15s",
    ca_file: CaFile = None,
    primary_management_port: Annotated[
        int | None, typer.Option(help="The primary's port for HTTP (official emulator: 5300).")
    ] = None,
    secondary_management_port: Annotated[
        int | None, typer.Option(help="The secondary's port for HTTP (official emulator: 5300).")
    ] = None,
    output: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Check a pair of namespaces before the disaster, and say exactly what to fix.

    The namespaces come from the environment unless they are given: SERVICEBUS_CONNECTION_STRING
    or SERVICEBUS_FULLY_QUALIFIED_NAMESPACE for the primary, SERVICEBUS_SECONDARY_… for the
    secondary. Nothing is changed; with Manage on the primary one empty queue is made, pinged and
    deleted again, otherwise each --entity is pinged.

    Exit codes: 0 ready (there may be warnings), 1 the check could not be made, 2 wrong usage,
    3 not ready.
    """
    check_output(output, "table")
    options = PreflightOptions(
        primary=primary,
        secondary=secondary,
        primary_name=primary_name,
        entities=tuple(entity or ()),
        backlog_queue_count=backlog_queue_count,
        expected_outage_s=seconds(expected_outage),
        rate_per_s=rate,
        message_bytes=message_bytes,
        has_syphon=not sender_only,
        may_ping=not no_ping,
        timeout_s=seconds(timeout),
        ca_file=ca_file,
        primary_management_port=primary_management_port,
        secondary_management_port=secondary_management_port,
        output=output,
    )
    # The drivers and the pairing: 100 ms that other commands should not pay.
    from twinbus.cli.preflight_run import run_preflight

    if not run_preflight(options):
        raise typer.Exit(EXIT_NOT_READY)

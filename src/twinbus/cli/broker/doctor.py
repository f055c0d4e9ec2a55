"""``twinbus doctor``: check a data directory, and repair it into a new one.

This module declares the command; doctor_run.py runs it and is imported late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.shared.output import Output, check_output_format
from twinbus.errors import ConfigurationError

EXIT_FINDINGS = 3
"""The data directory is damaged, or messages were lost; the report has the details."""


def doctor(
    data: Annotated[
        Path,
        typer.Argument(help="Data directory of a broker, or of one namespace.", metavar="DATA"),
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Write a new data directory with all readable data.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(help="New data directory for --repair [DATA.repaired].", metavar="DIR"),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            help="Directory for a temporary copy of each store [the system's, or the new one].",
            metavar="DIR",
        ),
    ] = None,
    output: Output = "table",
) -> None:
    """Check the stores of a data directory, and recover them into a new one.

    The broker must be stopped. DATA is only read; --repair writes another directory, in which
    duplicate entities and broken references are resolved and everything is kept but the rows of
    damaged pages. Sequence numbers and order stay. Where it is not certain that a message was
    settled, it is kept: a message may be repeated, none is dropped.

    Exit codes: 0 healthy, or repaired without a loss (there may be warnings), 1 the check could not
    be made, 2 wrong usage, 3 damage was found, or messages are lost.
    """
    check_output_format(output)
    if into is not None and not repair:
        raise ConfigurationError("--into needs --repair", hint="Add --repair, or remove --into")
    if scratch is not None and not scratch.is_dir():
        raise ConfigurationError(
            f"Invalid value for --scratch: {str(scratch)!r:.200} is not a directory",
            hint="Choose a directory in which you may write",
        )
    target = None
    if repair:
        resolved = data.resolve()
        target = into or resolved.with_name(resolved.name + ".repaired")
    # Imported late: the broker takes 100 ms to load.
    from twinbus.cli.broker.doctor_run import run_doctor

    if not run_doctor(data, target, scratch, output):
        raise typer.Exit(EXIT_FINDINGS)

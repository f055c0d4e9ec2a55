"""``twinbus cost reconcile``: do the books of a pair close?

This module declares the command; cost_reconcile_run.py does it, and is imported when it is asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.moments import moment
from twinbus.cli.shared_options import AdministrationPort, CaFile
from twinbus.cli.showing import Output, check_output_format
from twinbus.errors import ConfigurationError, TwinbusError

EXIT_OPEN = 1
"""The books do not close."""
EXIT_UNKNOWN = 2
"""Nobody knows: wrong usage, a source that cannot be read, or logs that name no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """What the command line said."""

    primary_logs: Path | None
    secondary_logs: Path | None
    client_logs: Path | None
    receipts: Path | None
    journal: Path | None
    begins: datetime | None
    ends: datetime | None
    pair: str | None
    look: bool
    ca_file: Path | None
    administration_port: int | None
    output: str


def reconcile(
    primary_logs: Annotated[
        Path | None,
        typer.Option(help="The audit log of the primary's broker.", metavar="DIR"),
    ] = None,
    secondary_logs: Annotated[
        Path | None,
        typer.Option(help="The audit log of the secondary's broker.", metavar="DIR"),
    ] = None,
    client_logs: Annotated[
        Path | None, typer.Option(help="The audit logs of clients.", metavar="DIR")
    ] = None,
    receipts: Annotated[
        Path | None,
        typer.Option(help="The syphon's receipts, or its state directory.", metavar="PATH"),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="The journal of the pair.", metavar="FILE")
    ] = None,
    begins: Annotated[
        str | None,
        typer.Option("--from", help="Messages sent from then on: 2026-11-16, or with a time."),
    ] = None,
    ends: Annotated[
        str | None, typer.Option("--to", help="Messages sent before; UTC unless it says otherwise.")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="The primary's name, if the logs tell of several.", metavar="NAME"),
    ] = None,
    look: Annotated[
        bool,
        typer.Option("--look", help="Also look at what the queues hold now; nothing is taken."),
    ] = False,
    ca_file: CaFile = None,
    administration_port: AdministrationPort = None,
    output: Output = "table",
) -> None:
    """Follow every message that was sent, and name those that are missing.

    Each source alone is usable; the more there are, the more is proven. With --look the namespaces
    come from the environment, as for twinbus syphon: SERVICEBUS_CONNECTION_STRING for the primary
    and SERVICEBUS_SECONDARY_CONNECTION_STRING for the secondary.

    Exit codes: 0 the books close, 1 they do not, 2 nobody knows: wrong usage, a source that cannot
    be read, or no message in it.
    """
    try:
        check_output_format(output)
        options = ReconcileOptions(
            primary_logs=_there(primary_logs),
            secondary_logs=_there(secondary_logs),
            client_logs=_there(client_logs),
            receipts=_there(receipts),
            journal=_there(journal),
            begins=moment("--from", begins),
            ends=moment("--to", ends),
            pair=pair,
            look=look,
            ca_file=ca_file,
            administration_port=administration_port,
            output=output,
        )
        if not any((primary_logs, secondary_logs, client_logs, receipts)):
            raise ConfigurationError(
                "there is nothing to reconcile",
                hint="Give --primary-logs, --secondary-logs, --client-logs or --receipts",
            )
        # Spark: seconds that a wrong command line should not take.
        from twinbus.cli.cost_reconcile_run import run_reconcile

        closes = run_reconcile(options)
    except Exception as error:
        # 1 says that messages are missing: an error must not be taken for that, whichever it is.
        typer.echo(f"twinbus: {_sentence(error)}", err=True)
        raise typer.Exit(EXIT_UNKNOWN) from error
    if not closes:
        raise typer.Exit(EXIT_UNKNOWN if closes is None else EXIT_OPEN)


def _sentence(error: Exception) -> str:
    if isinstance(error, TwinbusError):
        return str(error)
    return f"the books could not be read to the end: {type(error).__name__}: {error}"


def _there(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise ConfigurationError(f"there is no {str(path)!r}", hint="Check the name")
    return path

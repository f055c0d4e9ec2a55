"""The ``twinbus`` command: parse, ask, render.

Exit codes: 0 done, 1 the command failed with a sentence on standard error, 2 wrong usage.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from twinbus import __version__
from twinbus.cli.cost import cost_app
from twinbus.cli.demo import demo
from twinbus.cli.emptying import queue_app, reset
from twinbus.cli.fault import fault_app
from twinbus.cli.preflight import preflight
from twinbus.cli.serve import serve
from twinbus.cli.syphon_control import syphon_app
from twinbus.errors import TwinbusError

EXIT_FAILED = 1

app = typer.Typer(
    name="twinbus",
    help="Messaging that keeps accepting messages while its broker is down.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinbus {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Messaging that keeps accepting messages while its broker is down."""


app.command()(serve)
app.command()(reset)
app.command()(preflight)
app.command()(demo)
app.add_typer(syphon_app)
app.add_typer(queue_app)
app.add_typer(fault_app)
app.add_typer(cost_app)


def main() -> None:
    """Run the command; an error we know is a sentence, never a traceback."""
    try:
        app()
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        sys.exit(EXIT_FAILED)

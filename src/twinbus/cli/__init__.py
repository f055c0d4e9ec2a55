"""The ``twinbus`` command: parse, ask, render.

Exit codes: 0 done, 1 the command failed with a sentence on standard error, 2 wrong usage: a command
line that cannot be parsed, or a value or setting that cannot be used.

Rule 1: an error is a sentence, never a traceback, unless ``--debug`` asks for one.
"""

from __future__ import annotations

import errno
import sys
import traceback
from dataclasses import dataclass
from typing import Annotated

import typer

from twinbus import __version__
from twinbus.cli.broker.admin_commands import fault_app, reset
from twinbus.cli.broker.doctor import doctor
from twinbus.cli.broker.serve import serve
from twinbus.cli.cost import cost_app
from twinbus.cli.demo import demo
from twinbus.cli.entities.key import key_app
from twinbus.cli.entities.queue import queue_app
from twinbus.cli.entities.rule import rule_app
from twinbus.cli.entities.subscription import subscription_app
from twinbus.cli.entities.topic import topic_app
from twinbus.cli.messages.dead_letters import dlq_app
from twinbus.cli.messages.receive import peek, receive
from twinbus.cli.messages.send import send
from twinbus.cli.pair.backlog import backlog_app
from twinbus.cli.pair.commands import pair_app, preflight
from twinbus.cli.syphon.commands import syphon_app
from twinbus.errors import ConfigurationError, EntityExists, PortTaken, TwinbusError

EXIT_FAILED = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="twinbus",
    help="Messaging that keeps accepting messages while its broker is down.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@dataclass(slots=True)
class GlobalOptions:
    """What was said before the command's name, for whoever called it."""

    debug: bool = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinbus {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from (traceback).")
    ] = False,
) -> None:
    """Messaging that keeps accepting messages while its broker is down."""
    if isinstance(context.obj, GlobalOptions):
        context.obj.debug = debug


app.command()(serve)
app.command()(reset)
app.command()(doctor)
app.command()(preflight)
app.command()(demo)
app.command()(send)
app.command()(receive)
app.command()(peek)
app.add_typer(syphon_app)
for nouns in (
    queue_app,
    topic_app,
    subscription_app,
    rule_app,
    dlq_app,
    pair_app,
    backlog_app,
    key_app,
):
    app.add_typer(nouns)
app.add_typer(fault_app)
app.add_typer(cost_app)


def main() -> None:
    """Run the command; an error is a sentence, never a traceback."""
    wishes = GlobalOptions()
    try:
        app(obj=wishes, prog_name="twinbus")
    except TwinbusError as error:
        # What somebody else has already could have been used.
        is_taken = isinstance(error, EntityExists | PortTaken)
        is_usage = isinstance(error, ConfigurationError) and not is_taken
        _fail(wishes, str(error), EXIT_USAGE if is_usage else EXIT_FAILED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _fail(wishes, "there is no space left where this writes. Make room.", EXIT_FAILED)
        # Nobody has thought of it; its text might hold anything, so only its kind is told.
        _fail(
            wishes,
            f"something went wrong that should not ({type(error).__name__}). "
            "Run it again as `twinbus --debug …` and report what that shows.",
            EXIT_FAILED,
        )


def _fail(wishes: GlobalOptions, sentence: str, exit_code: int) -> None:
    if wishes.debug:
        traceback.print_exc()
    typer.echo(f"twinbus: {sentence}", err=True)
    sys.exit(exit_code)

"""The ``twinbus`` command: its groups, the global options and the handling of errors.

    broker      serve, reset, doctor, fault
    entities    queue, topic, subscription, rule, key
    messages    send, receive, peek, dlq
    pair        pair, preflight, backlog
    syphon      syphon and its subcommands
    cost        cost estimate, report, reconcile
    demo        demo
    shared      options, values, output, and the client of a broker's HTTP API

Exit codes: 0 done, 1 the command failed with one sentence on standard error, 2 wrong usage: a
command line that cannot be parsed, or a value or setting that cannot be used.

Rule 1: an error is printed as a sentence; the traceback is printed only with ``--debug``.
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
    """The options before the command's name."""

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
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
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
for group in (
    queue_app,
    topic_app,
    subscription_app,
    rule_app,
    dlq_app,
    pair_app,
    backlog_app,
    key_app,
):
    app.add_typer(group)
app.add_typer(fault_app)
app.add_typer(cost_app)


def main() -> None:
    """Run the command, and print an error as a sentence."""
    options = GlobalOptions()
    try:
        app(obj=options, prog_name="twinbus")
    except TwinbusError as error:
        # A name or port that is in use is a valid value.
        is_taken = isinstance(error, EntityExists | PortTaken)
        is_usage = isinstance(error, ConfigurationError) and not is_taken
        _fail(options, str(error), EXIT_USAGE if is_usage else EXIT_FAILED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _fail(options, "No space left on the disk. Free disk space.", EXIT_FAILED)
        # An unexpected error. Its text could contain a secret, so only its class is printed.
        _fail(
            options,
            f"Unexpected error ({type(error).__name__}). "
            "Run the command again as `twinbus --debug …` and report its output.",
            EXIT_FAILED,
        )


def _fail(options: GlobalOptions, sentence: str, exit_code: int) -> None:
    if options.debug:
        traceback.print_exc()
    typer.echo(f"twinbus: {sentence}", err=True)
    sys.exit(exit_code)

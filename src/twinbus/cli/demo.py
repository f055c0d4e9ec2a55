"""``twinbus demo``: a complete outage in about a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.shared.output import show_table
from twinbus.cli.shared.values import rate_per_s
from twinbus.common.durations import seconds

__all__ = ["demo"]

EXIT_BROKEN = 1


def demo(
    seed: Annotated[
        int, typer.Option(help="Seed for message sizes, contents and the time of the outage.")
    ] = 1,
    outage: Annotated[
        str, typer.Option(help="Duration of the outage, for example 20s or 1m.", metavar="TIME")
    ] = "20s",
    rate: Annotated[
        str, typer.Option(help="Rate of messages to send, for example 200/s.", metavar="RATE")
    ] = "200/s",
    keep: Annotated[
        Path | None,
        typer.Option(
            help="New directory in which logs, receipts, journal and report are kept.",
            metavar="DIR",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")
    ] = False,
) -> None:
    """Run a complete outage: kill the primary, fail over, move the backlog back.

    Two brokers, an application that sends through a pair and the syphon on Spark run as processes
    on this machine. Then every message is accounted for. Requires Java 17 or later.

    Exit codes: 0 no message was lost, unexpected or failed, 1 at least one was, 2 wrong usage.
    """
    from twinbus.demo.scenario import DemoScenario

    plan = DemoScenario(seed=seed, outage_s=seconds(outage), rate_per_s=float(rate_per_s(rate)))
    # Imported late: a wrong option is reported without loading the drivers and the pairing.
    from twinbus.demo.outage import run_demo

    result = run_demo(plan, keep)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        show_table(("result", ""), result.rows())
    if not result.is_good:
        raise typer.Exit(EXIT_BROKEN)

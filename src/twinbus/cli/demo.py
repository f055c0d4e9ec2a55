"""``twinbus demo``: an outage from beginning to end, in about a minute."""

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
    seed: Annotated[int, typer.Option(help="Chooses sizes, contents and the moment.")] = 1,
    outage: Annotated[
        str, typer.Option(help="How long the primary is away, as 20s or 1m.", metavar="TIME")
    ] = "20s",
    rate: Annotated[
        str, typer.Option(help="Messages that are sent, as 200/s.", metavar="RATE")
    ] = "200/s",
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep logs, receipts, journal and report in this new directory.", metavar="DIR"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line.")
    ] = False,
) -> None:
    """See the main job done: the primary is killed, no send fails, and nothing is lost.

    Two brokers, an application that sends through a pair and the syphon on Spark run as processes
    on this machine. Needs Java 17 or later.

    Exit codes: 0 nothing was lost, unexpected or failed, 1 something was, 2 wrong usage.
    """
    from twinbus.demo.scenario import DemoScenario

    plan = DemoScenario(seed=seed, outage_s=seconds(outage), rate_per_s=float(rate_per_s(rate)))
    # What runs the demo: the drivers and the pairing, which a wrong option need not wait for.
    from twinbus.demo.outage import run_demo

    result = run_demo(plan, keep)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        show_table(("the books", ""), result.rows())
    if not result.is_good:
        raise typer.Exit(EXIT_BROKEN)

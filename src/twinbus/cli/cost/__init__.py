"""``twinbus cost …``: what a pair costs, before an outage and after it (rule C3).

Each command has a module of its own and is hung in here.
"""

from __future__ import annotations

import typer

from twinbus.cli.cost.commands import cost_estimate, reconcile, report

__all__ = ["cost_app"]

cost_app = typer.Typer(
    name="cost",
    help="What a pair of namespaces costs, before an outage and after it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

cost_app.command("estimate")(cost_estimate)
cost_app.command("report")(report)
cost_app.command("reconcile")(reconcile)

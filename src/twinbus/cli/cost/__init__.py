"""``twinbus cost``: estimates, reports and reconciliation of a pair (rule C3).

commands.py declares the commands; the other modules compute and print, and are imported late.
"""

from __future__ import annotations

import typer

from twinbus.cli.cost.commands import cost_estimate, reconcile, report

__all__ = ["cost_app"]

cost_app = typer.Typer(
    name="cost",
    help="Costs of a pair of namespaces: estimate, report, reconcile.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

cost_app.command("estimate")(cost_estimate)
cost_app.command("report")(report)
cost_app.command("reconcile")(reconcile)

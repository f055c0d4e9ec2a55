"""``twinbus cost report``: what has it cost? From the operations logs, computed on Spark.

This module declares the command; cost_report_run.py does it, and is imported when it is asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus.cli.moments import moment
from twinbus.cli.quantities import count
from twinbus.cli.showing import FORMS
from twinbus.errors import ConfigurationError

__all__ = ["ReportOptions", "report"]

BY: Final = ("entity", "namespace", "operation", "day", "hour", "source")
OUTPUTS: Final = (*FORMS, "csv", "html")
SOURCES: Final = ("auto", "broker", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the command line said."""

    logs: tuple[Path, ...]
    begins: datetime | None
    ends: datetime | None
    by: tuple[str, ...]
    prices: str
    source: str | None
    """None: the broker's lines where there are any."""
    state: Path | None
    used: int
    output: str
    file: Path | None


def report(
    logs: Annotated[
        list[Path],
        typer.Argument(help="Directories with operations logs.", metavar="LOGDIR..."),
    ],
    begins: Annotated[
        str | None,
        typer.Option("--from", help="From then on: 2026-11-16, or with a time [first line]."),
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option("--to", help="Before; UTC unless it says otherwise [last line]."),
    ] = None,
    by: Annotated[
        str, typer.Option(help=f"What a line of the table is: {', '.join(BY)}.", metavar="WORDS")
    ] = "entity,day",
    prices: Annotated[
        str,
        typer.Option(help="standard, basic, premium, or your own sheet.", metavar="NAME|FILE"),
    ] = "standard",
    source: Annotated[
        str,
        typer.Option(help="Whose lines: broker, client, or auto: the broker's where it has any."),
    ] = "auto",
    used: Annotated[
        str,
        typer.Option(
            "--used",
            "--month-already",
            help="Operations that the first month has had before the logs begin, as 13M.",
            metavar="COUNT",
        ),
    ] = "0",
    state: Annotated[
        Path | None,
        typer.Option(
            help="Where days that were computed are kept [beside the logs].", metavar="DIR"
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="table, json, jsonl, csv or html.")] = "table",
    file: Annotated[
        Path | None, typer.Option(help="Write the answer there.", metavar="PATH")
    ] = None,
) -> None:
    """What the operations have cost, by entity, day, or whatever is asked for.

    The logs are those of brokers (DATA/metering, or twinbus serve --metering) and of clients
    (the option metering). They are read once: a day that was computed is not computed again
    unless one of its files has changed. Times are UTC.
    """
    options = ReportOptions(
        logs=tuple(logs),
        begins=moment("--from", begins),
        ends=moment("--to", ends),
        by=_by(by),
        prices=prices,
        source=None if _one_of("--source", source, SOURCES) == "auto" else source,
        state=state,
        used=count(used),
        output=_one_of("--output", output, OUTPUTS),
        file=file,
    )
    # Spark: seconds that a wrong command line should not take.
    from twinbus.cli.cost_report_run import run_report

    run_report(options)


def _by(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in BY:
            raise ConfigurationError(
                f"--by cannot have {word!r:.40}", hint=f"Use some of {', '.join(BY)}"
            )
    return tuple(dict.fromkeys(words))


def _one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ConfigurationError(
            f"{option} cannot be {text!r:.40}", hint=f"Use {', '.join(known[:-1])} or {known[-1]}"
        )
    return text

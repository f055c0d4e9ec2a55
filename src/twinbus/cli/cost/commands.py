"""``twinbus cost estimate``, ``report`` and ``reconcile``: the commands.

``twinbus cost estimate``: what will it cost? Nothing is contacted.

This module declares the command; estimate_output.py shows the answer, and is imported when it
is asked for.

``twinbus cost report``: what has it cost? From the operations logs, computed on Spark.

This module declares the command; report_output.py does it, and is imported when it is asked
for.

``twinbus cost reconcile``: do the books of a pair close?

This module declares the command; reconcile_run.py does it, and is imported when it is asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus.cli.shared.namespace_options import AdministrationPort, CaFile
from twinbus.cli.shared.output import FORMS, Output, check_output_format
from twinbus.cli.shared.values import count, moment, rate_per_s, size_bytes
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError, TwinbusError

__all__ = [
    "EXIT_OPEN",
    "EXIT_UNKNOWN",
    "ReconcileOptions",
    "ReportOptions",
    "cost_estimate",
    "reconcile",
    "report",
]


def cost_estimate(
    backlog_queues: Annotated[
        int,
        typer.Option(
            "--backlog-queue-count", "--backlog-queues", help="How many backlog queues it has."
        ),
    ] = 10,
    poll: Annotated[
        str,
        typer.Option(help="How long the syphon waits at an empty queue, as 15m.", metavar="TIME"),
    ] = "15m",
    idle_detach: Annotated[
        str,
        typer.Option(
            help="When the service ends idle links, as Azure does after 10m.", metavar="TIME"
        ),
    ] = "10m",
    rate: Annotated[
        str,
        typer.Option(help="Messages to all entities together, as 200/s or 5k/h.", metavar="RATE"),
    ] = "0/s",
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "--message-bytes",
            help="Size of a message, as 300B or 2KB.",
            metavar="SIZE",
        ),
    ] = "1KB",
    outage: Annotated[
        str,
        typer.Option(
            "--expected-outage",
            "--outage",
            help="How long the outage lasts, as 45m or 4h.",
            metavar="TIME",
        ),
    ] = "1h",
    entities: Annotated[int, typer.Option(help="Queues and topics that are sent to.")] = 1,
    senders: Annotated[
        int, typer.Option(help="Processes that send; each pings and watches for itself.")
    ] = 1,
    syphons: Annotated[int, typer.Option(help="Syphons; each polls every backlog queue.")] = 1,
    ping: Annotated[
        str, typer.Option(help="The time between two pings of an entity.", metavar="TIME")
    ] = "1m",
    failover: Annotated[
        str,
        typer.Option(help="How long sends fail before an entity is diverted.", metavar="TIME"),
    ] = "1m",
    batch: Annotated[int, typer.Option(help="Messages in one call of the syphon.")] = 100,
    used: Annotated[
        str | None,
        typer.Option(
            help="Operations that the month has had already, as 13M [30 days of this traffic].",
            metavar="COUNT",
        ),
    ] = None,
    prices: Annotated[
        str,
        typer.Option(help="standard, basic, premium, or your own sheet.", metavar="NAME|FILE"),
    ] = "standard",
    output: Output = "table",
) -> None:
    """What a pair costs while nothing happens, and what an outage will cost.

    Idle polling for an hour, a day and 30 days; the outage by kind of operation, beside the same
    time without one; and what other numbers of syphons and other times of waiting would cost.
    Nothing is contacted. Price sheets and what is assumed: docs/COSTS.md.
    """
    check_output_format(output)
    from twinbus.cli.cost.estimate_output import show_estimate
    from twinbus.cost.estimate import EstimateInput, estimate
    from twinbus.cost.price_sheets import load_prices

    plan = EstimateInput(
        backlog_queues=backlog_queues,
        poll_ms=_ms(poll),
        idle_detach_ms=_ms(idle_detach),
        rate_per_s=rate_per_s(rate),
        size_bytes=size_bytes(size),
        outage_ms=_ms(outage),
        entities=entities,
        senders=senders,
        syphons=syphons,
        ping_ms=_ms(ping),
        failover_ms=_ms(failover),
        batch=batch,
        used=None if used is None else count(used),
    )
    show_estimate(estimate(plan, load_prices(prices)), output)


def _ms(text: str) -> int:
    return round(seconds(text) * 1000)


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
    from twinbus.cli.cost.report_output import run_report

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
        from twinbus.cli.cost.reconcile_run import run_reconcile

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

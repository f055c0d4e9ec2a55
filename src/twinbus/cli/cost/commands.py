"""``twinbus cost estimate``, ``report`` and ``reconcile``: the commands and their options.

    estimate     costs of a planned pair; connects to nothing     estimate_output.py
    report       costs from operations logs, computed on Spark    report_output.py
    reconcile    accounts for every sent message                  reconcile_run.py

The modules on the right run the commands and are imported late.
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
        typer.Option("--backlog-queue-count", "--backlog-queues", help="Number of backlog queues."),
    ] = 10,
    poll: Annotated[
        str,
        typer.Option(
            help="Wait time of one receive on an empty queue, for example 15m.", metavar="TIME"
        ),
    ] = "15m",
    idle_detach: Annotated[
        str,
        typer.Option(
            help="Idle time after which the service detaches links; Azure uses 10m.", metavar="TIME"
        ),
    ] = "10m",
    rate: Annotated[
        str,
        typer.Option(
            help="Message rate of all entities together, for example 200/s or 5k/h.",
            metavar="RATE",
        ),
    ] = "0/s",
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "--message-bytes",
            help="Size of a message, for example 300B or 2KB.",
            metavar="SIZE",
        ),
    ] = "1KB",
    outage: Annotated[
        str,
        typer.Option(
            "--expected-outage",
            "--outage",
            help="Duration of the outage, for example 45m or 4h.",
            metavar="TIME",
        ),
    ] = "1h",
    entities: Annotated[int, typer.Option(help="Number of queues and topics.")] = 1,
    senders: Annotated[
        int, typer.Option(help="Number of sending processes; each one pings and monitors.")
    ] = 1,
    syphons: Annotated[
        int, typer.Option(help="Number of syphons; each one polls every backlog queue.")
    ] = 1,
    ping: Annotated[
        str, typer.Option(help="Interval between two pings of an entity.", metavar="TIME")
    ] = "1m",
    failover: Annotated[
        str,
        typer.Option(
            help="Failover interval: time of failing sends before diversion.", metavar="TIME"
        ),
    ] = "1m",
    batch: Annotated[int, typer.Option(help="Number of messages per call of the syphon.")] = 100,
    used: Annotated[
        str | None,
        typer.Option(
            help="Operations already used this month, for example 13M [30 days of this traffic].",
            metavar="COUNT",
        ),
    ] = None,
    prices: Annotated[
        str,
        typer.Option(
            help="Price sheet: standard, basic, premium, or the path of a file.",
            metavar="NAME|FILE",
        ),
    ] = "standard",
    output: Output = "table",
) -> None:
    """Estimate the costs of a pair when idle and during an outage.

    Shows idle polling for an hour, a day and 30 days; the outage by kind of operation, compared to
    the same time without an outage; and the costs of other numbers of syphons and other wait
    times. Connects to no namespace. Price sheets and assumptions: docs/COSTS.md.
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
    """The options of the command."""

    logs: tuple[Path, ...]
    begins: datetime | None
    ends: datetime | None
    by: tuple[str, ...]
    prices: str
    source: str | None
    """None: the broker's lines where available, otherwise the clients' lines."""
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
        typer.Option(
            "--from", help="Start, for example 2026-11-16 or 2026-11-16T12:00Z [first line]."
        ),
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option("--to", help="End, exclusive; UTC unless it has an offset [last line]."),
    ] = None,
    by: Annotated[
        str, typer.Option(help=f"Grouping, one or more of {', '.join(BY)}.", metavar="WORDS")
    ] = "entity,day",
    prices: Annotated[
        str,
        typer.Option(
            help="Price sheet: standard, basic, premium, or the path of a file.",
            metavar="NAME|FILE",
        ),
    ] = "standard",
    source: Annotated[
        str,
        typer.Option(
            help="Source of the lines: broker, client, or auto (the broker where available)."
        ),
    ] = "auto",
    used: Annotated[
        str,
        typer.Option(
            "--used",
            "--month-already",
            help="Operations of the first month before the logs start, for example 13M.",
            metavar="COUNT",
        ),
    ] = "0",
    state: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the results of computed days [beside the logs].", metavar="DIR"
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="Format: table, json, jsonl, csv or html.")] = "table",
    file: Annotated[
        Path | None, typer.Option(help="Output file [standard output].", metavar="PATH")
    ] = None,
) -> None:
    """Report the costs of operations by entity, day or other groups.

    Reads the operations logs of brokers (DATA/metering, or twinbus serve --metering) and of clients
    (option metering). A computed day is computed again only if one of its files has changed. Times
    are UTC.
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
    # Imported late: a wrong option is reported before Spark is loaded.
    from twinbus.cli.cost.report_output import run_report

    run_report(options)


def _by(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in BY:
            raise ConfigurationError(
                f"Invalid value for --by: {word!r:.40}", hint=f"Use one or more of {', '.join(BY)}"
            )
    return tuple(dict.fromkeys(words))


def _one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ConfigurationError(
            f"Invalid value for {option}: {text!r:.40}",
            hint=f"Use {', '.join(known[:-1])} or {known[-1]}",
        )
    return text


EXIT_OPEN = 1
"""At least one message is not accounted for."""
EXIT_UNKNOWN = 2
"""No result: wrong usage, a source that cannot be read, or logs without messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """The options of the command."""

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
        typer.Option(help="Audit log of the primary's broker.", metavar="DIR"),
    ] = None,
    secondary_logs: Annotated[
        Path | None,
        typer.Option(help="Audit log of the secondary's broker.", metavar="DIR"),
    ] = None,
    client_logs: Annotated[
        Path | None, typer.Option(help="Audit logs of clients.", metavar="DIR")
    ] = None,
    receipts: Annotated[
        Path | None,
        typer.Option(help="Receipts or state directory of the syphon.", metavar="PATH"),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Journal of the pair.", metavar="FILE")
    ] = None,
    begins: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start of the send times, for example 2026-11-16 or 2026-11-16T12:00Z."
        ),
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option("--to", help="End of the send times, exclusive; UTC unless it has an offset."),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            help="Name of the primary, if the logs contain several pairs.", metavar="NAME"
        ),
    ] = None,
    look: Annotated[
        bool,
        typer.Option("--look", help="Also peek at the current messages of the queues."),
    ] = False,
    ca_file: CaFile = None,
    administration_port: AdministrationPort = None,
    output: Output = "table",
) -> None:
    """Account for every sent message, and list the missing ones.

    One source is enough; more sources prove more. With --look the namespaces come from the
    environment, as for twinbus syphon: SERVICEBUS_CONNECTION_STRING for the primary and
    SERVICEBUS_SECONDARY_CONNECTION_STRING for the secondary.

    Exit codes: 0 every message is accounted for, 1 messages are missing or unexpected, 2 no result:
    wrong usage, a source that cannot be read, or a source without messages.
    """
    try:
        check_output_format(output)
        options = ReconcileOptions(
            primary_logs=_require_path(primary_logs),
            secondary_logs=_require_path(secondary_logs),
            client_logs=_require_path(client_logs),
            receipts=_require_path(receipts),
            journal=_require_path(journal),
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
                "No source to reconcile",
                hint="Add --primary-logs, --secondary-logs, --client-logs or --receipts",
            )
        # Imported late: a wrong option is reported before Spark is loaded.
        from twinbus.cli.cost.reconcile_run import run_reconcile

        closes = run_reconcile(options)
    except Exception as error:
        # Exit code 1 means that messages are missing, so no error may end with it.
        typer.echo(f"twinbus: {_sentence(error)}", err=True)
        raise typer.Exit(EXIT_UNKNOWN) from error
    if not closes:
        raise typer.Exit(EXIT_UNKNOWN if closes is None else EXIT_OPEN)


def _sentence(error: Exception) -> str:
    if isinstance(error, TwinbusError):
        return str(error)
    return f"Reconciliation could not be completed: {type(error).__name__}: {error}"


def _require_path(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise ConfigurationError(
            f"File or directory {str(path)!r} not found", hint="Check the path"
        )
    return path

"""``twinbus cost estimate``: what will it cost? Nothing is contacted.

This module declares the command; cost_estimate_shown.py shows the answer, and is imported when it
is asked for.
"""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.cli.quantities import count, rate_per_s, size_bytes
from twinbus.cli.showing import Output, check_output_format
from twinbus.durations import seconds

__all__ = ["cost_estimate"]


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
    from twinbus.cli.cost_estimate_shown import show_estimate
    from twinbus.core.cost_estimate import EstimateInput, estimate
    from twinbus.prices import load_prices

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

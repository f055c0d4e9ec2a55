"""The output of ``twinbus cost estimate``, as tables and as JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import typer

from twinbus.cli.shared.output import plural, show_json, show_table
from twinbus.cost.estimate import CostEstimate, CostLine, OutageCost
from twinbus.cost.prices import GB, PriceSheet, money
from twinbus.failover.backlog_alerts import WATCH_INTERVAL_S, WATCH_INTERVAL_S_MAX

__all__ = ["as_json", "show_estimate"]


def show_estimate(estimate: CostEstimate, output: str) -> None:
    """Print an estimate."""
    if output != "table":
        show_json(as_json(estimate), output)
        return
    _show_idle(estimate)
    _show_outage(estimate)
    _show_what_if(estimate)
    for line in _notes(estimate):
        typer.echo(line)


# -- tables -------------------------------------------------------------------------------


def _show_idle(estimate: CostEstimate) -> None:
    plan, currency = estimate.plan, estimate.prices.currency
    queues = plural(plan.backlog_queues, "backlog queue")
    show_table(
        ["per", "empty receives", f"cost {currency}", f"base charge {currency}"],
        [
            (idle.period, f"{idle.receives:,}", money(idle.cost), money(idle.base_cost))
            for idle in estimate.idle
        ],
        title=(
            f"Idle: {plural(plan.syphons, 'syphon')}, {queues}, wait time {_time(plan.poll_ms)}"
        ),
        numbers_from=1,
    )
    month = estimate.idle[-1]
    typer.echo(
        f"If idle links are detached after {_time(plan.idle_detach_ms)} (Azure), one wait is "
        f"{plural(plan.grants_per_poll, 'receive')}:\n"
        f"{month.detached_receives:,} in {month.period}, {money(month.detached_cost)} {currency}."
    )


def _show_outage(estimate: CostEstimate) -> None:
    plan, outage, currency = estimate.plan, estimate.outage, estimate.prices.currency
    show_table(
        ["kind", "messages", "calls", "operations", "out", currency],
        [_outage_row(line) for line in outage.lines],
        title=(
            f"Outage of {_time(plan.outage_ms)}: {plural(outage.messages, 'message')} diverted, "
            f"{outage.charges_per_message} charges each"
        ),
        numbers_from=1,
        totals=[
            _total_row("total", outage, None),
            _total_row("without an outage", outage, True),
            _total_row("caused by the outage", outage, False),
        ],
    )


def _outage_row(line: CostLine) -> tuple[str, ...]:
    amount = line.amount
    return (
        line.kind,
        f"{amount.messages:,}",
        f"{amount.calls:,}",
        f"{line.units:,}",
        _size(amount.bytes_out),
        money(line.cost),
    )


def _total_row(name: str, outage: OutageCost, anyway: bool | None) -> tuple[str, ...]:
    units, cost = outage.total(anyway=anyway)
    return name, "", "", f"{units:,}", "", money(cost)


def _show_what_if(estimate: CostEstimate) -> None:
    polls = list(dict.fromkeys(each.poll_ms for each in estimate.what_if))
    rows = [
        estimate.what_if[at : at + len(polls)] for at in range(0, len(estimate.what_if), len(polls))
    ]
    show_table(
        ["syphons", *(_time(poll) for poll in polls)],
        [
            (f"{row[0].syphons}", *(f"{each.receives:,}\n{money(each.cost)}" for each in row))
            for row in rows
        ],
        title=(
            "What if: empty receives in 30 days, and their cost in "
            f"{estimate.prices.currency}, by number of syphons and wait time"
        ),
        numbers_from=1,
    )


def _notes(estimate: CostEstimate) -> list[str]:
    prices = estimate.prices
    notes = [f"Prices: {prices.name}, {prices.dated}, {prices.source}"]
    if prices.note:
        notes.append(prices.note)
    before = estimate.before
    notes.append(
        f"Added to {before.units:,} operations and {_size(before.bytes_out)} out in the same month"
        + (" (30 days of this traffic)." if estimate.plan.used is None else ".")
    )
    return notes


def _size(size_bytes: int) -> str:
    """``1.11 GB``; in powers of ten, like the prices of data transfer."""
    for unit_bytes, unit in ((GB, "GB"), (1_000_000, "MB"), (1_000, "kB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.2f} {unit}"
    return f"{size_bytes} B"


def _time(time_ms: int) -> str:
    """``45m``, ``1h``, ``90s``: the largest unit without a remainder."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if time_ms and time_ms % unit_ms == 0:
            return f"{time_ms // unit_ms}{unit}"
    return f"{time_ms}ms" if time_ms else "0s"


# -- JSON ---------------------------------------------------------------------------------


def as_json(estimate: CostEstimate) -> dict[str, Any]:
    """Amounts of money as text, because they are exact; times in seconds."""
    outage = estimate.outage
    return {
        "prices": _prices(estimate.prices),
        "plan": _plan(estimate),
        "idle": [
            {
                "period": idle.period,
                "hours": idle.hours,
                "receives": idle.receives,
                "cost": _exact(idle.cost),
                "receives_if_idle_links_end": idle.detached_receives,
                "cost_if_idle_links_end": _exact(idle.detached_cost),
                "base_cost": _exact(idle.base_cost),
            }
            for idle in estimate.idle
        ],
        "outage": {
            "messages": outage.messages,
            "away_s": outage.diverted_until_ms / 1000,
            "charges_per_message": outage.charges_per_message,
            "kinds": [
                {
                    "kind": line.kind.value,
                    **line.amount._asdict(),
                    "units": line.units,
                    "cost": _exact(line.cost),
                }
                for line in outage.lines
            ],
            "total": _total(outage, None),
            "without_outage": _total(outage, True),
            "overhead": _total(outage, False),
        },
        "what_if": [
            {
                "syphons": each.syphons,
                "poll_s": each.poll_ms / 1000,
                "receives_30_days": each.receives,
                "cost_30_days": _exact(each.cost),
            }
            for each in estimate.what_if
        ],
    }


def _prices(prices: PriceSheet) -> dict[str, Any]:
    return {
        "name": prices.name,
        "currency": prices.currency,
        "source": prices.source,
        "dated": prices.dated,
        "included_operations": prices.included,
    }


def _plan(estimate: CostEstimate) -> dict[str, Any]:
    plan = estimate.plan
    return {
        "backlog_queues": plan.backlog_queues,
        "poll_s": plan.poll_ms / 1000,
        "idle_detach_s": plan.idle_detach_ms / 1000,
        "rate_per_s": float(plan.rate_per_s),
        "size_bytes": plan.size_bytes,
        "outage_s": plan.outage_ms / 1000,
        "entities": plan.entities,
        "senders": plan.senders,
        "syphons": plan.syphons,
        "ping_s": plan.ping_ms / 1000,
        "failover_s": plan.failover_ms / 1000,
        "batch": plan.batch,
        "watch_s": WATCH_INTERVAL_S,
        "watch_s_max": WATCH_INTERVAL_S_MAX,
        "used": estimate.before.units,
        "used_bytes_out": estimate.before.bytes_out,
    }


def _total(outage: OutageCost, anyway: bool | None) -> dict[str, Any]:
    units, cost = outage.total(anyway=anyway)
    return {"units": units, "cost": _exact(cost)}


def _exact(amount: Decimal) -> str:
    """``0.80``, never ``8E-1``; without trailing zeros."""
    return f"{amount.normalize():f}" if amount else "0"

"""The charts of a cost report: cost over time, and shares.

What bars are as long as: money, or operations while a sheet charges nothing for them.

A sheet may include the first millions of a month. Whoever stays below them still wants to see
what happened, and not a page of empty plots.

What a cost report shows over time: cost by kind of operation, and detours.

What a cost report shows as shares: idle polling, entities, the overhead of each pair.

Rule: a colour means here what it means over time: sends, empty receives, pings, the rest.

Rule 1: a bar is one step of the report's time, or several when there are too many to be seen.
Rule 2: above the line lies what came into the backlog, below it what left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from twinbus.cost.html.formatting import (
    count,
    counted,
    decimals_for,
    each,
    moment,
    money,
    share,
)
from twinbus.cost.html.markup import Column, Markup, behind, isolated, joined
from twinbus.cost.html.svg_charts import (
    LyingBar,
    Series,
    TimeBar,
    TimePlot,
    bars_over_time,
    figure,
    legend,
    lying_bars,
    nothing,
    value_scale,
)
from twinbus.cost.report import CostReport, KindCost, PairCost, Slice
from twinbus.cost.units import Operation

__all__ = [
    "FREE",
    "Measure",
    "cost_over_time",
    "detours_over_time",
    "idle_share",
    "measure_of",
    "pair_overhead",
    "top_entities",
]

FREE: Final = "nothing was charged for them"


@dataclass(frozen=True, slots=True)
class Measure:
    """Money in a currency; without one, billable operations."""

    currency: str | None

    @property
    def unit(self) -> str:
        return self.currency or "billable operations"

    def of(self, part: KindCost | Slice) -> Decimal:
        return Decimal(part.units) if self.currency is None else part.cost

    def shown(self, amount: Decimal, largest: Decimal) -> str:
        """An amount with the decimals of the largest beside it."""
        if self.currency is None:
            return count(int(amount))
        return money(amount, self.currency, decimals_for(largest))


def measure_of(report: CostReport) -> Measure:
    is_charged = report.total.cost or any(kind.cost for kind in report.kinds)
    return Measure(report.prices.currency if is_charged else None)


# A bar below two pixels is none; longer reports put several steps into one.
BARS_MAX: Final = 180
NOTHING: Final = Decimal(0)

KINDS: Final = (
    Series("Send", "send"),
    Series("Receive", "receive"),
    Series("Empty receive", "empty"),
    Series("Ping", "ping"),
    Series("Other", "other"),
)
KIND_OF: Final = {
    Operation.SEND.value: 0,
    Operation.RECEIVE.value: 1,
    Operation.EMPTY_RECEIVE.value: 2,
    Operation.PING.value: 3,
}
OTHER: Final = 4


class _Bars:
    """How a report's steps of time become bars."""

    def __init__(self, report: CostReport, times: Sequence[datetime]) -> None:
        step_s = max(1, report.step_s)
        first_s = min(report.begins, *times).timestamp() // step_s * step_s
        last_s = max(report.ends, max(times) + timedelta(seconds=1)).timestamp()
        steps = math.ceil((last_s - first_s) / step_s)
        steps_in_bar = math.ceil(steps / BARS_MAX)
        self.begins = datetime.fromtimestamp(first_s, UTC)
        self.seconds = step_s * steps_in_bar
        self.count = math.ceil(steps / steps_in_bar)

    def at(self, time: datetime) -> datetime:
        """The beginning of the bar that a step belongs to."""
        number = (time - self.begins).total_seconds() // self.seconds
        return self.begins + timedelta(seconds=number * self.seconds)


def cost_over_time(report: CostReport) -> Markup:
    measure = measure_of(report)
    title = "Cost over time" if measure.currency else "Operations over time"
    if not any(measure.of(kind) for kind in report.kinds):
        return figure(title, "By kind of operation", nothing("No operation was counted."))
    bars = _Bars(report, [kind.at for kind in report.kinds])
    sums: dict[datetime, list[Decimal]] = defaultdict(lambda: [NOTHING] * len(KINDS))
    for kind in report.kinds:
        sums[bars.at(kind.at)][KIND_OF.get(kind.operation, OTHER)] += measure.of(kind)
    highest = max(sum(values, NOTHING) for values in sums.values())
    totals = [sum(values, NOTHING) for values in zip(*sums.values(), strict=True)]
    plot = TimePlot(
        name="cost-over-time",
        title=title,
        description=f"Stacked bars, one for every {each(bars.seconds)}, in {measure.unit}. "
        f"The highest is {measure.shown(highest, highest)}.",
        series=KINDS,
        begins=bars.begins,
        bar_s=bars.seconds,
        bar_count=bars.count,
        bars=[
            TimeBar(at, tuple(values), _hover(at, values, highest, measure))
            for at, values in sorted(sums.items())
        ],
        scale=value_scale(highest, whole=measure.currency is None),
    )
    subtitle = f"By kind of operation, {measure.unit} per {each(bars.seconds)}"
    return figure(
        title,
        subtitle if measure.currency else f"{subtitle}; {FREE}",
        legend(
            [
                (series, measure.shown(total, max(totals)))
                for series, total in zip(KINDS, totals, strict=True)
                if total
            ]
        ),
        bars_over_time(plot),
        _kinds_behind(report),
    )


def _hover(at: datetime, values: Sequence[Decimal], highest: Decimal, measure: Measure) -> Markup:
    lines = [moment(at)]
    lines += [
        f"{series.label}: {measure.shown(value, highest)}"
        for series, value in zip(KINDS, values, strict=True)
        if value
    ]
    lines.append(f"Together: {measure.shown(sum(values, NOTHING), highest)}")
    return joined(lines, between="\n")


def _kinds_behind(report: CostReport) -> Markup:
    places = decimals_for(max(kind.cost for kind in report.kinds))
    return behind(
        "Cost over time",
        [
            Column("From (UTC)", is_number=False),
            Column("Operation", is_number=False),
            Column("Billable operations"),
            Column(f"Cost, {report.prices.currency}"),
        ],
        [
            (moment(kind.at), kind.operation, count(kind.units), money(kind.cost, "", places))
            for kind in sorted(report.kinds, key=lambda kind: (kind.at, kind.operation))
            if kind.units or kind.cost
        ],
    )


def detours_over_time(report: CostReport) -> Markup:
    title = "Detours over time"
    if not any(detour.sent or detour.received for detour in report.detours):
        return figure(title, "Messages through the backlog", nothing("No message made a detour."))
    bars = _Bars(report, [detour.at for detour in report.detours])
    sums: dict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    for detour in report.detours:
        values = sums[bars.at(detour.at)]
        values[0] += detour.sent
        values[1] += detour.received
    into = sum(values[0] for values in sums.values())
    out = sum(values[1] for values in sums.values())
    series = Series("Into the backlog", "send"), Series("Out of it", "receive")
    plot = TimePlot(
        name="detours-over-time",
        title=title,
        description=f"Bars, one for every {each(bars.seconds)}: messages into the backlog "
        f"above the line ({count(into)}), out of it below ({count(out)}).",
        series=series,
        begins=bars.begins,
        bar_s=bars.seconds,
        bar_count=bars.count,
        bars=[
            TimeBar(at, (Decimal(sent), Decimal(-received)), _detour_hover(at, sent, received))
            for at, (sent, received) in sorted(sums.items())
        ],
        scale=value_scale(
            Decimal(max(values[0] for values in sums.values())),
            -Decimal(max(values[1] for values in sums.values())),
            whole=True,
        ),
    )
    return figure(
        title,
        f"Messages per {each(bars.seconds)}; into the backlog above the line, out of it below",
        legend([(series[0], count(into)), (series[1], count(out))]),
        bars_over_time(plot),
        _detours_behind(report),
    )


def _detour_hover(at: datetime, sent: int, received: int) -> Markup:
    lines = [moment(at), f"Into the backlog: {count(sent)}", f"Out of it: {count(received)}"]
    return joined(lines, between="\n")


def _detours_behind(report: CostReport) -> Markup:
    places = decimals_for(max(detour.cost for detour in report.detours))
    return behind(
        "Detours over time",
        [
            Column("From (UTC)", is_number=False),
            Column("Pair", is_number=False),
            Column("Into the backlog"),
            Column("Out of it"),
            Column(f"Cost, {report.prices.currency}"),
        ],
        [
            (
                moment(detour.at),
                detour.pair,
                count(detour.sent),
                count(detour.received),
                money(detour.cost, "", places),
            )
            for detour in sorted(report.detours, key=lambda detour: (detour.at, detour.pair))
        ],
    )


ROWS_MAX: Final = 12
# Requests that are about no entity are counted, too.
THE_NAMESPACE: Final = "(the namespace itself)"
PAIR_PARTS: Final = (
    Series("Detours", "send"),
    Series("Pings", "ping"),
    Series("Idle polling", "empty"),
    Series("Other", "other"),
)


def idle_share(report: CostReport) -> Markup:
    title, subtitle = "Idle polling", "Empty receives among all billable operations"
    if not report.total.units:
        return figure(title, subtitle, nothing("No operation was counted."))
    part = min(1.0, max(0.0, report.idle_share))
    cost = money(report.idle_cost, report.prices.currency)
    idle_units = round(part * report.total.units)
    row = LyingBar(
        name=share(part),
        note="",
        figure=cost,
        parts=[("empty", part)],
        hover=joined([f"{share(part)} of {counted(report.total.units, 'operation')}: {cost}"]),
    )
    return figure(
        title,
        subtitle,
        lying_bars("idle-share", title, f"{share(part)} are empty receives; {cost}.", [row]),
        behind(
            title,
            [Column("", is_number=False), Column("Billable operations"), Column("Share")],
            [
                ("Empty receives", count(idle_units), share(part)),
                ("Everything else", count(report.total.units - idle_units), share(1 - part)),
            ],
        ),
    )


def top_entities(report: CostReport) -> Markup:
    measure = measure_of(report)
    title, subtitle = "Most expensive entities", "Cost of all their operations"
    if measure.currency is None:
        title, subtitle = "Busiest entities", f"Billable operations; {FREE}"
    rows = sorted(report.entities, key=measure.of, reverse=True)[:ROWS_MAX]
    if not rows:
        return figure(title, subtitle, nothing("No entity was used."))
    highest = measure.of(rows[0])
    places = decimals_for(max(row.cost for row in rows))
    return figure(
        title,
        subtitle,
        lying_bars(
            "top-entities",
            title,
            f"One bar for each entity; the longest is {measure.shown(highest, highest)}.",
            [_entity_bar(row, highest, measure) for row in rows],
        ),
        behind(
            title,
            [
                Column("Entity", is_number=False),
                Column("Namespace", is_number=False),
                Column("Messages"),
                Column("Billable operations"),
                Column(f"Cost, {report.prices.currency}"),
            ],
            [
                (
                    row.keys.get("entity", ""),
                    row.keys.get("namespace", ""),
                    count(row.messages),
                    count(row.units),
                    money(row.cost, "", places),
                )
                for row in rows
            ],
        ),
    )


def _entity_bar(row: Slice, highest: Decimal, measure: Measure) -> LyingBar:
    entity, namespace = row.keys.get("entity", ""), row.keys.get("namespace", "")
    amount = measure.of(row)
    lines = [isolated(entity), isolated(namespace), counted(row.units, "billable operation")]
    if measure.currency:
        lines.append(measure.shown(amount, highest))
    return LyingBar(
        name=entity or THE_NAMESPACE,
        note=namespace,
        figure=measure.shown(amount, highest),
        parts=[("send", float(amount / highest) if highest else 0.0)],
        hover=joined(lines, between="\n"),
    )


def _pair_units(pair: PairCost) -> tuple[int, int, int, int]:
    return pair.detour_units, pair.ping_units, pair.polling_units, pair.other_units


def pair_overhead(report: CostReport) -> Markup:
    title, subtitle = "Overhead of each pair", "Billable operations on top of the messages"
    if not report.pairs:
        return figure(title, subtitle, nothing("There is no pair in these logs."))
    pairs = sorted(report.pairs, key=lambda pair: (-pair.cost, -sum(_pair_units(pair)), pair.pair))
    shown = pairs[:ROWS_MAX]
    currency = report.prices.currency
    longest = max(1, *(sum(_pair_units(pair)) for pair in shown))
    places = decimals_for(shown[0].cost)
    sums = [sum(units) for units in zip(*(_pair_units(pair) for pair in pairs), strict=True)]
    more = (
        f"; {count(len(shown))} of {count(len(pairs))} are shown" if len(pairs) > ROWS_MAX else ""
    )
    return figure(
        title,
        subtitle + more,
        legend(
            [(part, count(units)) for part, units in zip(PAIR_PARTS, sums, strict=True) if units]
        ),
        lying_bars(
            "pair-overhead",
            title,
            f"One stacked bar for each pair; together {count(sum(sums))} billable operations.",
            [_pair_bar(pair, longest, currency, places) for pair in shown],
        ),
        behind(
            title,
            [
                Column("Pair", is_number=False),
                Column("Messages detoured"),
                *(Column(part.label) for part in PAIR_PARTS),
                Column(f"Cost, {currency}"),
            ],
            [
                (
                    pair.pair,
                    count(pair.detoured_messages),
                    *map(count, _pair_units(pair)),
                    money(pair.cost, "", places),
                )
                for pair in pairs
            ],
        ),
    )


def _pair_bar(pair: PairCost, longest: int, currency: str, places: int) -> LyingBar:
    units, cost = _pair_units(pair), money(pair.cost, currency, places)
    lines: list[str] = [isolated(pair.pair)]
    lines += [f"{part.label}: {count(n)}" for part, n in zip(PAIR_PARTS, units, strict=True)]
    return LyingBar(
        name=pair.pair,
        note=counted(pair.detoured_messages, "message") + " detoured",
        figure=cost,
        parts=[(part.colour, n / longest) for part, n in zip(PAIR_PARTS, units, strict=True)],
        hover=joined([*lines, cost], between="\n"),
    )

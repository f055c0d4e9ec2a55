"""The charts of a cost report.

    over time   cost by kind of operation, diverted messages
    shares      idle polling, entities, the overhead of each pair

Rule 1: a bar of time is one step of the report, or several when there would be too many bars.
Rule 2: messages into the backlog are above the zero line, messages out of it below.
Rule 3: bars show money; or operations, when nothing was charged for them: a price sheet may
        include the first millions of a month, and the charts would be empty.
Rule 4: a colour means the same in all charts: sends, receives, empty receives, pings, the rest.
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
from twinbus.cost.html.markup import Column, Markup, data_table, isolate, join
from twinbus.cost.html.svg_charts import (
    HorizontalBar,
    Series,
    TimeBar,
    TimePlot,
    bars_over_time,
    figure,
    horizontal_bars,
    legend,
    nothing,
    value_scale,
)
from twinbus.cost.report import CostReport, KindCost, PairCost, Slice
from twinbus.cost.units import Operation

__all__ = [
    "FREE",
    "Measure",
    "choose_measure",
    "cost_over_time",
    "detours_over_time",
    "idle_share",
    "pair_overhead",
    "top_entities",
]

FREE: Final = "not charged"


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
        """An amount with the decimals that the largest one has."""
        if self.currency is None:
            return count(int(amount))
        return money(amount, self.currency, decimals_for(largest))


def choose_measure(report: CostReport) -> Measure:
    is_charged = report.total.cost or any(kind.cost for kind in report.kinds)
    return Measure(report.prices.currency if is_charged else None)


# A bar needs two pixels; longer reports put several steps into one.
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
    """The bars for the steps of time of a report."""

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
    measure = choose_measure(report)
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
        _kinds_table(report),
    )


def _hover(at: datetime, values: Sequence[Decimal], highest: Decimal, measure: Measure) -> Markup:
    lines = [moment(at)]
    lines += [
        f"{series.label}: {measure.shown(value, highest)}"
        for series, value in zip(KINDS, values, strict=True)
        if value
    ]
    lines.append(f"Total: {measure.shown(sum(values, NOTHING), highest)}")
    return join(lines, between="\n")


def _kinds_table(report: CostReport) -> Markup:
    places = decimals_for(max(kind.cost for kind in report.kinds))
    return data_table(
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
    title = "Diverted messages over time"
    if not any(detour.sent or detour.received for detour in report.detours):
        return figure(title, "Messages through the backlog", nothing("No message was diverted."))
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
        _diverted_table(report),
    )


def _detour_hover(at: datetime, sent: int, received: int) -> Markup:
    lines = [moment(at), f"Into the backlog: {count(sent)}", f"Out of it: {count(received)}"]
    return join(lines, between="\n")


def _diverted_table(report: CostReport) -> Markup:
    places = decimals_for(max(detour.cost for detour in report.detours))
    return data_table(
        "Diverted messages over time",
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
# Requests that concern no entity are counted, too.
THE_NAMESPACE: Final = "(the namespace itself)"
PAIR_PARTS: Final = (
    Series("Diverted messages", "send"),
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
    row = HorizontalBar(
        name=share(part),
        note="",
        figure=cost,
        parts=[("empty", part)],
        hover=join([f"{share(part)} of {counted(report.total.units, 'operation')}: {cost}"]),
    )
    return figure(
        title,
        subtitle,
        horizontal_bars("idle-share", title, f"{share(part)} are empty receives; {cost}.", [row]),
        data_table(
            title,
            [Column("", is_number=False), Column("Billable operations"), Column("Share")],
            [
                ("Empty receives", count(idle_units), share(part)),
                ("Everything else", count(report.total.units - idle_units), share(1 - part)),
            ],
        ),
    )


def top_entities(report: CostReport) -> Markup:
    measure = choose_measure(report)
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
        horizontal_bars(
            "top-entities",
            title,
            f"One bar for each entity; the longest is {measure.shown(highest, highest)}.",
            [_entity_bar(row, highest, measure) for row in rows],
        ),
        data_table(
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


def _entity_bar(row: Slice, highest: Decimal, measure: Measure) -> HorizontalBar:
    entity, namespace = row.keys.get("entity", ""), row.keys.get("namespace", "")
    amount = measure.of(row)
    lines = [isolate(entity), isolate(namespace), counted(row.units, "billable operation")]
    if measure.currency:
        lines.append(measure.shown(amount, highest))
    return HorizontalBar(
        name=entity or THE_NAMESPACE,
        note=namespace,
        figure=measure.shown(amount, highest),
        parts=[("send", float(amount / highest) if highest else 0.0)],
        hover=join(lines, between="\n"),
    )


def _pair_units(pair: PairCost) -> tuple[int, int, int, int]:
    return pair.detour_units, pair.ping_units, pair.polling_units, pair.other_units


def pair_overhead(report: CostReport) -> Markup:
    title, subtitle = "Overhead of each pair", "Billable operations in addition to the messages"
    if not report.pairs:
        return figure(title, subtitle, nothing("No pair found in these logs."))
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
        horizontal_bars(
            "pair-overhead",
            title,
            f"One stacked bar for each pair; in total {count(sum(sums))} billable operations.",
            [_pair_bar(pair, longest, currency, places) for pair in shown],
        ),
        data_table(
            title,
            [
                Column("Pair", is_number=False),
                Column("Diverted messages"),
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


def _pair_bar(pair: PairCost, longest: int, currency: str, places: int) -> HorizontalBar:
    units, cost = _pair_units(pair), money(pair.cost, currency, places)
    lines: list[str] = [isolate(pair.pair)]
    lines += [f"{part.label}: {count(n)}" for part, n in zip(PAIR_PARTS, units, strict=True)]
    return HorizontalBar(
        name=pair.pair,
        note=counted(pair.detoured_messages, "message") + " diverted",
        figure=cost,
        parts=[(part.colour, n / longest) for part, n in zip(PAIR_PARTS, units, strict=True)],
        hover=join([*lines, cost], between="\n"),
    )

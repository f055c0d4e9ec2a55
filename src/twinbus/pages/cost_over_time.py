"""What a cost report shows over time: cost by kind of operation, and detours.

Rule 1: a bar is one step of the report's time, or several when there are too many to be seen.
Rule 2: above the line lies what came into the backlog, below it what left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from twinbus.core.cost_report import CostReport
from twinbus.core.costs import Operation
from twinbus.pages.figures import (
    count,
    decimals_for,
    each,
    moment,
    money,
)
from twinbus.pages.markup import Markup, joined
from twinbus.pages.measure import FREE, Measure, measure_of
from twinbus.pages.plots import (
    Series,
    TimeBar,
    TimePlot,
    bars_over_time,
    figure,
    legend,
    nothing,
)
from twinbus.pages.scales import value_scale
from twinbus.pages.tables import Column, behind

__all__ = ["cost_over_time", "detours_over_time"]

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

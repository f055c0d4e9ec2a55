"""What a cost report shows as shares: idle polling, entities, the overhead of each pair.

Rule: a colour means here what it means over time: sends, empty receives, pings, the rest.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from twinbus.core.cost_report import CostReport, PairCost, Slice
from twinbus.pages.figures import count, counted, decimals_for, money, share
from twinbus.pages.markup import Markup, isolated, joined
from twinbus.pages.measure import FREE, Measure, measure_of
from twinbus.pages.plots import LyingBar, Series, figure, legend, lying_bars, nothing
from twinbus.pages.tables import Column, behind

__all__ = ["idle_share", "pair_overhead", "top_entities"]

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

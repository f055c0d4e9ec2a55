"""What a cost report shows as shares: idle polling, entities, the overhead of each pair.

Rule: a colour means here what it means over time: sends, empty receives, pings, the rest.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from twinbus.core.cost_report import CostReport, PairCost, Slice
from twinbus.pages.figures import count, counted, decimals_for, money, share
from twinbus.pages.markup import Markup, isolated, joined
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
    title, subtitle = "Most expensive entities", "Cost of all their operations"
    rows = report.entities[:ROWS_MAX]
    if not rows:
        return figure(title, subtitle, nothing("No entity was used."))
    currency = report.prices.currency
    highest = max(row.cost for row in rows)
    places = decimals_for(highest)
    return figure(
        title,
        subtitle,
        lying_bars(
            "top-entities",
            title,
            f"One bar for each entity; the longest is {money(highest, currency)}.",
            [_entity_bar(row, highest, currency, places) for row in rows],
        ),
        behind(
            title,
            [
                Column("Entity", is_number=False),
                Column("Namespace", is_number=False),
                Column("Messages"),
                Column("Billable operations"),
                Column(f"Cost, {currency}"),
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


def _entity_bar(row: Slice, highest: Decimal, currency: str, places: int) -> LyingBar:
    entity, namespace = row.keys.get("entity", ""), row.keys.get("namespace", "")
    cost = money(row.cost, currency, places)
    return LyingBar(
        name=entity or THE_NAMESPACE,
        note=namespace,
        figure=cost,
        parts=[("send", float(row.cost / highest) if highest else 0.0)],
        hover=joined(
            [isolated(entity), isolated(namespace), f"{cost}, {counted(row.units, 'operation')}"],
            between="\n",
        ),
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

"""The cost report as one page: no network, no script, no font of its own.

    headline | incomplete data | cost over time | diverted messages | entities | pairs |
    idle polling | table

Rule 1: what is missing from the report is shown above the charts, not below them.
Rule 2: the table adds up: what is not listed is in a line of its own.
Rule 3: the page loads nothing and runs nothing; its content security policy forbids it, too.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from twinbus.cost.html.formatting import (
    count,
    counted,
    data_size,
    decimals_for,
    moment,
    money,
    period,
    share,
)
from twinbus.cost.html.markup import ROWS_MAX, Column, Markup, data_table, join, table, tag
from twinbus.cost.html.report_charts import (
    cost_over_time,
    detours_over_time,
    idle_share,
    pair_overhead,
    top_entities,
)
from twinbus.cost.html.style import STYLE
from twinbus.cost.report import CostReport, OpenRun, PricesUsed, Quality, Slice

__all__ = ["render"]

# A longer figure is shown in smaller type.
LONG_FIGURE: Final = 7
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def render(report: CostReport) -> str:
    """The whole page."""
    when = period(report.begins, report.ends)
    main = tag(
        "main",
        tag("header", tag("h1", "Cost report"), tag("p", when), _prices(report.prices)),
        _headline(report),
        _missing(report.quality),
        cost_over_time(report),
        detours_over_time(report),
        top_entities(report),
        pair_overhead(report),
        idle_share(report),
        _table(report),
    )
    footer = tag(
        "footer",
        "A diverted message costs four operations: into the backlog and out of it, into the "
        "primary and out of it. Messages of more than 64 KB count once for each 64 KB. "
        "Times are UTC. Created by twinbus.",
    )
    page = tag("html", _head(when), tag("body", main, footer), lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(when: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        # Without one a browser requests it from the server.
        tag("link", rel="icon", href="data:,"),
        tag("title", f"Cost report, {when}"),
        # The style sheet is constant and has no "<", so it is not escaped.
        tag("style", Markup(STYLE)),
    )


def _prices(prices: PricesUsed) -> Markup:
    # An address may be followed by a remark.
    address, space, remark = prices.source.partition(" ")
    source: str = tag("bdi", prices.source)
    if address.startswith("https://"):
        link = tag("a", address, href=address, rel="noreferrer noopener")
        source = join([link, space, tag("bdi", remark)])
    sheet = tag("b", tag("bdi", prices.name))
    return tag(
        "p", "Prices: ", sheet, f", {prices.currency}, from ", source, ", ",
        tag("span", prices.dated, class_="whole"), class_="pale",
    )  # fmt: skip


def _headline(report: CostReport) -> Markup:
    into = sum(detour.sent for detour in report.detours)
    out = sum(detour.received for detour in report.detours)
    detours = sum((detour.cost for detour in report.detours), Decimal(0))
    both = report.total.cost + report.base_cost
    cards = (
        ("Operations", report.total.cost, counted(report.total.units, "billable operation")),
        ("Base charge", report.base_cost, f"{money(both)} including operations"),
        (
            "Diverted messages",
            detours,
            f"{counted(into, 'message')} into the backlog, {count(out)} out",
        ),
        ("Idle polling", report.idle_cost, f"{share(report.idle_share)} of all operations"),
    )
    currency = report.prices.currency
    return tag("dl", *(_card(*card, currency) for card in cards), class_="headline")


def _card(name: str, amount: Decimal, note: str, currency: str) -> Markup:
    shown = money(amount)
    size = " long" if len(shown) > LONG_FIGURE else ""
    figure = tag("dd", shown, " ", tag("small", currency), class_=f"sum{size}")
    return tag("div", tag("dt", name), figure, tag("dd", tag("p", note)), class_="card")


# -- incomplete data ----------------------------------------------------------------------


def _missing(quality: Quality) -> Markup:
    damaged = sum(quality.damaged.values())
    read = f"Counted: {counted(quality.records, 'line')} of the logs."
    remarks = _remarks(quality)
    if not damaged and not quality.open_runs:
        sentences = [
            "The logs are complete: every line could be read, every run is closed.",
            read,
            *remarks,
        ]
        return tag("p", " ".join(sentences), class_="pale complete")
    items = []
    if quality.open_runs:
        items.append(
            tag(
                "li",
                f"Not closed (still running, or killed): {counted(len(quality.open_runs), 'run')}. "
                "At most ",
                tag("b", counted(quality.units_missing_max, "billable operation")),
                " can be missing.",
                _open_runs(quality.open_runs),
            )
        )
    if damaged:
        reasons = sorted(quality.damaged.items(), key=lambda item: (-item[1], item[0]))
        listed = join(
            (tag("span", tag("bdi", reason), f" ({count(lines)})") for reason, lines in reasons),
            between=", ",
        )
        items.append(tag("li", f"Could not be used: {counted(damaged, 'line')}: ", listed, "."))
    items += [tag("li", remark) for remark in remarks]
    return tag(
        "section",
        tag("h2", "Incomplete data"),
        tag("p", read, class_="pale"),
        tag("ul", *items),
        class_="missing",
    )


def _remarks(quality: Quality) -> list[str]:
    remarks = []
    if quality.duplicates:
        remarks.append(f"Duplicates, not counted: {counted(quality.duplicates, 'line')}.")
    if quality.late:
        late = counted(quality.late, "line")
        remarks.append(f"Found in the file of another day, counted on their own day: {late}.")
    return remarks


def _open_runs(runs: Sequence[OpenRun]) -> Markup:
    return data_table(
        "Not closed",
        [
            Column("Namespace", is_number=False),
            Column("Run", is_number=False),
            Column("Source", is_number=False),
            Column("Last line (UTC)", is_number=False),
            Column("Missing, at most"),
        ],
        [
            (run.namespace, run.run, run.source, moment(run.last_at), count(run.units_missing_max))
            for run in runs
        ],
        what="runs",
    )


# -- the table ----------------------------------------------------------------------------


def _table(report: CostReport) -> Markup:
    title = f"By {' and '.join(report.by)}" if report.by else "Total"
    heading = tag("h2", title)
    if not report.slices:
        return tag("section", heading, tag("p", "No data.", class_="nothing"))
    places = decimals_for(max(line.cost for line in report.slices))
    shown, left_out = report.slices[:ROWS_MAX], report.slices[ROWS_MAX:]
    rows = [_row(report, line, places) for line in shown]
    if left_out:
        rest = _row(report, _sum(left_out), places)
        rows.append([f"{count(len(left_out))} more", *rest[1:]] if report.by else rest)
    total = _row(report, report.total, places)
    columns = [
        *(Column(word.capitalize(), is_number=False) for word in report.by),
        *map(Column, ("Messages", "Calls", "Billable operations", "In", "Out")),
        Column(f"Cost, {report.prices.currency}"),
    ]
    if report.by:
        total[0] = "Total"
    hint = "Use --output csv for all lines." if left_out else ""
    return tag(
        "section",
        heading,
        table(title, columns, rows, total),
        tag("p", hint, class_="pale") if hint else "",
    )


def _row(report: CostReport, line: Slice, places: int) -> list[str]:
    return [
        *(line.keys.get(word, "") for word in report.by),
        count(line.messages),
        count(line.calls),
        count(line.units),
        data_size(line.bytes_in),
        data_size(line.bytes_out),
        money(line.cost, "", places),
    ]


def _sum(lines: Sequence[Slice]) -> Slice:
    return Slice(
        keys={},
        calls=sum(line.calls for line in lines),
        messages=sum(line.messages for line in lines),
        units=sum(line.units for line in lines),
        bytes_in=sum(line.bytes_in for line in lines),
        bytes_out=sum(line.bytes_out for line in lines),
        cost=sum((line.cost for line in lines), Decimal(0)),
    )

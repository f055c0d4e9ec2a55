"""The cost report as a page, read as a browser's parser would read it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reports import (
    BEGINS,
    EVERY_REPORT,
    HOSTILE,
    PRICES,
    cost_of,
    empty,
    hostile,
    many_entities,
    one_slice,
    outage_by_the_minute,
    outage_in_a_month,
)
from twinbus.cost.html.markup import ROWS_MAX, escape
from twinbus.cost.html.page import render
from twinbus.cost.html.report_charts import BARS_MAX
from twinbus.cost.html.svg_charts import PLOT_HEIGHT, PLOT_TOP
from twinbus.cost.report import CostReport, DetourCost, KindCost
from twinbus.cost.units import Operation

PLOTS = ("cost-over-time", "detours-over-time", "top-entities", "pair-overhead", "idle-share")
VOID = {"meta", "link"}


class Parsed(HTMLParser):
    """Elements with their attributes, whether they nest, and the text of the whole."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def bars(self, *colours: str) -> list[dict[str, str]]:
        return [each for each in self.all("rect") if each["class"] in colours]


def parsed(report: CostReport) -> Parsed:
    return Parsed(render(report))


@pytest.mark.parametrize("name", EVERY_REPORT)
def test_a_page_is_whole_and_has_nothing_from_elsewhere(name: str) -> None:
    """C3: the page is one file: elements nest, nothing is loaded and nothing is run."""
    page = parsed(EVERY_REPORT[name]())
    elements = Counter(tag for tag, _ in page.elements)
    assert not elements.keys() & {"script", "img", "iframe", "object", "embed", "base", "form"}
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    attributes = {key for _, each in page.elements for key in each}
    assert not {key for key in attributes if key == "style" or key.startswith("on")}
    assert [each for _, each in page.elements if "src" in each or "xlink:href" in each] == []


def test_the_policy_allows_this_style_sheet_and_nothing_else() -> None:
    """C3: the browser is told that the page loads nothing."""
    page = render(outage_in_a_month())
    [policy] = [
        each["content"]
        for each in Parsed(page).all("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    style = page.split("<style>")[1].split("</style>")[0]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{hashed}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_headline_tells_total_base_period_and_prices() -> None:
    """C3: what it cost stands on top, with where the prices come from."""
    report = outage_in_a_month()
    text = parsed(report).text
    for fact in (
        "1 Nov to 30 Nov 2026 (30 days, UTC)",
        f"Operations{report.total.cost:,.2f} USD",
        "Base charge9.81 USD",
        f"Prices: standard, USD, from {PRICES.source}, 2026-11-01",
        "578,200 messages into the backlog, 578,200 out",
    ):
        assert fact in text


def test_every_plot_has_a_name_a_description_and_its_figures() -> None:
    """C3: plots can be read without being seen."""
    page = parsed(outage_in_a_month())
    drawings = page.all("svg")
    assert [each["class"] for each in drawings] == list(PLOTS)
    named = {each["id"] for each in page.all("title") + page.all("desc") if "id" in each}
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert set(drawing["aria-labelledby"].split()) <= named
    # One more is the list of runs that are not closed.
    assert len(page.all("details")) == len(PLOTS) + 1


def test_bars_stack_to_the_cost_of_their_step() -> None:
    """C3: cost over time by kind: heights are in proportion to money."""

    # Given one step with 3 parts of sends and 1 of receives, and one with 2 parts of pings
    def kind(hour: int, operation: str, units: int) -> KindCost:
        at = BEGINS + timedelta(hours=hour)
        return KindCost(at=at, operation=operation, units=units, cost=cost_of(units))

    kinds = kind(0, "send", 3000), kind(0, "receive", 1000), kind(5, "ping", 2000)
    page = parsed(replace(empty(), kinds=kinds))

    # Then one bar stands on the other, and the other step is half as high
    [send], [receive], [ping] = page.bars("send"), page.bars("receive"), page.bars("ping")
    assert float(send["height"]) == pytest.approx(3 * float(receive["height"]), abs=0.05)
    assert float(ping["height"]) == pytest.approx(2 * float(receive["height"]), abs=0.05)
    assert float(receive["y"]) + float(receive["height"]) == pytest.approx(
        float(send["y"]), abs=0.02
    )
    assert send["x"] == receive["x"]
    slot = 100 / 24
    distance = float(ping["x"].rstrip("%")) - float(send["x"].rstrip("%"))
    assert distance == pytest.approx(5 * slot, abs=0.01)


def test_detours_lie_above_the_line_and_their_way_home_below() -> None:
    """C3: detours over time, into the backlog and out of it."""
    page = render(outage_by_the_minute())
    drawing = page.split('class="detours-over-time"')[1].split("</svg>")[0]
    zero = float(re.findall(r'y1="([\d.]+)" y2="[\d.]+" class="zero"', drawing)[0])
    into = re.findall(r'y="([\d.]+)" height="([\d.]+)" class="send"', drawing)
    out = re.findall(r'y="([\d.]+)" height="([\d.]+)" class="receive"', drawing)
    assert len(into) == 45 and len(out) == 21
    assert all(float(y) + float(height) == pytest.approx(zero, abs=0.02) for y, height in into)
    assert all(float(y) == zero for y, _ in out)
    # 12,000 a minute went in, and 25,700 came out.
    assert float(out[0][1]) / float(into[0][1]) == pytest.approx(25_700 / 12_000, rel=0.01)


def test_a_label_at_the_edge_stays_inside() -> None:
    """C3: the last day of a month of 31 is named, and not beyond the plot."""
    kinds = outage_in_a_month().kinds
    page = render(replace(empty(), ends=BEGINS + timedelta(days=31), step_s=86_400, kinds=kinds))
    assert 'x="100%" y="236" text-anchor="end">1\u00a0Dec</text>' in page


def test_too_many_steps_share_bars_and_lose_nothing() -> None:
    """C3: five years by the day are still a plot."""
    days = 1_826
    kinds = tuple(
        KindCost(at=BEGINS + timedelta(days=n), operation="send", units=1, cost=Decimal(1))
        for n in range(days)
    )
    report = replace(empty(), ends=BEGINS + timedelta(days=days), step_s=86_400, kinds=kinds)
    page = render(report)
    steps = re.findall(r"Total: ([\d.]+)", page)
    assert len(steps) <= BARS_MAX
    assert sum(map(Decimal, steps)) == days


def test_what_is_missing_stands_in_a_box_with_how_much_at_most() -> None:
    """C3: damaged lines by reason, duplicates, late lines, and runs that are not closed."""
    text = parsed(outage_in_a_month()).text
    for fact in (
        "Incomplete data",
        "Not closed (still running, or killed): 1 run. At most 100,000 billable operations",
        "Could not be used: 4 lines: not JSON (3), operation that nobody knows (1).",
        "not counted: 312 lines.",
        "counted on their own day: 47 lines.",
    ):
        assert fact in text


def test_complete_books_are_told_in_a_sentence() -> None:
    text = parsed(outage_by_the_minute()).text
    assert "Incomplete data" not in text
    assert "The logs are complete" in text


def test_the_table_lists_every_slice_and_adds_up() -> None:
    """C3: the table by what was asked for."""
    report = many_entities(500)
    page = parsed(report)
    headings = ["Namespace", "Entity", "Messages", "Calls"]
    [first] = [n for n, row in enumerate(page.rows) if row[:4] == headings]
    listed = page.rows[first + 1 :]
    assert [row[1] for row in listed[:-1]] == [line.keys["entity"] for line in report.slices]
    assert listed[-1][0] == "Total"
    assert listed[-1][-1] == f"{report.total.cost:.2f}"


def test_a_table_without_end_is_cut_and_still_adds_up() -> None:
    report = many_entities(ROWS_MAX + 500)
    page = parsed(report)
    [rest] = [row for row in page.rows if row[0] == "500 more"]
    messages = sum(line.messages for line in report.slices[ROWS_MAX:])
    assert rest[2] == f"{messages:,}"
    assert "--output csv" in page.text


def test_hostile_names_are_shown_and_do_nothing() -> None:
    """C3: names come from senders; whatever they hold is text."""
    page = parsed(hostile())
    assert [each for each in page.all("a") if not each["href"].startswith("https://")] == []
    assert "javascript:alert(5)" in page.text
    shown = {cell for row in page.rows for cell in row}
    for name in HOSTILE:
        wanted = "".join(Parsed(f"<p>{escape(name)}</p>").words)
        assert wanted in shown or not name.strip()
    render(hostile()).encode("utf-8")


def test_an_empty_report_says_so_in_place_of_each_plot() -> None:
    page = parsed(empty())
    assert page.all("svg") == []
    for sentence in (
        "No operation was counted.",
        "No message was diverted.",
        "No pair found in these logs.",
        "No entity was used.",
        "No data.",
    ):
        assert sentence in page.text


def test_operations_are_shown_when_nothing_was_charged_for_them() -> None:
    """C3: a month within what the sheet includes still shows what happened."""
    # Given a report of many operations and no cost
    report = EVERY_REPORT["free"]()
    page = parsed(report)

    # Then the plots count operations, and say why
    sends = sum(kind.units for kind in report.kinds if kind.operation == "send")
    assert f"Send {sends:,}" in page.text
    assert "billable operations per day; not charged" in page.text
    assert "Busiest entities" in page.text and "Most expensive" not in page.text
    assert len(page.bars("send")) == len(parsed(outage_in_a_month()).bars("send"))


def test_only_the_address_of_a_source_is_a_link() -> None:
    prices = replace(PRICES, source="https://example.com/prices (West Europe)")
    page = parsed(replace(empty(), prices=prices))
    assert [each["href"] for each in page.all("a")] == ["https://example.com/prices"]
    assert "from https://example.com/prices (West Europe), 2026-11-01" in page.text


def test_a_lonely_bar_is_no_wall() -> None:
    [bar] = [each for each in parsed(one_slice()).bars("send") if each["y"] != "21"]
    assert float(bar["width"].rstrip("%")) <= 10


@st.composite
def reports(draw: st.DrawFn) -> CostReport:
    """Any range in any steps, with any amounts in any of them."""
    step_s = draw(st.sampled_from([60, 600, 3_600, 86_400]))
    begins = BEGINS + timedelta(minutes=draw(st.integers(0, 100_000)))
    steps = draw(st.integers(1, 400))
    first_s = begins.timestamp() // step_s * step_s
    times = st.integers(0, steps - 1).map(
        lambda number: datetime.fromtimestamp(first_s + number * step_s, UTC)
    )
    costs = st.decimals(0, 10**9, places=9)
    words = st.sampled_from([*Operation, "unheard-of"])
    numbers = st.integers(0, 10**12)
    kind = st.builds(KindCost, at=times, operation=words, units=numbers, cost=costs)
    detour = st.builds(
        DetourCost, at=times, pair=st.text(), sent=numbers, received=numbers, cost=costs
    )
    return replace(
        empty(),
        begins=begins,
        ends=begins + timedelta(seconds=step_s * steps),
        step_s=step_s,
        kinds=tuple(draw(st.lists(kind, max_size=20))),
        detours=tuple(draw(st.lists(detour, max_size=20))),
    )


@settings(max_examples=60)
@given(reports())
def test_whatever_happened_bars_stay_inside_their_plot(report: CostReport) -> None:
    """C3: any range, any step, any amount."""
    for bar in parsed(report).all("rect"):
        left, wide = (float(bar[key].rstrip("%")) for key in ("x", "width"))
        top, high = float(bar["y"]), float(bar["height"])
        assert left >= 0 and wide > 0 and left + wide <= 100.01
        assert top >= PLOT_TOP and high >= 0 and top + high <= PLOT_TOP + PLOT_HEIGHT + 0.02

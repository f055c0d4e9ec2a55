"""The cost report in a real browser: what a reader sees, measured in the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.browser.chromium import Browser
from tests.support.reports import EVERY_REPORT
from twinbus.cost.html.page import render

pytestmark = pytest.mark.xdist_group("browser")

PLOTS = {"cost-over-time", "detours-over-time", "idle-share", "pair-overhead", "top-entities"}
PHONE, TABLET, SCREEN = 360, 768, 1280
# Everything that is drawn: is it there, is it inside its figure, does a label lie on another?
LOOK = """
(() => {
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const box = e => e.getBoundingClientRect();
  return [...document.querySelectorAll("figure svg")].map(svg => {
    const figure = box(svg.closest("figure"));
    const drawn = [...svg.querySelectorAll("rect, text, line")]
      .filter(e => e.getClientRects().length);
    const outside = drawn.filter(e => {
      const r = box(e);
      return r.left < figure.left - 0.5 || r.right > figure.right + 0.5
          || r.top < figure.top - 0.5 || r.bottom > figure.bottom + 0.5;
    });
    const labels = [...svg.querySelectorAll("text")].filter(seen);
    const overlapping = [];
    labels.forEach((a, i) => labels.slice(i + 1).forEach(b => {
      const p = box(a), q = box(b);
      if (p.left < q.right && q.left < p.right && p.top < q.bottom - 1 && q.top < p.bottom - 1)
        overlapping.push(a.textContent + " | " + b.textContent);
    }));
    return {
      name: svg.getAttribute("class"),
      bars: [...svg.querySelectorAll("rect:not(.hit, .track)")].filter(seen).length,
      labels: labels.length,
      width: box(svg).width,
      outside: outside.map(e => e.outerHTML),
      overlapping,
    };
  });
})()
"""
# Sums that a narrow card has broken into lines.
BROKEN = """
[...document.querySelectorAll(".sum")].map(sum => {
  const figure = document.createRange();
  figure.selectNodeContents(sum.firstChild);
  return [sum.textContent, figure.getClientRects().length];
}).filter(([, lines]) => lines > 1)
"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every report as a file, by its address."""
    folder = tmp_path_factory.mktemp("pages")
    for name, report in EVERY_REPORT.items():
        (folder / f"{name}.html").write_text(render(report()), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in EVERY_REPORT}


@pytest.mark.parametrize("name", EVERY_REPORT)
def test_every_plot_is_there_and_in_its_place(
    browser: Browser, pages: dict[str, str], name: str
) -> None:
    """C3: no complaint, no request, nothing outside its figure, no label on another."""
    with browser.page(pages[name]) as page:
        for width in (SCREEN, TABLET, PHONE):
            page.resize(width)
            assert page.ask("innerWidth") == width
            assert page.ask(SIDEWAYS) == 0
            assert page.ask(BROKEN) == []
            check_plots(name, page.ask(LOOK))
        assert page.complaints == []
        assert [url for url in page.requests if url not in (pages[name], "data:,")] == []


def check_plots(name: str, plots: list[dict[str, Any]]) -> None:
    for plot in plots:
        assert plot["outside"] == [] and plot["overlapping"] == [], plot["name"]
        assert plot["labels"] >= 2 and plot["width"] >= 200
    if name not in ("empty", "one-slice"):
        assert {plot["name"] for plot in plots} == PLOTS
    drawn = {plot["name"] for plot in plots if plot["bars"]}
    if name == "one-slice":
        assert drawn == {"cost-over-time", "top-entities"}
    else:
        assert drawn == {plot["name"] for plot in plots}


def test_light_and_dark_look_different_and_paper_is_always_light(
    browser: Browser, pages: dict[str, str]
) -> None:
    """C3: readable in light and dark."""
    text = "getComputedStyle(document.querySelector('h1')).color"
    with browser.page(pages["month"]) as page:
        light = page.picture(), page.ask(text)
        page.look(dark=True)
        dark = page.picture(), page.ask(text)
        page.look(dark=True, on_paper=True)
        paper = page.ask(text)
        assert page.ask("document.querySelector('details').getClientRects().length") == 0
    assert light[0] != dark[0] and light[1] != dark[1]
    assert paper == light[1]


def test_figures_behind_a_plot_open_without_pushing_the_page_sideways(
    browser: Browser, pages: dict[str, str]
) -> None:
    """C3: the data behind each plot, on a phone too."""
    for name in ("month", "hostile"):
        with browser.page(pages[name], width=PHONE) as page:
            page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
            tables = page.ask("[...document.querySelectorAll('table')].map(t => t.rows.length)")
            assert len(tables) == len(PLOTS) + 2 and min(tables) > 1
            assert page.ask(SIDEWAYS) == 0


def test_a_page_that_wants_more_than_it_may_is_caught(browser: Browser, tmp_path: Path) -> None:
    """C3: these tests can fail: a request, a style and a script are each seen."""
    bad = tmp_path / "bad.html"
    style = "<p style='color: red'>styled</p>"
    picture = "<img src='http://127.0.0.1:9/x.png'>"
    wide = "<svg width='3000' height='9'></svg><script>console.error('heard')</script>"
    good = render(EVERY_REPORT["one-slice"]())
    bad.write_text(good.replace("</main>", f"{style}{picture}{wide}</main>"), encoding="utf-8")
    with browser.page(bad.as_uri(), width=PHONE) as page:
        complaints = "\n".join(page.complaints)
        assert "img-src" in complaints and "style" in complaints and "script" in complaints
        assert page.ask(SIDEWAYS) > 1000
    bad.write_text(f"{picture}{wide}", encoding="utf-8")
    with browser.page(bad.as_uri()) as page:
        assert "http://127.0.0.1:9/x.png" in page.requests
        assert "heard" in "\n".join(page.complaints)

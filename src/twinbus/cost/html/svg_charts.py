"""Charts as inline SVG: bars, axes with round numbers, and ticks at round times.

    bars_over_time    stacked, above and below a zero line
    horizontal_bars   a name, a figure and a bar in each row

Rule 1: widths are shares of the page and heights are pixels: a chart is as wide as the window, and
        its letters are as large on a phone as on a screen.
Rule 2: colours are classes of the style sheet, for light and for dark.
Rule 3: every bar shows its values when the mouse points at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from twinbus.cost.html.formatting import MONTHS, clock_time, day, short_number, shorten
from twinbus.cost.html.markup import Markup, isolate, join, tag, visible

__all__ = [
    "HorizontalBar",
    "Series",
    "TimeBar",
    "TimePlot",
    "TimeTick",
    "ValueScale",
    "bars_over_time",
    "figure",
    "horizontal_bars",
    "legend",
    "nothing",
    "time_ticks",
    "value_scale",
]

TICKS_MAX: Final = 5
TIME_TICKS_MAX: Final = 8
_ROUND: Final = (Decimal(1), Decimal(2), Decimal("2.5"), Decimal(5), Decimal(10))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_TIME_STEPS_S: Final = (
    *(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 5, 7, 14)),
)
_MONTH_STEPS: Final = (1, 2, 3, 6, 12, 24, 60, 120)


@dataclass(frozen=True, slots=True)
class ValueScale:
    """From the lowest tick to the highest."""

    ticks: tuple[Decimal, ...]

    def height(self, value: Decimal) -> float:
        """The height of a value: 0 at the lowest tick, 1 at the highest."""
        low, high = self.ticks[0], self.ticks[-1]
        return float((value - low) / (high - low))


def value_scale(
    highest: Decimal, lowest: Decimal = Decimal(0), *, whole: bool = False
) -> ValueScale:
    """Round ticks from ``lowest`` (at most 0) to ``highest``; ``whole`` for counts."""
    step = _round_step((highest - lowest) / TICKS_MAX)
    if whole:
        step = Decimal(math.ceil(step))
    first = -math.ceil(-lowest / step)
    last = max(math.ceil(highest / step), first + 1)
    return ValueScale(tuple(step * number for number in range(first, last + 1)))


def _round_step(least: Decimal) -> Decimal:
    if least <= 0:
        return Decimal(1)
    power = Decimal(1).scaleb(least.adjusted())
    return next(power * factor for factor in _ROUND if power * factor >= least)


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A time with a label."""

    at: datetime
    label: str


def time_ticks(begins: datetime, ends: datetime, bar_s: int) -> list[TimeTick]:
    """Round times between the two, eight at most, none of them inside a bar."""
    span_s = (ends - begins).total_seconds()
    for step_s in _TIME_STEPS_S:
        if step_s >= bar_s and step_s % bar_s == 0 and span_s / step_s <= TIME_TICKS_MAX:
            return _even_ticks(begins, ends, step_s)
    months = span_s / (30.4 * _DAY_S)
    step = next((step for step in _MONTH_STEPS if months / step <= TIME_TICKS_MAX), None)
    return _month_ticks(begins, ends, step or math.ceil(months / TIME_TICKS_MAX))


def _even_ticks(begins: datetime, ends: datetime, step_s: int) -> list[TimeTick]:
    if step_s >= _DAY_S:
        at = begins
    else:
        at = datetime.fromtimestamp(math.ceil(begins.timestamp() / step_s) * step_s, UTC)
    found = []
    while at < ends:
        at_midnight = (at.hour, at.minute) == (0, 0)
        found.append(TimeTick(at, day(at) if at_midnight else clock_time(at)))
        at += timedelta(seconds=step_s)
    return found


def _month_ticks(begins: datetime, ends: datetime, step: int) -> list[TimeTick]:
    first = begins.year * 12 + begins.month - 1
    if begins.day > 1:
        first += 1
    last = ends.year * 12 + ends.month - 1
    found = []
    for number in range(first, last + 1):
        year, month = divmod(number, 12)
        at = datetime(year, month + 1, 1, tzinfo=UTC)
        if (number - first) % step == 0 and begins <= at < ends:
            is_new_year = month == 0 or step > 6
            found.append(TimeTick(at, f"{MONTHS[month]} {year}" if is_new_year else MONTHS[month]))
    return found


# Pixels. The style sheet leaves room for the labels at the left.
PLOT_TOP: Final = 8
PLOT_HEIGHT: Final = 208
TIME_LABELS: Final = 28
LABEL_GAP: Final = 8
ROW_HEIGHT: Final = 42
BAR_HEIGHT: Final = 10
NAME_BASELINE: Final = 13
BAR_TOP: Final = 21
# Shares of a bar's slot, of one among many, and of the whole: a single bar is not too wide.
BAR_SHARE: Final = 0.8
SLIM_BAR_SHARE: Final = 0.9
MANY_BARS: Final = 60
BAR_SHARE_MAX: Final = 0.08
NO_NAME: Final = "(no name)"
# The letters that fit into a row on a phone and on a screen; the style sheet has the widths.
LETTERS_NARROW, LETTERS_WIDE = 36, 76
LETTERS_MIN: Final = 8
# Beyond this share of the width a label in the middle of its bar would be cut off.
EDGE: Final = 0.94


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a plot."""

    label: str
    colour: str
    """A class of the style sheet."""


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The values from ``at`` on, by series; those below the line are negative."""

    at: datetime
    values: tuple[Decimal, ...]
    hover: Markup


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Bars over time, with their axes and texts."""

    name: str
    """An id of the page."""
    title: str
    description: str
    series: Sequence[Series]
    begins: datetime
    bar_s: int
    bar_count: int
    bars: Sequence[TimeBar]
    scale: ValueScale

    @property
    def ends(self) -> datetime:
        return self.begins + timedelta(seconds=self.bar_s * self.bar_count)

    def place(self, at: datetime) -> float:
        """The horizontal position of a time, 0 to 1."""
        return (at - self.begins).total_seconds() / (self.bar_s * self.bar_count)


@dataclass(frozen=True, slots=True)
class HorizontalBar:
    """One row; ``parts`` are (colour, share of the whole width)."""

    name: str
    note: str
    """In paler letters after the name."""
    figure: str
    parts: Sequence[tuple[str, float]]
    hover: Markup


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def _pixels(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def figure(title: str, subtitle: str, *content: str) -> Markup:
    """A chart with its title and its data."""
    caption = tag("figcaption", tag("h2", title), tag("p", subtitle))
    return tag("figure", caption, *content)


def nothing(sentence: str) -> Markup:
    """In place of a chart that would be empty."""
    return tag("p", sentence, class_="nothing")


def legend(entries: Sequence[tuple[Series, str]]) -> Markup:
    """What each colour means, and its total."""
    return tag(
        "ul",
        *(
            tag("li", tag("i", class_=f"swatch {series.colour}"), series.label, " ", tag("b", sum_))
            for series, sum_ in entries
        ),
        class_="legend",
    )


def _drawing(name: str, title: str, description: str, height: int, *content: str) -> Markup:
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-description"),
        *content,
        class_=name,
        width="100%",
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-description",
    )


# -- over time ----------------------------------------------------------------------------


def bars_over_time(plot: TimePlot) -> Markup:
    """The values over time, a colour each, on a grid of round numbers."""
    drawn = _drawing(
        plot.name,
        plot.title,
        plot.description,
        PLOT_TOP + PLOT_HEIGHT + TIME_LABELS,
        *(_grid_line(plot.scale, tick) for tick in plot.scale.ticks),
        *(_time_bar(plot, bar) for bar in plot.bars),
        _zero_line(plot.scale),
        *_time_labels(plot),
    )
    return tag("div", drawn, class_="over-time")


def _y(scale: ValueScale, value: Decimal) -> float:
    return PLOT_TOP + PLOT_HEIGHT * (1 - scale.height(value))


def _grid_line(scale: ValueScale, tick: Decimal) -> Markup:
    y = _pixels(_y(scale, tick))
    line = tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid")
    label = tag("text", short_number(abs(tick)), x=-LABEL_GAP, y=y, dy="0.35em", text_anchor="end")
    return join([line, label])


def _zero_line(scale: ValueScale) -> Markup:
    y = _pixels(_y(scale, Decimal(0)))
    return tag("line", x1=0, x2="100%", y1=y, y2=y, class_="zero")


def _time_bar(plot: TimePlot, bar: TimeBar) -> Markup:
    left, slot = plot.place(bar.at), 1 / plot.bar_count
    part = BAR_SHARE if plot.bar_count <= MANY_BARS else SLIM_BAR_SHARE
    width = min(slot * part, BAR_SHARE_MAX)
    x, wide = _percent(left + (slot - width) / 2), _percent(width)
    parts = [
        tag("rect", x=_percent(left), width=_percent(slot), y=PLOT_TOP, height=PLOT_HEIGHT,
            class_="hit")
    ]  # fmt: skip
    above = below = Decimal(0)
    for series, value in zip(plot.series, bar.values, strict=True):
        if not value:
            continue
        if value > 0:
            foot, above = above, above + value
            top, bottom = _y(plot.scale, above), _y(plot.scale, foot)
        else:
            foot, below = below, below + value
            top, bottom = _y(plot.scale, foot), _y(plot.scale, below)
        parts.append(
            tag("rect", x=x, width=wide, y=_pixels(top), height=_pixels(bottom - top),
                class_=series.colour)
        )  # fmt: skip
    return tag("g", tag("title", bar.hover), *parts, class_="step")


def _time_labels(plot: TimePlot) -> list[Markup]:
    ticks = time_ticks(plot.begins, plot.ends, plot.bar_s)
    # Only half of them fit on a phone.
    return [_time_label(plot, tick, not number % 2) for number, tick in enumerate(ticks)]


def _time_label(plot: TimePlot, tick: TimeTick, is_for_phones: bool) -> Markup:
    # Days are named under their bars, times of day at their edges.
    offset = 0.5 / plot.bar_count if plot.bar_s >= 86_400 else 0
    place = plot.place(tick.at) + offset
    anchor = "middle" if place <= EDGE else "end"
    return tag(
        "text", tick.label, x=_percent(place if place <= EDGE else 1),
        y=PLOT_TOP + PLOT_HEIGHT + 20, text_anchor=anchor,
        class_=None if is_for_phones else "wide",
    )  # fmt: skip


# -- horizontal ---------------------------------------------------------------------------


def horizontal_bars(
    name: str, title: str, description: str, rows: Sequence[HorizontalBar]
) -> Markup:
    """One row for each: its name and its figure above a bar."""
    drawn = _drawing(
        name,
        title,
        description,
        ROW_HEIGHT * len(rows),
        *(_horizontal_bar(row, ROW_HEIGHT * number) for number, row in enumerate(rows)),
    )
    return tag("div", drawn, class_="lying")


def _horizontal_bar(row: HorizontalBar, top: int) -> Markup:
    name = visible(row.name).strip() or NO_NAME
    note = shorten(visible(row.note).strip(), LETTERS_NARROW)
    narrow_room = max(LETTERS_MIN, LETTERS_NARROW - len(row.figure))
    wide_room = max(LETTERS_MIN, LETTERS_WIDE - len(row.figure) - len(note))
    narrow = tag("tspan", isolate(shorten(name, narrow_room)))
    wide = [tag("tspan", isolate(shorten(name, wide_room)))]
    if note:
        wide.append(tag("tspan", isolate(note), dx=8, class_="note"))
    baseline = top + NAME_BASELINE
    parts = [
        tag("title", row.hover),
        tag("rect", x=0, y=top, width="100%", height=ROW_HEIGHT, class_="hit"),
        tag("text", *wide, x=0, y=baseline, class_="name wide"),
        tag("text", narrow, x=0, y=baseline, class_="name narrow"),
        tag("text", row.figure, x="100%", y=baseline, text_anchor="end", class_="figure"),
        tag("rect", x=0, y=top + BAR_TOP, width="100%", height=BAR_HEIGHT, rx=2, class_="track"),
    ]
    left = 0.0
    for colour, share in row.parts:
        if share > 0:
            parts.append(
                tag("rect", x=_percent(left), y=top + BAR_TOP, width=_percent(share),
                    height=BAR_HEIGHT, class_=colour)
            )  # fmt: skip
            left += share
    return tag("g", *parts, class_="step")

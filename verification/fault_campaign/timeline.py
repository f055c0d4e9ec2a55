"""One run as a picture: what flowed, and what went wrong when; as SVG and as lines of text.

Rule 1: drawn from the history alone; nothing is measured here.
Rule 2: colours are those that people with weak sight for red and green can tell apart, and every
        bar says what it is when it is pointed at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from verification.fault_campaign.history import Event

COLOURS: Final = {
    "kill": "#d55e00",
    "end": "#e69f00",
    "stop": "#cc79a7",
    "line": "#56b4e9",
    "disk": "#8c6d31",
    "sync": "#8c6d31",
    "clock": "#f0e442",
    "backlog": "#009e73",
    "destination": "#009e73",
    "key": "#009e73",
    "syphon": "#0072b2",
}
MEANINGS: Final = {
    "kill": "kill -9",
    "end": "SIGTERM",
    "stop": "SIGSTOP",
    "line": "line",
    "disk": "disk, sync",
    "clock": "clock",
    "backlog": "queues, keys",
    "syphon": "second syphon, checkpoint",
}
FLOWS: Final = {"acknowledged": "#0072b2", "received": "#009e73"}
SPARKS: Final = " ▁▂▃▄▅▆▇█"
TEXT_COLUMNS: Final = 64
LABEL_WIDTH: Final = 150
PLOT_WIDTH: Final = 1_000
CHART_HEIGHT: Final = 150
LANE_HEIGHT: Final = 18
TOP: Final = 60
BIN_S: Final = 2.0
TICKS: Final = (5, 10, 20, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Bar:
    """One fault."""

    lane: str
    name: str
    begin_s: float
    end_s: float

    @property
    def verb(self) -> str:
        return self.name.split()[0].rstrip(":")


@dataclass(frozen=True, slots=True)
class Timeline:
    """What both pictures show; times are seconds from the first event."""

    length_s: float
    bars: Sequence[Bar]
    flows: Mapping[str, Sequence[float]]
    """Messages a second, by bins of BIN_S."""
    depths: Sequence[tuple[float, int]]
    """Messages in the backlog."""


def timeline_of(events: Sequence[Event]) -> Timeline:
    began_s = events[0].at_s if events else 0.0
    length_s = (events[-1].at_s - began_s if events else 0.0) + BIN_S
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    open_bars: dict[tuple[str, str, str], float] = {}
    bars: list[Bar] = []
    depths: list[tuple[float, int]] = []
    for event in events:
        at_s = event.at_s - began_s
        match event.what, event.type:
            case "send", "ok":
                counts["acknowledged"][int(at_s / BIN_S)] += len(event.values)
            case "receive", "ok":
                counts["received"][int(at_s / BIN_S)] += len(event.values)
            case "depth", _:
                depths.append((at_s, event.count))
            case "fault", "invoke":
                open_bars[event.detail, event.process, event.place] = at_s
            case "fault", "ok":
                key = (event.detail, event.process, event.place)
                bars.append(Bar(_lane(*key), event.detail, open_bars.pop(key, at_s), at_s))
    bins = range(int(length_s / BIN_S) + 1)
    flows = {name: [counts[name][each] / BIN_S for each in bins] for name in FLOWS}
    return Timeline(length_s, bars, flows, depths)


def _lane(name: str, process: str, place: str) -> str:
    if name.startswith("line"):
        return f"{process} to {place}"
    if name.startswith("key"):
        return "keys"
    return f"queues of {process}" if place else process


# -- text -----------------------------------------------------------------------------------------


def as_text(timeline: Timeline) -> str:
    """Flows as sparks, and how many faults of each kind were there at a time."""
    step_s = timeline.length_s / TEXT_COLUMNS
    rows: list[tuple[str, str]] = []
    for name, flow in timeline.flows.items():
        samples = [
            flow[min(int(column * step_s / BIN_S), len(flow) - 1)] for column in range(TEXT_COLUMNS)
        ]
        rows.append((name, _sparks(samples)))
    depths = [
        max((each for each in timeline.depths if each[0] <= (column + 1) * step_s), default=(0, 0))
        for column in range(TEXT_COLUMNS)
    ]
    rows.append(("backlog", _sparks([float(count) for _at_s, count in depths])))
    for verb, meaning in MEANINGS.items():
        verbs = [each for each, colour in COLOURS.items() if colour == COLOURS[verb]]
        row = ""
        for column in range(TEXT_COLUMNS):
            begin_s, end_s = column * step_s, (column + 1) * step_s
            there = sum(
                bar.verb in verbs and bar.begin_s < end_s and bar.end_s >= begin_s
                for bar in timeline.bars
            )
            row += "·" if not there else str(min(there, 9))
        rows.append((meaning, row))
    width = max(len(name) for name, _row in rows)
    lines = [f"{name:>{width}} │{row}│" for name, row in rows]
    return "\n".join(
        [*lines, f"{'':>{width}}  0 s{f'{timeline.length_s:.0f} s':>{TEXT_COLUMNS - 3}}"]
    )


def _sparks(values: Sequence[float]) -> str:
    top = max(values, default=0.0) or 1.0
    return "".join(SPARKS[round(value / top * (len(SPARKS) - 1))] for value in values)


# -- SVG ------------------------------------------------------------------------------------------


def as_svg(timeline: Timeline, title: str) -> str:
    lanes = sorted({bar.lane for bar in timeline.bars}, key=_lane_order)
    height = TOP + CHART_HEIGHT + 40 + len(lanes) * LANE_HEIGHT + 40
    size = f'width="{LABEL_WIDTH + PLOT_WIDTH + 60}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LABEL_WIDTH}" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_legend(),
        *_grid(timeline, height),
        *_chart(timeline),
        *_lanes(timeline, lanes),
        "</svg>",
    ]
    return "\n".join(parts)


def _lane_order(lane: str) -> tuple[int, str]:
    groups = ("primary", "secondary", "queues", "keys")
    rank = next((n for n, group in enumerate(groups) if lane.startswith(group)), len(groups))
    return (rank + (" to " in lane), lane)


def _x(timeline: Timeline, at_s: float) -> float:
    return LABEL_WIDTH + at_s / timeline.length_s * PLOT_WIDTH


def _legend() -> list[str]:
    parts, x = [], LABEL_WIDTH
    for verb, meaning in MEANINGS.items():
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{COLOURS[verb]}"/>')
        parts.append(f'<text x="{x + 16}" y="42">{escape(meaning)}</text>')
        x += 40 + 7 * len(meaning)
    return parts


def _grid(timeline: Timeline, height: int) -> list[str]:
    step_s = next((each for each in TICKS if timeline.length_s / each <= 14), TICKS[-1])
    parts = []
    for at_s in range(0, int(timeline.length_s) + 1, step_s):
        x = _x(timeline, at_s)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 30}" stroke="#e4e4e4"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{at_s} s</text>')
    return parts


def _chart(timeline: Timeline) -> list[str]:
    """Messages a second as lines, the backlog as an area with its own height."""
    bottom = TOP + CHART_HEIGHT
    flow_top = max((max(flow, default=0.0) for flow in timeline.flows.values()), default=0.0) or 1.0
    depth_top = max((count for _at_s, count in timeline.depths), default=0) or 1
    parts = []
    if timeline.depths:
        points = [(timeline.depths[0][0], 0), *timeline.depths, (timeline.depths[-1][0], 0)]
        drawn = " ".join(
            f"{_x(timeline, at_s):.1f},{bottom - count / depth_top * CHART_HEIGHT:.1f}"
            for at_s, count in points
        )
        parts.append(f'<polygon points="{drawn}" fill="#e69f00" fill-opacity="0.25"/>')
    for name, colour in FLOWS.items():
        drawn = " ".join(
            f"{_x(timeline, (number + 0.5) * BIN_S):.1f},"
            f"{bottom - value / flow_top * CHART_HEIGHT:.1f}"
            for number, value in enumerate(timeline.flows[name])
            if number * BIN_S < timeline.length_s
        )
        parts.append(
            f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
    labels = (
        ("acknowledged", FLOWS["acknowledged"], f"acknowledged, up to {flow_top:,.0f} a second"),
        ("received", FLOWS["received"], "received"),
        ("backlog", "#b87f00", f"in the backlog, up to {depth_top:,}"),
    )
    for number, (_name, colour, text) in enumerate(labels):
        for row, piece in enumerate(text.split(", ")):
            y = TOP + 14 + number * 38 + row * 14
            parts.append(
                f'<text x="{LABEL_WIDTH - 8}" y="{y}" text-anchor="end" fill="{colour}">'
                f"{escape(piece)}</text>"
            )
    parts.append(
        f'<line x1="{LABEL_WIDTH}" y1="{bottom}" x2="{LABEL_WIDTH + PLOT_WIDTH}" y2="{bottom}" '
        'stroke="#888888"/>'
    )
    return parts


def _lanes(timeline: Timeline, lanes: Sequence[str]) -> list[str]:
    parts = []
    top = TOP + CHART_HEIGHT + 20
    for number, lane in enumerate(lanes):
        y = top + number * LANE_HEIGHT
        parts.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{escape(lane)}</text>'
        )
        for bar in timeline.bars:
            if bar.lane != lane:
                continue
            x = _x(timeline, bar.begin_s)
            width = max(3.0, _x(timeline, bar.end_s) - x)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{LANE_HEIGHT - 4}" '
                f'fill="{COLOURS.get(bar.verb, "#999999")}" fill-opacity="0.85">'
                f"<title>{escape(bar.name)}, {bar.begin_s:.1f} to {bar.end_s:.1f} s</title></rect>"
            )
    return parts

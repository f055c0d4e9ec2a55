"""The picture of a run: every fault is a bar, and what flowed is there."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from verification.fault_campaign.history import Event
from verification.fault_campaign.timeline import COLOURS, MEANINGS, as_svg, as_text, timeline_of

SVG = "{http://www.w3.org/2000/svg}"


def event(what: Any, type: Any, at_s: float, **facts: Any) -> Event:
    return Event(what=what, type=type, at_s=at_s, process=facts.pop("process", "x"), **facts)


EVENTS = [
    event("send", "ok", 100.0, values=("a", "b")),
    event("fault", "invoke", 110.0, process="primary", detail="kill primary"),
    event("fault", "ok", 120.0, process="primary", detail="kill primary"),
    event("fault", "invoke", 125.0, process="sender-1", place="secondary", detail="line: cut"),
    event("fault", "ok", 126.0, process="sender-1", place="secondary", detail="line: cut"),
    event("depth", "ok", 130.0, count=7),
    event("receive", "ok", 160.0, values=("a",)),
]


def test_a_fault_is_a_bar_in_the_lane_of_its_victim() -> None:
    drawn = timeline_of(EVENTS)
    assert [(bar.lane, bar.begin_s, bar.end_s) for bar in drawn.bars] == [
        ("primary", 10.0, 20.0),
        ("sender-1 to secondary", 25.0, 26.0),
    ]
    assert drawn.flows["acknowledged"][0] == 1.0  # Two messages in two seconds.
    assert drawn.depths == [(30.0, 7)]


def test_the_picture_is_one_svg_with_a_title_for_every_bar() -> None:
    root = ElementTree.fromstring(as_svg(timeline_of(EVENTS), "a < b"))
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert titles == ["kill primary, 10.0 to 20.0 s", "line: cut, 25.0 to 26.0 s"]
    assert "a < b" in [each.text for each in root.iter(f"{SVG}text")]


def test_the_text_shows_when_something_was_wrong() -> None:
    rows = {line.split("│")[0].strip(): line for line in as_text(timeline_of(EVENTS)).splitlines()}
    row = rows["kill -9"].split("│")[1]
    assert row[0] == "·"
    assert row[len(row) // 4] == "1"
    assert set(MEANINGS) <= set(COLOURS)

"""Lines of operations logs: read by Arrow or by hand, and validate_lines; no Spark in here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cost_logs import RUN, line, without
from twinbus.spark.cost_report import line_parser
from twinbus.spark.cost_report.line_parser import validate_lines

DAMAGED: list[tuple[dict[str, Any] | str, str]] = [
    ('{"version":1,"run":"00', "not a line of JSON with a version"),
    ("\x00\x00\x00", "not a line of JSON with a version"),
    ("[1, 2]", "not a line of JSON with a version"),
    ("{}{}", "not a line of JSON with a version"),
    ('{"a":{}', "not a line of JSON with a version"),
    ("}", "not a line of JSON with a version"),
    ('{"version":1,"entity":"caf\udce9"}', "not a line of JSON with a version"),
    ("{}", "a field is missing"),
    (line(1, units="three"), "a field of another type"),
    (line(2, units=1.5), "a field of another type"),
    (line(2, units=True), "a field of another type"),
    (line(2, units=2**63), "a field of another type"),
    (line(2, entity=7), "a field of another type"),
    (line(2, entity="\ud800"), "a field of another type"),
    (line(3, version=2), "unknown version"),
    (without("version", 4), "a field is missing"),
    (without("run", 5), "a field is missing"),
    (without("entity", 6), "a field is missing"),
    (without("bytes_out", 7), "a field is missing"),
    (line(7, units=None), "a field is missing"),
    (line(8, operation="teleport"), "unknown operation"),
    (line(9, source="rumour"), "unknown source"),
    (line(10, units=-1), "a negative number"),
    (line(11, messages=10**13), "an absurd number"),
    (line(12) | {"from": "yesterday"}, "a time that is none"),
    (line(12) | {"from": "2026-13-01T10:00:00.000Z"}, "a time that is none"),
    (line(13) | {"from": "2026-11-16T10:00:00"}, "a time that is none"),
    (line(13) | {"from": "2026-11-16T10:00:00.000+01:00"}, "a time that is none"),
    (line(14) | {"to": "2026-11-16T09:59:59.000Z"}, "it ends before it begins"),
    (line(15, "1970-01-01T00:00:00"), "an absurd time"),
    (line(16, "2999-01-01T00:00:00"), "an absurd time"),
    (line(16, "9999-12-31T23:59:50"), "an absurd time"),
    (line(17) | {"to": "2026-11-18T10:00:00.000Z"}, "an absurd time"),
]  # fmt: skip


def written(each: dict[str, Any] | str) -> bytes:
    """In UTF-8, except that ``\\udce9`` is the byte E9, which is none."""
    text = each if isinstance(each, str) else json.dumps(each)
    return text.encode(errors="surrogateescape") + b"\n"


def shown(data: bytes) -> str:
    return data.rstrip(b"\n").decode(errors="replace")


@pytest.mark.parametrize("neighbours", [0, 1, 300])
def test_a_line_is_usable_or_damaged_for_one_reason(neighbours: int) -> None:
    """C3: damaged records are kept with their text and a reason, wherever they stand; and nothing
    happens to their neighbours."""
    good = [line(1_000 + n) for n in range(neighbours)]
    lines = [written(each) for damaged, _ in DAMAGED for each in (*good, damaged)]

    found = validate_lines(b"\n".join([b"", *lines]))

    expected = [(shown(written(each)), reason) for each, reason in DAMAGED]
    assert sorted(found.damaged) == sorted(expected)
    assert len(found.valid) == neighbours * len(DAMAGED)
    assert {row["units"] for row in found.valid.to_pylist()} <= {3}


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_fields_are_the_same_whoever_reads_them(
    is_by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: what a later version adds is no harm, a line without a source is a broker's, the last
    line needs no end, and portions are cut between lines."""
    if is_by_hand:
        monkeypatch.setattr(line_parser, "_by_arrow", lambda _data: None)
    monkeypatch.setattr(line_parser, "_PORTION_BYTES", 1_000)
    lines = [
        line(20, "2026-11-16T10:01:00", more={"from": ["a", {"later": "version"}]}),
        without("source", 21),
        line(22, entity="caf\u00e9 \"1\"\n", operation="opened", unwritten_units_max=500),
        line(10**12, source="client") | {"from": "2026-11-16T10:00:00Z"},
        *(line(number) for number in range(30, 50)),
    ]  # fmt: skip
    text = "\n".join(json.dumps(each, ensure_ascii=False) for each in lines)

    found = validate_lines(text.encode())

    assert found.damaged == []
    assert len(found.valid) == len(lines)
    rows = {row["number"]: row for row in found.valid.to_pylist()}
    assert rows[20] == {
        "minute": 29_913_721, "namespace": "home", "source": "broker", "run": RUN, "number": 20,
        "entity": "orders", "operation": "send", "calls": 1, "messages": 3, "units": 3,
        "bytes_in": 300, "bytes_out": 0, "to_ms": 1_794_823_269_000, "unwritten_units_max": None,
    }  # fmt: skip
    assert rows[21]["source"] == "broker"
    assert (rows[22]["entity"], rows[22]["unwritten_units_max"]) == ('caf\u00e9 "1"\n', 500)
    assert rows[10**12]["minute"] == 29_913_720
    assert validate_lines(b"").valid.num_rows == validate_lines(b"\n\n").valid.num_rows == 0


def test_one_bad_line_costs_its_neighbours_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: only few lines around a damaged one are read by hand."""
    asked = []
    by_hand = line_parser._fields
    monkeypatch.setattr(line_parser, "_fields", lambda each: asked.append(each) or by_hand(each))
    lines = [written(line(number)) for number in range(5_000)]
    lines[1_234] = written(line(1_234, units="three"))
    lines.append(b'{"version":1\n')

    found = validate_lines(b"".join(lines))

    assert len(found.damaged) == 2
    assert len(found.valid) == 4_999
    assert len(asked) < 150


def test_as_many_objects_as_lines_are_not_enough() -> None:
    """C3: an object that goes on in the next line does not make up for two in one line."""
    good = [written(line(number)) for number in range(100)]
    odd = [b'{"a":{}\n', b"}\n", b"{}{}\n"]

    found = validate_lines(b"".join([*good, *odd, *good]))

    assert sorted(found.damaged) == sorted((shown(each), line_parser.NOT_JSON) for each in odd)
    assert len(found.valid) == 200

"""What crosses between a task and whoever gives the orders."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.encoding.transit import ReceivedMessage
from twinbus.mover.planning.work_order import (
    CircuitSnapshot,
    WorkOrder,
    WorkReport,
    report_from_json,
    report_to_json,
    split_report,
)

names = st.text(max_size=8)
seconds = st.floats(0, 1e9)
notes = st.builds(
    CircuitSnapshot,
    names,
    st.integers(0, 99),
    seconds,
    st.none() | seconds,
    st.booleans(),
    st.booleans(),
)
numbers = st.lists(st.integers(0, 40), unique=True).map(tuple)
reports = st.builds(
    WorkReport,
    deferred=st.dictionaries(names, st.dictionaries(names, numbers, max_size=3), max_size=3),
    open_circuits=st.lists(notes, max_size=3).map(tuple),
    recovered=st.lists(names, max_size=3).map(tuple),
    emptied=st.lists(names, max_size=3).map(tuple),
    scanned=st.lists(names, max_size=3).map(tuple),
    faults=st.dictionaries(names, names, max_size=3),
    to_scan=st.dictionaries(names, st.integers(0, 99), max_size=3),
    is_primary_unreachable=st.booleans(),
    rate_delay_s=seconds,
)


@given(reports)
def test_a_report_comes_back_from_json_as_it_was(report: WorkReport) -> None:
    assert report_from_json(json.loads(json.dumps(report_to_json(report)))) == report


def test_many_messages_in_a_row_are_a_few_bytes() -> None:
    report = WorkReport(deferred={"backlog": {"orders": tuple(range(7, 100_007))}})
    as_json = report_to_json(report)
    assert as_json["aside"] == {"backlog": {"orders": [[7, 100_000]]}}
    assert report_from_json(as_json) == report


@given(reports)
def test_a_report_that_fits_is_one_part(report: WorkReport) -> None:
    (part,) = split_report(report)
    assert list(part.deferred) == [
        queue for queue in report.deferred if any(report.deferred[queue].values())
    ]
    assert replace(part, deferred=report.deferred) == report


@pytest.mark.slow
@pytest.mark.parametrize("path", ["orders", "\u00e4" * 250])
def test_a_report_that_is_too_large_goes_in_parts(path: str) -> None:
    """Every second number of very many: no runs. And many destinations with long names."""
    numbers = tuple(range(0, 1_000_000, 2))
    deferred = {
        "a": {"orders": numbers, "news": numbers[:7]},
        "b": {f"{path}{number}": (number,) for number in range(9_000)},
    }
    *ahead, last = split_report(WorkReport(deferred=deferred, emptied=("a",)))
    assert last.emptied == ("a",) and ahead
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for part in (*ahead, last):
        assert len(json.dumps(report_to_json(part))) < 16 << 20
        for queue, by_path in part.deferred.items():
            for each, some in by_path.items():
                known = found.setdefault(queue, {})
                known[each] = known.get(each, ()) + some
    assert found == deferred


@pytest.mark.parametrize(
    "wrong",
    [
        {"aside": []},
        {"aside": {"q": {"orders": [7]}}},
        {"aside": {"q": {"orders": [[7]]}}},
        {"aside": {"q": {"orders": [[7, -1]]}}},
        {"aside": {"q": {"orders": [[7, 1.0]]}}},
        {"aside": {"q": {"orders": [[7, True]]}}},
        {"aside": {"q": {"orders": [["7", 1]]}}},
        {"aside": {"q": {"orders": [[1 << 63, 1]]}}},
        {"aside": {"q": {"orders": [[1, 600_000]], "news": [[1, 600_000]]}}},
        {"aside": {1: {}}},
        {"board": [["orders", 1, 2.0, None, False]]},
        {"board": [["orders", 1, float("nan"), None, False, False]]},
        {"board": [["orders", 1, 10**400, None, False, False]]},
        {"board": [["orders", 1, -1.0, None, False, False]]},
        {"board": [["orders", 1, 1.0, None, 0, False]]},
        {"board": ["orders"]},
        {"opened": "orders"},
        {"emptied": [1]},
        {"faults": {"q": None}},
        {"is_primary_away": 1},
        {"to_discover": {"q": -1}},
        {"debt_s": -1.0},
        {"more": 1},
    ],
)
def test_what_is_no_report_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        report_from_json({**report_to_json(WorkReport()), **wrong})


@pytest.mark.parametrize("wrong", [None, [], "report", {}])
def test_what_is_nothing_like_a_report_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError):
        report_from_json(wrong)


def test_an_order_crosses_processes() -> None:
    message = ReceivedMessage(path="backlog", encoded=b"m", sequence_number=1, lock_token=bytes(16))
    order = WorkOrder(
        queues=("backlog",), prefetched=(message,), retry_deferred={"backlog": {"orders": (1, 2)}}
    )
    assert pickle.loads(pickle.dumps(order)) == order

"""Figures, their file, and the arithmetic behind them."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from verification.benchmarks.__main__ import parse
from verification.benchmarks.report import Figure, write_latest
from verification.benchmarks.scenarios import percentile
from verification.benchmarks.sending import Sent
from verification.benchmarks.workers import Ran


def figure(name: str, value: float) -> Figure:
    return Figure(
        name=name, value=value, unit="msg/s", peer="peer", peer_value=20_000.0, wanted="more"
    )


def test_latest_holds_exactly_the_six_agreed_keys(tmp_path: Path) -> None:
    write_latest([figure("durable_batch_100", 50_000.4)], tmp_path / "latest.json")
    assert json.loads((tmp_path / "latest.json").read_text()) == [
        {
            "name": "durable_batch_100",
            "value": 50_000,
            "unit": "msg/s",
            "peer": "peer",
            "peer_value": 20_000,
            "ratio": 2.5,
        }
    ]


def test_a_single_benchmark_replaces_its_own_figure_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    write_latest([figure("a", 1000), figure("b", 2000)], path)
    write_latest([figure("a", 3000)], path)
    assert [(row["name"], row["value"]) for row in json.loads(path.read_text())] == [
        ("a", 3000),
        ("b", 2000),
    ]


def test_a_figure_without_a_measured_peer_has_no_ratio() -> None:
    lonely = Figure(name="n", value=4.0, unit="s", peer="target", peer_value=None, wanted="")
    assert lonely.ratio is None


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50), (99, 99), (99.9, 100), (100, 100), (0, 1)]
)
def test_a_percentile_is_a_value_that_occurred(percent: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == expected


def test_two_publishers_are_one_rate_from_the_first_start_to_the_last_end() -> None:
    sents = [Sent(3000, 10.0, 12.0, array("d")), Sent(1000, 11.0, 14.0, array("d"))]
    ran = Ran(sents, broker_cpu_s=0.1)
    assert (ran.messages, ran.rate_per_s) == (4000, 1000)
    assert ran.broker_cpu_us_per_message == pytest.approx(25)


def test_only_is_read_from_the_environment_and_must_be_a_benchmark() -> None:
    assert parse([], {"ONLY": "restart_1m"}).only == "restart_1m"
    assert parse([], {}).only is None
    with pytest.raises(SystemExit):
        parse([], {"ONLY": "restart_2m"})

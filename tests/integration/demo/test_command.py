"""``twinbus demo``: its options, and when it is satisfied."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.demo.scenario import DESTINATIONS, DemoScenario, Result
from twinbus.errors import ConfigurationError

GOOD = Result(
    sent=100,
    delivered=100,
    lost=(),
    duplicates=3,
    unexpected=(),
    failed_sends=0,
    failover_seconds=0.05,
    drained=40,
    drain_messages_per_second=20.0,
    operations=500,
    cost=0.0001,
    currency="USD",
    is_reconciled=True,
    verdict="The books close.",
)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command wanted to be played; the first entry is what comes of it."""
    wanted: list[Any] = [GOOD]

    def play(plan: DemoScenario, keep: Path | None) -> Result:
        wanted.append((plan, keep))
        result: Result = wanted[0]
        return result

    monkeypatch.setattr("twinbus.demo.outage.run_demo", play)
    return wanted


def test_the_options_make_the_plan(played: list[Any]) -> None:
    told = ["--seed", "7", "--outage", "1m", "--rate", "50", "--keep", "there"]
    assert CliRunner().invoke(app, ["demo", *told]).exit_code == 0
    assert played[1] == (DemoScenario(seed=7, outage_s=60.0, rate_per_s=50.0), Path("there"))


def test_the_last_line_is_one_json_object(played: list[Any]) -> None:
    answer = CliRunner().invoke(app, ["demo", "--json"])
    assert json.loads(answer.output.splitlines()[-1]) == {
        "sent": 100,
        "delivered": 100,
        "lost": 0,
        "duplicates": 3,
        "unexpected": 0,
        "failed_sends": 0,
        "failover_seconds": 0.05,
        "drained": 40,
        "drain_messages_per_second": 20.0,
        "operations": 500,
        "cost": 0.0001,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": ("orders-000001",), "delivered": 99},
        {"unexpected": ("orders-999999",)},
        {"failed_sends": 1},
        {"is_reconciled": False},
        {"sent": 0, "delivered": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_it_ends_with_1_when_something_is_lost_unexpected_or_failed(
    played: list[Any], wrong: dict[str, Any]
) -> None:
    played[0] = replace(GOOD, **wrong)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 1


@pytest.mark.parametrize(
    "options",
    [
        {"outage_s": 0.0},
        {"outage_s": 1e9},
        {"outage_s": float("nan")},
        {"rate_per_s": 0.0},
        {"rate_per_s": -1.0},
        {"rate_per_s": float("inf")},
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="Use 1 to"):
        DemoScenario(**options)  # type: ignore[arg-type]


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    def first_bodies(seed: int) -> list[bytes]:
        return [next(DemoScenario(seed=seed).bodies(entity)) for entity in DESTINATIONS]

    assert first_bodies(1) == first_bodies(1) != first_bodies(2)
    assert (
        DemoScenario(seed=1).kill_after_s
        == DemoScenario(seed=1).kill_after_s
        != DemoScenario(seed=2).kill_after_s
    )


def test_a_directory_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    answer = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert isinstance(answer.exception, ConfigurationError)
    assert str(tmp_path) in answer.exception.sentence and "directory" in answer.exception.hint
    assert [each.name for each in tmp_path.iterdir()] == ["precious"]

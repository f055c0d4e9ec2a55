"""The handle on a query, without Spark: what stop() leaves behind, and old receipts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from twinbus.errors import ConfigurationError
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.syphon import query
from twinbus.spark.syphon.query import Syphon, _remove_old, start_syphon
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Control, StateDir, Status


class Query:
    """A query that tells what was wanted of it when it was stopped."""

    def __init__(self, state: StateDir, *, is_active: bool = True) -> None:
        self.isActive = is_active
        self.asked: list[bool] = []
        self._state = state

    def stop(self) -> None:
        self.asked.append(self._state.control().is_stopping)
        self.isActive = False


def stopped(state: StateDir, **query: Any) -> Query:
    made: Any = Query(state, **query)
    state.set_status(Status(doing="stopped"))
    Syphon(made, state).stop()
    return made  # type: ignore[no-any-return]


def test_what_stop_asked_for_is_not_left_for_the_next_query(tmp_path: Path) -> None:
    """One that somebody starts by hand reads the same file."""
    state = StateDir(tmp_path)
    state.set_control(Control(rate_per_s=5.0))
    assert stopped(state).asked == [True]
    assert state.control() == Control(rate_per_s=5.0)


def test_stopping_what_has_ended_does_not_touch_the_directory(tmp_path: Path) -> None:
    """It may be somebody else's by now."""
    state = StateDir(tmp_path)
    stopped(state, is_active=False)
    assert not (tmp_path / "control.json").exists()


def test_receipts_of_old_runs_are_removed(tmp_path: Path) -> None:
    for name, days in {"run=old": 3.0, "run=new": 1.0, "notes": 9.0}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.parquet").touch()
        then_s = time.time() - days * 86_400
        os.utime(tmp_path / name, (then_s, then_s))
    _remove_old(tmp_path, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes", "run=new"]


def test_a_start_says_which_run_it_is_and_leaves_checkpoints_of_today_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y2: a query at a Spark Connect server may outlive its program, and write there still."""
    for name, days in {"old": 2.0, "young": 0.5}.items():
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        then_s = time.time() - days * 86_400
        os.utime(tmp_path / "checkpoints" / name, (then_s, then_s))
    runs: list[str | None] = []

    def receipts_of(_spark: object, settings: SyphonSettings) -> None:
        runs.append(settings.run)
        raise RuntimeError("no Spark here")

    monkeypatch.setattr(query, "receipts_of", receipts_of)
    reference, nothing = NamespaceRef.of_env("A"), cast(Any, None)
    settings = SyphonSettings(
        primary=reference, secondary=reference, primary_name="east", queues=("a",)
    )
    with pytest.raises(RuntimeError, match="no Spark here"):
        start_syphon(nothing, settings, tmp_path)
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == ["young"]
    assert runs == [StateDir(tmp_path).control().run] and runs[0]


def test_receipts_in_a_place_that_others_may_share_are_not_removed(tmp_path: Path) -> None:
    """Y5: a syphon that has had nothing to do for days is no old run."""
    nothing: Any = None
    for place in ("s3://bucket/receipts", str(tmp_path / "shared")):
        with pytest.raises(ConfigurationError, match="receipts_days"):
            start_syphon(nothing, nothing, tmp_path, receipts=place, receipts_days=2)

"""A syphon's settings as options, and its directory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from twinbus.encoding.envelope import TtlPolicy
from twinbus.errors import ConfigurationError
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.errors import SparkError
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Control, StateDir, Status

SETTINGS = SyphonSettings(
    primary=NamespaceRef.of_env("PRIMARY"),
    secondary=NamespaceRef.of_file("/run/secrets/secondary"),
    primary_name="east",
    queues=("east/x-servicebus-transfer/0", "east/x-servicebus-transfer/1"),
    allowed=("orders*", "bills"),
    ttl_policy=TtlPolicy.ELAPSED,
    owner="0123456789ab contoso.example",
    accepted_owners=("old.example", "10.0.0.4:5700"),
    rate_per_s=12.5,
    chunk_count=200,
    tasks=4,
    state_dir="/var/lib/syphon",
    run="20260101T000000.000000Z",
    is_dry_run=True,
    metering="/var/log/books",
    keep_days=30,
    driver="servicebus",
)


def test_settings_survive_spark_which_forgets_the_case_of_names() -> None:
    options = SETTINGS.to_options()
    lowered = {name.lower(): value for name, value in options.items()}
    assert SyphonSettings.from_options(lowered) == SETTINGS


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("chunks", "5", "'chunks'.*Did you mean chunk"),
        ("chunk", "many", "chunk: 'many'"),
        ("chunk", "0", "chunk_count: 0"),
        ("chunk", "1001", "chunk_count: 1001"),
        ("goneGrace", "nan", "gone_grace_s: nan"),
        ("allow", " , ", "allowed"),
        ("rate", "-1", "rate_per_s: -1.0"),
        ("batchSeconds", "inf", "batch_s: inf"),
        ("ttlPolicy", "forever", "ttlPolicy: 'forever'"),
        ("keepDays", "0", "keep_days"),
        ("keepDays", "week", "keepDays: 'week'"),
        ("driver", "uamqp", "'uamqp'.*'amqp' or 'servicebus'"),
        ("dryRun", "perhaps", "dryRun: 'perhaps'"),
        ("queues", " , ", "backlog queue"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SyphonSettings.from_options({**SETTINGS.to_options(), name: value})


def test_what_is_missing_is_named() -> None:
    options = SETTINGS.to_options()
    del options["queues"]
    with pytest.raises(ConfigurationError, match="queues is missing"):
        SyphonSettings.from_options(options)


def test_control_is_seen_when_it_changes(tmp_path: Path) -> None:
    reading, writing = StateDir(tmp_path), StateDir(tmp_path)
    assert reading.control() == Control()
    wanted = Control(is_paused=True, rate_per_s=5.0, run="first")
    writing.set_control(wanted)
    assert reading.control() == wanted
    (tmp_path / "control.json").unlink()
    assert reading.control() == Control()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"is_paused": "yes"}',
        '{"rate_per_s": 0}',
        '{"rate_per_s": true}',
        '{"stop": 1}',
        '{"run": 1}',
    ],
)
def test_a_control_file_that_makes_no_sense_changes_nothing(tmp_path: Path, text: str) -> None:
    state = StateDir(tmp_path)
    state.set_control(Control(is_paused=True))
    assert state.control().is_paused
    (tmp_path / "control.json").write_text(text)
    assert state.control().is_paused and state.trouble


def test_status_is_told_as_it_was(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.status() is None
    told = Status(doing="moving", counts={"moved": 3}, deferred_now={"orders": 2}, epoch=7)
    state.set_status(told)
    assert StateDir(tmp_path).status() == told
    assert json.loads((tmp_path / "status.json").read_text())["doing"] == "moving"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["status.json"]


def test_the_status_of_a_syphon_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"doing": "moving", "set_aside": {"orders": 2}}')
    assert StateDir(tmp_path).status() == Status(doing="moving", deferred_now={"orders": 2})


def test_a_state_directory_has_one_syphon_at_a_time(tmp_path: Path) -> None:
    """Y5: two may run, each with a directory of its own."""
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    first.take()
    with pytest.raises(SparkError, match=re.escape(str(tmp_path))):
        second.take()
    first.release()
    first.release()
    second.take()
    second.release()

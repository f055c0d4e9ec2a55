"""Spark Connect without a server: what is said before one is asked. With one:
tests/optional/connect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.mover.fake_namespace import FakeNamespace
from twinbus.cli.syphon.spark_session import _session
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.pairing.syphon_hosting import SyphonHosting, SyphonRequest
from twinbus.spark.errors import SparkError
from twinbus.spark.syphon.hosted import maker
from twinbus.spark.syphon.settings import is_local
from twinbus.spark.syphon.state_directory import StateDir


class Conf:
    def get(self, name: str, default: Any = None) -> Any:
        return {"spark.master": "local[2]"}.get(name, default)


class Session:
    conf = Conf()


Remote = type("SparkSession", (Session,), {"__module__": "pyspark.sql.connect.session"})


def test_a_server_is_never_taken_for_this_machine() -> None:
    """Y2: its master may be local, but on its own machine, with its own files."""
    assert is_local(Session())  # type: ignore[arg-type]
    assert not is_local(Remote())


def test_a_hosted_syphon_needs_a_directory_that_its_server_shares() -> None:
    """P1: said when the pair is made."""
    hosting = SyphonHosting(spark=Remote(), primary="env:PRIMARY", secondary="env:SECONDARY")
    job = SyphonRequest(
        primary=FakeNamespace(),
        secondary=FakeNamespace(),
        queues=("east/x-servicebus-transfer/0",),
        rules=DeliveryRules(primary_name="east"),
        hosting=hosting,
        on_end=print,
        on_stall=print,
        on_dead_letters=print,
        on_refused=lambda *_missing: None,
    )
    with pytest.raises(ConfigurationError, match="state_dir"):
        maker(job)
    maker(replace(job, hosting=replace(hosting, state_dir="/shared/syphon")))


def test_a_server_finds_the_state_directory_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert StateDir("state").path == tmp_path / "state"


@pytest.mark.parametrize(
    ("address", "kind", "named"),
    [
        ("127.0.0.1:1", SparkError, "127.0.0.1:1"),
        ("127.0.0.1:many", ConfigurationError, "--master"),
    ],
)
def test_an_address_where_nobody_is_is_told_at_once(
    address: str, kind: type[TwinbusError], named: str
) -> None:
    """Y2: Spark's client itself would try again for minutes; what is behind the port is secret."""
    with pytest.raises(kind, match=named) as caught:
        _session(f"sc://{address}/;token=canary")
    assert "canary" not in str(caught.value)

"""``twinbus syphon --spool DIR``: what an application has left on its disk comes home."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.cli.syphon import summary as summary_module
from twinbus.drivers import embedded
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.testing.namespaces import NamespaceFixture

QUEUE = "primary/x-servicebus-transfer/0"


def left_behind(spool: EmbeddedNamespace, typed_with: Callable[[str], Any], count: int) -> None:
    typed = typed_with(spool.connection_string)
    typed("queue", "create", QUEUE)
    typed("send", QUEUE, "x", "--count", str(count), "--property", "x-ms-path=orders")


def syphoned(bus: NamespaceFixture, *arguments: str) -> dict[str, Any]:
    """The summary of a run."""
    result = CliRunner().invoke(
        app,
        [
            "syphon",
            "--local",
            "--once",
            "--primary-name",
            "primary",
            *arguments,
            "--output",
            "json",
        ],
        env={"SERVICEBUS_CONNECTION_STRING": bus.connection_string},
    )
    assert result.exit_code == 0, (result.output, result.exception)
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def test_a_spool_comes_home_although_its_application_is_gone(
    servicebus: NamespaceFixture, typed_with: Callable[[str], Any], tmp_path: Path
) -> None:
    """M8 and Y1: the directory is all that is needed."""
    orders = servicebus.queue("orders")
    with EmbeddedNamespace("spool", data_directory=tmp_path / "spool") as spool:
        left_behind(spool, typed_with, 20)
    assert syphoned(servicebus, "--spool", str(tmp_path / "spool"))["moved"] == 20
    assert orders.active_message_count == 20
    # And it lets go of the directory.
    with EmbeddedNamespace("spool", data_directory=tmp_path / "spool"):
        pass


def test_a_spool_whose_application_runs_is_emptied_where_it_is(
    servicebus: NamespaceFixture, typed_with: Callable[[str], Any], tmp_path: Path
) -> None:
    """Y5: one process at a time has the directory, and the syphon is a client of it."""
    orders = servicebus.queue("orders")
    with EmbeddedNamespace("spool", data_directory=tmp_path) as spool:
        left_behind(spool, typed_with, 3)
        assert syphoned(servicebus, "--spool", str(tmp_path))["moved"] == 3
    assert orders.active_message_count == 3


def test_what_is_no_spool_is_one_sentence(typed: Any, tmp_path: Path) -> None:
    syphon = ("syphon", "--local", "--once", "--spool", str(tmp_path))
    assert "data directory of an EmbeddedNamespace" in typed.refused(*syphon)
    assert list(tmp_path.iterdir()) == [], "and nothing is made there"
    for name in ("one", "two"):
        with EmbeddedNamespace(name, data_directory=tmp_path):
            pass
    assert "2 namespaces: one, two" in typed.refused(*syphon)
    cluster = ("syphon", "--spool", str(tmp_path), "--master", "spark://x")
    assert "--master" in typed.refused(*cluster)


def test_both_know_the_same_file() -> None:
    assert summary_module.CONNECTION_STRING_FILE == embedded.CONNECTION_STRING_FILE

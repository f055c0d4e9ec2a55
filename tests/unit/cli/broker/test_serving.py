"""What a served process does for itself."""

from __future__ import annotations

import asyncio
import gc
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.cpu_time import cpu_s
from twinbus.broker.broker import NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.cli import app
from twinbus.cli.broker import run
from twinbus.cli.broker.serve import CONNECTIONS_MAX, STRANGERS_MAX
from twinbus.common.clock import SystemClock
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.errors import ConfigurationError


def test_the_usual_numbers_of_connections_are_those_of_the_options() -> None:
    """The command has copies, because importing the options would take long."""
    options = BrokerOptions()
    assert options.connections_max == CONNECTIONS_MAX
    assert options.strangers_max == STRANGERS_MAX


def test_idle_links_end_when_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """M10: as Azure ends them; never unless it is said."""
    served: list[BrokerOptions] = []
    monkeypatch.setattr(run, "run_broker", lambda options, *_rest: served.append(options))
    for arguments in ([], ["--idle-detach", "10m"]):
        done = CliRunner().invoke(app, ["serve", "--memory", *arguments])
        assert done.exit_code == 0, done.output
    assert [options.idle_detach_s for options in served] == [None, 600]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("0s", "after 0 s"),
        ("soon", "'soon' is not a time"),
    ],
)
def test_a_wrong_time_for_idle_links_is_one_sentence(given: str, sentence: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--memory", "--idle-detach", given])
    assert isinstance(done.exception, ConfigurationError)
    assert sentence in done.exception.sentence and done.exception.hint


async def test_the_collector_does_not_look_through_what_is_there_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M13: a full collection takes no part of the loop's time."""
    begun = asyncio.Event()
    freeze = gc.freeze

    def frozen() -> None:
        freeze()
        begun.set()

    monkeypatch.setattr(run.gc, "freeze", frozen)
    specs = [NamespaceSpec("demo", port=0)]
    options = BrokerOptions(admin_port=None)
    running = asyncio.create_task(run._serve(options, specs, "json", SystemClock()))
    try:
        await asyncio.wait_for(begun.wait(), 30)
        assert cpu_s(gc.collect) < 0.005
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(running, 30)
    finally:
        gc.unfreeze()
        running.cancel()


def test_namespaces_of_the_directory_that_are_not_served_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """M9: a name that is mistyped makes an empty namespace, and must not look like a loss."""
    with EmbeddedNamespace("shop", data_directory=tmp_path):
        pass
    options = BrokerOptions(data_directory=tmp_path)
    run._log_unserved(options, [NamespaceSpec("other"), NamespaceSpec("Shop")])
    assert caplog.text == ""
    run._log_unserved(options, [NamespaceSpec("other")])
    (record,) = caplog.records
    told = record.getMessage()
    assert "namespace 'shop', which is not served" in told
    assert "'other' is new and empty" in told and "--namespace shop" in told
    assert record.levelname == "WARNING"

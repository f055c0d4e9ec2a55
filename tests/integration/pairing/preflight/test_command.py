"""``twinbus preflight`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.access import connection_string_with
from twinbus.broker.access.rules import Claim
from twinbus.cli import app
from twinbus.cli.pair.commands import EXIT_NOT_READY
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import TwinbusError
from twinbus.testing.namespaces import NamespacePairFixture


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SERVICEBUS_"):
            monkeypatch.delenv(name)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["preflight", *arguments], env={**environment, "COLUMNS": "200"})


def environment_of(pair: NamespacePairFixture, **changes: str) -> dict[str, str]:
    return {
        "SERVICEBUS_CONNECTION_STRING": pair.primary.connection_string,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": pair.secondary.connection_string,
        **changes,
    }


def test_a_pair_that_is_ready_ends_with_0(servicebus_pair: NamespacePairFixture) -> None:
    servicebus_pair.primary.queue("orders")
    result = run("--output", "json", **environment_of(servicebus_pair))
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.output)
    assert report["ready"] is True
    assert {finding["check"] for finding in report["findings"]} >= {
        "amqp", "management", "same-place", "clock", "primary-name", "entities", "pings",
        "backlog-queues", "duplicate-window",
    }  # fmt: skip


def test_a_pair_that_is_not_ready_says_what_to_fix(servicebus_pair: NamespacePairFixture) -> None:
    """P5: say which claim is missing where."""
    sender = connection_string_with(servicebus_pair.secondary, Claim.SEND)
    result = run(**environment_of(servicebus_pair, SERVICEBUS_SECONDARY_CONNECTION_STRING=sender))
    assert result.exit_code == EXIT_NOT_READY
    assert "Not ready: 1 problem" in result.output
    assert "Manage claim" in result.output and "`twinbus pair apply`" in result.output


def test_findings_stand_one_below_the_other_problems_first(
    servicebus_pair: NamespacePairFixture,
) -> None:
    """P5: a key that only listens and no backlog queue are two problems, in 80 columns."""
    servicebus_pair.primary.queue("orders")
    listener = connection_string_with(servicebus_pair.secondary, Claim.LISTEN)
    environment = environment_of(servicebus_pair, SERVICEBUS_SECONDARY_CONNECTION_STRING=listener)
    result = CliRunner().invoke(app, ["preflight"], env={**environment, "COLUMNS": "80"})
    lines = result.output.splitlines()
    assert result.exit_code == EXIT_NOT_READY
    assert lines[-1] == "Not ready: 2 problems, 1 warning"
    assert max(map(len, lines)) <= 80

    words = [line.split()[0] for line in lines[:-1] if line and not line.startswith(" ")]
    assert set(words) == {"problem", "warning", "note", "ok"}
    assert words == sorted(words, key=["problem", "warning", "note", "ok"].index)
    # Names are whole: they may have to be typed again.
    assert "primary/x-servicebus-transfer/2 and 7 more" in " ".join(result.output.split())
    assert "queues exist" not in result.output


def test_a_named_entity_is_not_asked_for_again(servicebus_pair: NamespacePairFixture) -> None:
    servicebus_pair.primary.queue("orders")
    sender = connection_string_with(servicebus_pair.primary, Claim.SEND)
    environment = environment_of(servicebus_pair, SERVICEBUS_CONNECTION_STRING=sender)
    shown = run("--entity", "orders", "--primary-name", "primary", **environment).output
    assert "--entity" not in shown and "Listen" in shown


@pytest.mark.parametrize(
    "lossy",
    [
        {"default_ttl_ms": 172_800_000, "dead_lettering_on_expiration": False},
        {"auto_delete_on_idle_ms": 3_600_000},
    ],
    ids=["expires", "goes when idle"],
)
def test_a_queue_that_drops_what_waits_is_not_ready(
    servicebus_pair: NamespacePairFixture, lossy: dict[str, Any]
) -> None:
    """P20: unless the application has the same option."""
    home, away = servicebus_pair.primary, servicebus_pair.secondary
    home.queue("orders")
    queue = away.queue(f"{home.name}/x-servicebus-transfer/0", **lossy)
    result = run("--output", "json", **environment_of(servicebus_pair))
    assert result.exit_code == EXIT_NOT_READY, result.output
    problems = [f for f in json.loads(result.output)["findings"] if f["severity"] == "problem"]
    assert [(each["check"], each["subject"]) for each in problems] == [("drift", str(queue))]

    allowed = run("--allow-lossy-backlog", "--output", "json", **environment_of(servicebus_pair))
    assert allowed.exit_code == 0, allowed.output


def test_no_secret_is_shown(servicebus_pair: NamespacePairFixture) -> None:
    environment = environment_of(servicebus_pair)
    keys = [parse_connection_string(text).shared_access_key or "" for text in environment.values()]
    with servicebus_pair.primary.outage("refused"):
        for output in ("table", "json"):
            shown = run("--output", output, "--timeout", "5s", **environment).output
            assert shown and not any(key in shown for key in keys)


def test_connection_strings_may_be_given_as_options(servicebus_pair: NamespacePairFixture) -> None:
    same = servicebus_pair.primary.connection_string
    result = run("--primary", same, "--secondary", same, "--no-ping", "--output", "json")
    assert result.exit_code == EXIT_NOT_READY
    problems = [f for f in json.loads(result.output)["findings"] if f["severity"] == "problem"]
    assert [finding["check"] for finding in problems] == ["same-place"]


def test_as_a_program_of_its_own(servicebus_pair: NamespacePairFixture) -> None:
    """The whole way: a process, its environment, its exit code."""
    servicebus_pair.primary.queue("orders")
    done = subprocess.run(
        [sys.executable, "-m", "twinbus", "preflight", "--entity", "orders", "--rate", "10"],
        env={**os.environ, **environment_of(servicebus_pair), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ready: 0 problems" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Set SERVICEBUS_CONNECTION_STRING"),
        (["--output", "yaml"], "--output: 'yaml'"),
        (["--expected-outage", "soon"], "is not a time"),
        (["--expected-outage", "0s"], "greater than 0"),
        (["--primary", "nonsense"], "connection string"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(arguments: list[str], words: str) -> None:
    """The program shows the error's text and ends with 1."""
    error = run(*arguments).exception
    assert isinstance(error, TwinbusError)
    assert words in str(error)

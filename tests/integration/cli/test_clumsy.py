"""What people type by mistake: one sentence and a way out, and nothing is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.cli.shared.namespace_options import BACKLOG_QUEUE_COUNT_MAX
from twinbus.pairing import options
from twinbus.testing.namespaces import NamespaceFixture

HUGE = "9" * 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queue", "create", "new", "--lock-duration", "0s"], "refused to create"),
        (["queue", "create", "new", "--duplicate-window", "0s"], "refused to create"),
        (["queue", "create", "new", "--ttl", "999999999999d"], "is too long a time"),
        (["queue", "create", "new\nline"], "has an invalid character"),
        (["queue", "list", "--ca-file", "/no/such"], "/no/such"),
        (["queue", "list", "--administration-port", "1"], ":1/"),
        (["queue", "list", "--connection-string", ""], "is empty"),
        (["send", "", "x"], "is empty"),
        (["send", "orders/", "x"], "slash"),
        (["send", "orders", "x", "--subject", "\udcff"], "UTF-8"),
        (["send", "orders", "x", "--property", f"n:={HUGE}"], "outside the range"),
        (["send", "orders", "x", "--schedule", "99999999d"], "--schedule"),
        (["receive", "orders", "--wait", "99999999d"], "is too long a time"),
    ],
)
def test_a_slip_is_told_in_a_sentence(
    typed: Any, servicebus: NamespaceFixture, arguments: list[str], words: str
) -> None:
    orders = servicebus.queue("orders")
    told = typed.refused(*arguments)
    assert words in told and "\n" not in told
    assert orders.active_message_count == 0
    assert [each["path"] for each in typed.json("queue", "list")] == ["orders"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["peek", "orders", "--from", HUGE],
        ["dlq", "show", "orders", "--from", HUGE],
        ["pair", "plan", "--backlog-queue-count", HUGE],
        ["pair", "status", "--backlog-queue-count", HUGE],
        ["syphon", "--backlog-queue-count", HUGE],
    ],
)
def test_a_number_that_nobody_can_mean_is_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert "less than or equal to" in result.output


def test_a_pair_can_have_as_many_backlog_queues_here_as_there() -> None:
    assert BACKLOG_QUEUE_COUNT_MAX == options.BACKLOG_QUEUE_COUNT_MAX


def test_a_backlog_queue_that_is_far_away_is_not_counted_up_to(typed_pair: Any) -> None:
    assert "x-servicebus-transfer/99999999999" in typed_pair.refused(
        "backlog", "show", "99999999999"
    )


def test_an_empty_list_says_so(typed: Any) -> None:
    assert typed("queue", "list") == "none\n"
    assert typed("queue", "list", "--output", "json") == "[]\n"
    assert typed("queue", "list", "--output", "jsonl") == ""


def test_a_hint_of_the_broker_is_not_given_twice(typed: Any) -> None:
    told = typed.refused("subscription", "list", "missing")
    assert told.count("Create it") == 1


def test_there_is_nothing_to_reconcile_without_a_source() -> None:
    """Said without Spark."""
    result = CliRunner().invoke(app, ["cost", "reconcile"])
    assert result.exit_code == 2
    assert "to reconcile" in result.output and "--receipts" in result.output


# -- as programs --------------------------------------------------------------------------


def run(bus: NamespaceFixture, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which ``$T`` is the program."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "T": f"{sys.executable} -m twinbus",
            "SERVICEBUS_CONNECTION_STRING": bus.connection_string,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_reader_that_goes_away_early_ends_the_program_quietly(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    typed("send", "orders", "x" * 200, "--count", "500")
    for form in ("table", "json", "jsonl"):
        done = run(servicebus, f"$T peek orders --count 500 --output {form} | head -1")
        assert done.stderr == "" and len(done.stdout.splitlines()) == 1, form
    done = run(servicebus, "$T receive orders --count 500 --output jsonl | head -1")
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1
    # What was not seen was not completed.
    assert queue.active_message_count > 0


def test_tables_are_plain_where_colours_are_unwanted_and_fit_narrow_terminals(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    typed("send", "orders", "hello")
    shown = run(servicebus, "$T peek orders", COLUMNS="50", NO_COLOR="1", FORCE_COLOR="").stdout
    assert "\x1b[3" not in shown
    assert max(map(len, shown.splitlines())) <= 50


def test_a_secret_in_a_file_that_cannot_be_read(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    done = run(servicebus, f"$T queue list --connection-string file:{tmp_path / 'binary'}")
    assert done.returncode == 2 and "it is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr

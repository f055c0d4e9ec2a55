"""``twinbus syphon`` as users run it, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.books import by_client, in_numbers, records_in
from tests.support.mover.brokers import Pair, Scene, until
from twinbus.cli import app
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import ConfigurationError, NoBacklogQueue


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def launch(
    scene: Scene, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "twinbus", "syphon", "--local", "--output", "json"]
    return subprocess.Popen(
        [*command, "--primary-name", scene.name, *arguments],
        env={**os.environ, **(environment or scene.pair.environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def finished(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, summary, standard error."""
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, json.loads(out) if out else {}, err


async def test_the_command_brings_everything_home_and_says_so(scene: Scene, tmp_path: Path) -> None:
    """Y1: twinbus syphon --local --once closes the loop."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 500))
    receipts = tmp_path / "receipts.jsonl"
    code, summary, err = await finished(launch(scene, "--once", "--receipts", str(receipts)))
    assert (code, err) == (0, "")
    assert (summary["moved"], summary["deferred"], summary["faults"]) == (500, 0, {})
    lines = [json.loads(line) for line in receipts.read_text().splitlines()]
    assert {line["message_id"] for line in lines} == set(names("m", 500))
    assert {line["outcome"] for line in lines} == {"moved"}
    assert await scene.arrived(orders) == Counter(names("m", 500))


async def test_the_command_moves_through_the_official_sdk(scene: Scene) -> None:
    """Y1: with --driver servicebus it needs nothing of our own client, which is cut off here."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 300))
    ours = {"how": "refuse", "plane": "data", "only_clients": "twinbus-"}
    with scene.fault("cannot-contact", "", **ours):
        code, summary, err = await finished(launch(scene, "--once", "--driver", "servicebus"))
    assert (code, err, summary["moved"]) == (0, "", 300)
    assert await scene.arrived(orders) == Counter(names("m", 300))


@pytest.mark.parametrize("claims", [["Manage", "Send", "Listen"], ["Listen"]], ids=str)
@pytest.mark.parametrize("count", [("--backlog-queue-count", "1"), ()], ids=["count", "none"])
async def test_the_command_finds_every_queue_that_holds_messages(
    standing_pair: Pair, claims: list[str], count: tuple[str, ...]
) -> None:
    """Y9: with Manage by a listing, without it by a look upwards."""
    scene = Scene(standing_pair, queue_count=5)
    orders = scene.destination()
    await scene.fill(orders, names("m", 50))
    where = f"/namespaces/west/rules/{scene.name}"
    made = standing_pair.secondary.admin("PUT", where, {"claims": claims})
    text = standing_pair.secondary.connection_string
    parsed = parse_connection_string(text)
    text = text.replace(str(parsed.shared_access_key_name), made["name"])
    text = text.replace(str(parsed.shared_access_key), made["primary_key"])
    environment = {**standing_pair.environment, "SERVICEBUS_SECONDARY_CONNECTION_STRING": text}
    program = launch(scene, "--once", *count, environment=environment)
    code, summary, err = await finished(program)
    assert (code, summary["moved"], scene.left()) == (0, 50, 0), err


async def test_the_command_leaves_foreign_messages_alone_and_says_so(scene: Scene) -> None:
    """P21: once, with the option that would move them; and that option does."""
    orders = scene.destination()
    await scene.fill(orders, names("theirs", 20), owner="0123456789ab old.example")
    await scene.fill(orders, names("m", 10))
    code, summary, err = await finished(launch(scene, "--once"))
    assert (code, summary["moved"], summary["foreign"], scene.left()) == (0, 10, 20, 20), err
    assert err.count("old.example. If") == 1 and "--accept-owner old.example" in err
    code, summary, err = await finished(launch(scene, "--once", "--accept-owner", "old.example"))
    assert (code, summary["moved"], summary["foreign"], scene.left()) == (0, 20, 0, 0), err


async def test_the_command_counts_what_it_does(scene: Scene, tmp_path: Path) -> None:
    """C1, C2: three of the four charges of a detour are the syphon's; nothing is audited twice."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 500))
    code, summary, err = await finished(launch(scene, "--once", "--metering", str(tmp_path)))
    assert (code, err, summary["moved"]) == (0, "", 500)
    counted = in_numbers(by_client(tmp_path))
    assert counted[orders, "send"] == (500, 500)
    taken = [each for key, each in counted.items() if key[0] in scene.queues]
    received = [counted[key] for key in counted if key[0] in scene.queues and key[1] == "receive"]
    assert [sum(column) for column in zip(*received, strict=True)] == [500, 500]
    assert len(taken) > len(received), "settlements and looks are counted, too"
    assert not records_in(tmp_path, "audit")
    lines = [line["operation"] for line in records_in(tmp_path, "operations")]
    assert lines.count("opened") == lines.count("closed") == 2
    code, _summary, err = await finished(launch(scene, "--once", "--metering", "/dev/null/x"))
    assert code == 2
    assert "--metering: '/dev/null/x'" in err


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "pruned"])
async def test_the_command_deletes_its_old_logs_when_asked(
    scene: Scene, tmp_path: Path, keep: bool
) -> None:
    """M13: of both namespaces; without --keep-days every file stays."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 5))
    first, _summary, err = await finished(launch(scene, "--once", "--metering", str(tmp_path)))
    assert (first, err) == (0, "")
    directories = sorted({each.parent for each in tmp_path.rglob("operations-*.jsonl")})
    assert len(directories) == 2
    old = [each / "operations-0123456789abcdef-2020-01-01.jsonl" for each in directories]
    others = [each / "operations-2020-01-01.jsonl.bak" for each in directories]
    for path in (*old, *others):
        path.write_text("{}\n")
    await scene.fill(orders, names("n", 5))
    arguments = ("--once", "--metering", str(tmp_path), *(() if keep else ("--keep-days", "7")))
    code, summary, _err = await finished(launch(scene, *arguments))
    assert (code, summary["moved"]) == (0, 5)
    assert [path.exists() for path in old] == [keep, keep]
    assert all(path.exists() for path in others)


async def test_what_is_not_home_has_an_exit_code_of_its_own(scene: Scene) -> None:
    orders = scene.destination(status="SendDisabled")
    await scene.fill(orders, names("m", 5))
    code, summary, _err = await finished(launch(scene, "--once", "--backlog-queue-count", "2"))
    assert code == 3
    assert summary["moved"] == 0 and summary["deferred"] >= 5


async def test_a_mover_that_is_killed_loses_nothing(standing_pair: Pair, tmp_path: Path) -> None:
    """Y1: kill -9 in the middle; what repeats has no receipt, and is one chunk at most."""
    scene = Scene(standing_pair, lock_duration_ms=5_000)
    orders = scene.destination()
    await scene.fill(orders, names("m", 6_000))
    receipts = tmp_path / "receipts.jsonl"
    killed = launch(scene, "--chunk", "100", "--receipts", str(receipts))
    await until(lambda: scene.home(orders) > 0)
    killed.kill()
    await finished(killed)
    await until(lambda: scene.locked() == 0)
    code, _summary, _err = await finished(launch(scene, "--once"))
    assert code == 0
    found = await scene.arrived(orders)
    assert set(found) == set(names("m", 6_000))
    settled = {
        line["message_id"]
        for line in map(json.loads, receipts.read_text().splitlines())
        if line["outcome"] == "moved"
    }
    repeated = {name for name, count in found.items() if count > 1}
    assert not repeated & settled
    assert len(repeated) <= 100


async def test_ctrl_c_ends_it_with_a_summary(scene: Scene) -> None:
    """L2: after the current chunk."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 50))
    process = launch(scene)
    await until(lambda: scene.home(orders) == 50)
    process.send_signal(signal.SIGINT)
    code, summary, _err = await finished(process)
    assert (code, summary["moved"]) == (0, 50)


async def test_an_end_before_the_backlog_is_empty_is_no_success(scene: Scene) -> None:
    """0 would say that everything is home."""
    orders = scene.destination()
    await scene.fill(orders, names("m", 500))
    process = launch(scene, "--once", "--rate", "50", "--chunk", "10")
    await until(lambda: scene.home(orders) > 20)
    process.send_signal(signal.SIGTERM)
    code, summary, _err = await finished(process)
    assert (code, summary["cut_short"]) == (3, True)
    assert summary["moved"] < 500


def invoke(*arguments: str, **variables: str) -> Any:
    return CliRunner().invoke(app, ["syphon", *arguments], env=variables)


def test_a_dry_run_shows_what_would_be_moved(scene: Scene) -> None:
    result = invoke(
        "--local",
        "--dry-run",
        "--primary-name",
        scene.name,
        "--allow",
        "orders*",
        **scene.pair.environment,
    )
    assert result.exit_code == 0
    assert "moved" in result.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--ttl-policy", "never"], "--ttl-policy"),
        (["--output", "xml"], "--output"),
        (["--driver", "uamqp"], "'uamqp'. Use 'amqp' or 'servicebus'"),
        (["--metering", "/dev/null/books"], "--metering: '/dev/null/books'"),
        (["--state", "here"], "--state requires Spark"),
        (["--master", "local"], "--master requires Spark"),
        (["--checkpoints", "here"], "--checkpoints requires Spark"),
        (["--tasks", "2"], "--tasks requires Spark"),
        (["--receipts-days", "2"], "--receipts-days requires Spark"),
        (["--keep-days", "2"], "--keep-days requires --metering"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], word: str) -> None:
    result = invoke("--local", *arguments)
    assert isinstance(result.exception, ConfigurationError)
    assert word in str(result.exception)


def test_a_namespace_that_nobody_named_is_asked_for() -> None:
    result = invoke(
        "--local", SERVICEBUS_CONNECTION_STRING="", SERVICEBUS_FULLY_QUALIFIED_NAMESPACE=""
    )
    assert isinstance(result.exception, ConfigurationError)
    assert "SERVICEBUS_CONNECTION_STRING" in str(result.exception)


def test_a_secondary_without_backlog_queues_is_named(scene: Scene) -> None:
    result = invoke("--local", "--primary-name", "nobody", **scene.pair.environment)
    assert isinstance(result.exception, NoBacklogQueue)
    assert "nobody/x-servicebus-transfer/0" in str(result.exception)


def test_receipts_that_cannot_be_written_stop_it(scene: Scene, tmp_path: Path) -> None:
    result = invoke(
        "--local",
        "--once",
        "--primary-name",
        scene.name,
        "--receipts",
        str(tmp_path / "missing" / "receipts"),
        **scene.pair.environment,
    )
    assert isinstance(result.exception, ConfigurationError)


def test_two_patterns_in_one_are_refused(scene: Scene) -> None:
    """Y6: no name fits them, and everything would be dead-lettered."""
    command = ["--local", "--dry-run", "--primary-name", scene.name, "--allow", "orders,bills"]
    result = invoke(*command, **scene.pair.environment)
    assert isinstance(result.exception, ConfigurationError)
    assert "'orders,bills'" in str(result.exception)


def test_the_help_names_the_exit_codes() -> None:
    help_text = invoke("--help").output
    assert "Exit codes" in help_text and "SERVICEBUS_SECONDARY_CONNECTION_STRING" in help_text

"""``twinbus syphon`` as an operator runs it: a program on Spark, and commands that talk to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.spark.brokers import SparkPair
from tests.support.mover.brokers import Scene, until
from twinbus.cli import app
from twinbus.cli.syphon import run_on_spark, spark_session
from twinbus.cli.syphon.commands import SyphonOptions
from twinbus.cli.syphon.summary import Summary, done_count, exit_code
from twinbus.errors import ConfigurationError
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.spark.errors import SparkError
from twinbus.spark.syphon import query
from twinbus.spark.syphon.state_directory import Control, StateDir, Status

START_S_MAX = 120


def say(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["syphon", *arguments])


def status(state: Path) -> dict[str, Any]:
    answer = say("status", "--state", str(state), "--output", "json")
    return json.loads(answer.output) if answer.exit_code == 0 else {}


def launch(scene: Scene, state: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "twinbus", "syphon", "--output", "json"),
            *("--primary-name", scene.name, "--state", str(state), *arguments),
        ],
        env={**os.environ, **scene.pair.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("master", "chosen"),
    [
        (None, None),
        ("local", "local[1,4]"),
        ("local[8]", "local[8,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3,1]", "local[3,1]"),
    ],
)
def test_a_local_master_starts_as_the_usual_one_does(
    master: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y1, Y2: with this Python for the tasks, whichever Python comes first on the path; and a task
    whose worker was killed is tried again."""
    told: dict[str, Any] = {}
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(spark_session, "local_session", lambda _name, **more: told.update(more))
    spark_session._session(master, None)
    assert told["more"] == ({} if chosen is None else {"spark.master": chosen})


@pytest.mark.parametrize(("tasks", "cores"), [(None, 2), (1, 2), (8, 8)])
def test_there_is_a_core_for_every_task(
    tasks: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(spark_session, "local_session", lambda _name, **more: told.update(more))
    spark_session._session(None, tasks)
    assert told["cores"] == cores


async def test_an_operator_starts_pauses_resumes_and_ends_a_syphon(
    pair: SparkPair, tmp_path: Path
) -> None:
    """Y2: with the program's own Spark; SIGTERM ends it after the chunks under way."""
    scene = Scene(pair)
    orders = scene.destination()
    state = tmp_path / "state"
    program = launch(scene, state)
    try:
        await until(lambda: status(state).get("doing") == "waiting", START_S_MAX)
        assert say("pause", "--state", str(state)).output == "Paused\n"
        await until(lambda: status(state)["doing"] == "paused")
        await scene.fill(orders, [f"m{number}" for number in range(100)])
        assert say("resume", "--state", str(state)).output == "Resumed\n"
        await until(lambda: status(state)["counts"] == {"moved": 100}, START_S_MAX)
        shown = say("status", "--state", str(state)).output
        assert "moved" in shown and "100" in shown
        program.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(program.communicate, timeout=60)
    finally:
        program.kill()
        program.communicate()
    summary = json.loads(out)
    assert (program.returncode, summary["moved"], summary["faults"]) == (0, 100, {}), err
    assert "Traceback" not in err and "Exception" not in err
    assert await scene.arrived(orders) == Counter(f"m{number}" for number in range(100))
    assert status(state)["doing"] == "stopped"


async def test_the_program_empties_queues_beyond_the_count_that_it_was_told(
    pair: SparkPair, tmp_path: Path
) -> None:
    """Y9, P21: on Spark, without an order for them; what is foreign stays, and it says so."""
    scene = Scene(pair, queue_count=5)
    orders = scene.destination()
    await scene.fill(orders, [f"m{number}" for number in range(50)])
    await scene.fill(orders, ["theirs"] * 5, owner="0123456789ab old.example")
    state = tmp_path / "state"
    program = launch(scene, state, "--once", "--backlog-queue-count", "1")
    try:
        out, err = await asyncio.to_thread(program.communicate, timeout=START_S_MAX)
    finally:
        program.kill()
        program.communicate()
    summary = json.loads(out)
    assert (program.returncode, summary["moved"], summary["foreign"]) == (0, 50, 5), err
    assert scene.left() == 5 and err.count("--accept-owner old.example") == 1
    assert status(state)["foreign"] == {"0123456789ab old.example": 5}


def test_what_was_parked_and_came_home_later_is_home() -> None:
    """The exit code is about what is left at the end, not about what has happened meanwhile."""
    counts = Counter({ReceiptOutcome.MOVED: 5, ReceiptOutcome.DEFERRED: 5})
    told: dict[str, Any] = {"moved_bytes": 1, "faults": {}, "elapsed_s": 1.0}
    assert exit_code(Summary(counts=counts, deferred_now_count=0, **told)) == 0
    assert exit_code(Summary(counts=counts, deferred_now_count=1, **told)) == 3
    cut = Summary(counts=counts, deferred_now_count=0, was_cut_short=True, **told)
    assert exit_code(cut) == 3, "nobody has seen the backlog empty"


def test_progress_is_what_has_left_the_backlog() -> None:
    """Not what is set aside, which comes again and would be counted twice."""
    counts = Counter(
        {ReceiptOutcome.MOVED: 5, ReceiptOutcome.DEFERRED: 7, ReceiptOutcome.DEAD_LETTERED: 1}
    )
    assert done_count(counts) == 6
    assert done_count({ReceiptOutcome.WOULD_MOVE: 3, ReceiptOutcome.WOULD_DEAD_LETTER: 2}) == 5


def test_a_stall_is_told_on_the_terminal_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Y7: and again after something has moved."""
    words = iter(["", "7 wait", "7 wait", "", "7 wait", ""])
    is_over, shown = Event(), []

    class Told:
        is_running = True

        def status(self) -> Status:
            said = next(words, None)
            if said is None:
                is_over.set()
            return Status(stalled=said or "", counts={"moved": 3, "deferred": 9})

    run_on_spark._follow(Told(), shown.append, is_over)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "twinbus: 7 wait\n" * 2
    assert set(shown) == {3}


@pytest.mark.parametrize("status", [None, Status(doing="moving"), Status(doing="starting")])
def test_a_syphon_that_did_not_tell_what_it_moved_is_no_success(status: Status | None) -> None:
    with pytest.raises(SparkError):
        run_on_spark._summary(status, 1.0, was_asked_to_stop=False)


def test_a_syphon_that_was_stopped_before_it_began_has_moved_nothing() -> None:
    summary = run_on_spark._summary(Status(), 1.0, was_asked_to_stop=True)
    assert not any(summary.counts.values())


def test_the_second_ctrl_c_ends_the_command_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with run_on_spark._signals() as is_stopping:
        signal.raise_signal(signal.SIGINT)
        assert is_stopping.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_no_jvm_is_started_for_who_has_not_said_where_the_messages_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("SERVICEBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(spark_session, "PendingSparkSession", lambda *_: pytest.fail("started"))
    caught = say("--once").exception
    assert isinstance(caught, ConfigurationError) and "primary namespace" in str(caught)


def test_a_command_without_a_syphon_says_so(tmp_path: Path) -> None:
    for command in ("pause", "resume", "status", "rate"):
        answer = say(command, "--state", str(tmp_path / "nowhere"))
        assert isinstance(answer.exception, ConfigurationError)
        assert str(tmp_path / "nowhere") in str(answer.exception)
    answer = say("status", "--state", str(tmp_path))
    assert isinstance(answer.exception, ConfigurationError)
    assert str(tmp_path) in str(answer.exception)


def test_what_is_told_while_no_syphon_runs_is_for_the_next_one(tmp_path: Path) -> None:
    """Nobody believes that something is paused which is not there."""
    later = "; no syphon uses this directory now, so it applies to the next\n"
    assert say("pause", "--state", str(tmp_path)).output == f"Paused{later}"
    answer = say("rate", "50", "--state", str(tmp_path), "--output", "json")
    assert json.loads(answer.output)["is_running"] is False
    wanted = StateDir(tmp_path).control()
    assert (wanted.is_paused, wanted.rate_per_s) == (True, 50.0)
    state = StateDir(tmp_path)
    state.take()
    assert say("resume", "--state", str(tmp_path)).output == "Resumed\n"
    state.release()


@pytest.mark.parametrize(("started_with", "rate_per_s"), [(None, 50.0), (900.0, None)])
def test_a_pause_outlives_the_syphon_it_was_meant_for(
    started_with: float | None, rate_per_s: float | None
) -> None:
    """One that was killed and starts again does not move what somebody has stopped."""
    told = Control(is_paused=True, is_stopping=True, rate_per_s=50.0, run="first")
    settings: Any = SimpleNamespace(rate_per_s=started_with)
    taken = query._carry_over(told, settings, "second")
    assert taken == Control(is_paused=True, rate_per_s=rate_per_s, run="second")


def test_an_address_for_receipts_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path it would lose a slash, and with it the name of its host."""
    given: list[SyphonOptions] = []
    monkeypatch.setattr(
        "twinbus.cli.syphon.commands._run_on_spark", lambda options: given.append(options)
    )
    assert say("--receipts", "hdfs://name:9000/receipts").exit_code == 0
    assert given[0].receipts == "hdfs://name:9000/receipts"


def test_a_rate_is_written_where_the_syphon_reads_it(tmp_path: Path) -> None:
    assert "50 messages/s" in say("rate", "50", "--state", str(tmp_path)).output
    assert json.loads((tmp_path / "control.json").read_text())["rate_per_s"] == 50
    assert say("rate", "--state", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "control.json").read_text())["rate_per_s"] is None

"""The drain benchmarks on a small scale: the mover without Spark, and no RabbitMQ."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from verification.benchmarks.drain import Drained, Rounds, drain_once
from verification.benchmarks.drain_movers import HandLoop, LocalSyphon, SparkSyphon
from verification.benchmarks.drain_site import DESTINATIONS, Site, site
from verification.benchmarks.process_tree import PYTHON, Used, end_tree, look_at, tree
from verification.benchmarks.processes import BenchError, spawn
from verification.benchmarks.run import Bench
from verification.benchmarks.systems import Twinbus

BUSY_CHILD = """
import subprocess, sys, time
busy = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", busy], check=True)
print("done", flush=True)
time.sleep(60)
"""
RUNAWAY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def where() -> Iterator[Site]:
    with site(backlog_queues=2) as made:
        yield made


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> None:
    if "where" in request.fixturenames:
        request.getfixturevalue("where").clear_all()


def started(program: str, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The process, and the first line that it printed."""
    process = spawn([sys.executable, "-c", program], log, {})
    deadline_s = time.monotonic() + 20
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline_s, "the program printed nothing"
        time.sleep(0.02)
    return process, log.read_text().strip()


# -- processes ----------------------------------------------------------------------------


def test_the_time_of_a_child_that_is_gone_is_not_lost(tmp_path: Path) -> None:
    # Given a program whose child used half a second and has ended
    process, _ = started(BUSY_CHILD, tmp_path / "log")
    try:
        # When the tree is looked at, then that time is in it, once
        used_s = Used.so_far(process.pid).since(Used.nothing())[PYTHON]
        # The kernel counts in hundredths, and rounds the two halves of a process down
        assert 0.48 <= used_s < 1.0
    finally:
        end_tree(process, signal.SIGKILL)


def test_a_program_is_ended_with_a_child_that_left_its_group(tmp_path: Path) -> None:
    # Given a child that signals to the group do not reach
    process, child_pid = started(RUNAWAY, tmp_path / "log")
    assert [each.pid for each in tree(process.pid)] == [process.pid, int(child_pid)]

    # When the program is ended
    end_tree(process, orphan_wait_s=0.1)

    # Then both are gone
    deadline_s = time.monotonic() + 10
    while look_at(int(child_pid)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert look_at(int(child_pid)) is None
    assert process.returncode is not None


# -- the place ----------------------------------------------------------------------------


def test_a_backlog_waits_for_all_destinations_and_comes_home(where: Site, tmp_path: Path) -> None:
    # Given the mover without Spark, which is not running
    mover = LocalSyphon(where, tmp_path)
    try:
        # When 2,000 messages come home
        drained = drain_once(where, mover, 2_000, 200)

        # Then every destination has its share, and everybody who worked is in the bill
        assert [where.home.active(each) for each in DESTINATIONS] == [400] * 5
        assert drained.messages == 2_000
        assert set(drained.cpu_us) == {PYTHON, "primary", "secondary"}
        assert all(us > 0 for us in drained.cpu_us.values())
    finally:
        mover.stop()


def test_a_backlog_comes_home_through_the_official_sdk(where: Site, tmp_path: Path) -> None:
    mover = LocalSyphon(where, tmp_path, "servicebus")
    try:
        assert drain_once(where, mover, 400, 200).messages == 400
    finally:
        mover.stop()


def test_a_backlog_can_stand_in_fewer_queues(where: Site) -> None:
    where.fill(400, 200, queues=1)
    assert [where.away.active(queue) for queue in where.queues] == [400, 0]


def test_messages_that_are_no_whole_batches_are_refused(where: Site) -> None:
    with pytest.raises(BenchError, match="450 messages are no whole batches for 2 queues"):
        where.fill(450, 200)


def test_a_figure_is_refused_while_messages_are_missing(where: Site) -> None:
    where.fill(400, 200)
    with pytest.raises(BenchError, match="0 of 400 messages came home"):
        where.wait_until_home(400, timeout_s=0.1)
    with pytest.raises(BenchError, match="stay in the backlog"):
        where.check(0, timeout_s=0.1)
    where.clear_all()
    with pytest.raises(BenchError, match="0 messages came home, and 400 were sent"):
        where.check(400, timeout_s=0.1)


# -- movers -------------------------------------------------------------------------------


def test_the_loop_by_hand_brings_all_messages_home(where: Site) -> None:
    where.fill(400, 200, queues=1)
    one_queue = replace(where, queues=where.queues[:1])  # The SDK takes half a second for a link.
    rate, messages, seconds = HandLoop(one_queue, seconds=30).rate_per_s()
    assert messages == 400
    assert rate == pytest.approx(messages / seconds)
    where.check(400)


def test_the_syphon_is_held_and_released_by_its_control_file(where: Site, tmp_path: Path) -> None:
    # Given a syphon that has said that it is paused
    state = tmp_path / "state"
    state.mkdir()
    (state / "status.json").write_text('{"doing": "paused"}')
    syphon = SparkSyphon(where, tmp_path)

    # When it is held and released, then its control file says so each time
    syphon.hold()
    assert json.loads((state / "control.json").read_text()) == {"is_paused": True}
    syphon.release()
    assert json.loads((state / "control.json").read_text()) == {"is_paused": False}


# -- figures ------------------------------------------------------------------------------


def test_a_promise_is_kept_by_the_medians_of_the_rounds(tmp_path: Path) -> None:
    # Given three rounds of ours, and of two peers
    ours = Twinbus(tmp_path)
    bench = Bench(
        ours=ours, fresh_ours=lambda _: ours, peer=ours, rounds=3, duration_s=1
    )  # fmt: skip
    rounds = Rounds(bench, "syphon_drain")
    for seconds in (4.0, 5.0, 10.0):
        costs = {"JVM": seconds, "primary": 9.0}
        rounds.ours("1kb", Drained(messages=200_000, seconds=seconds, cpu_us=costs))
    for rate in (20_000, 30_000, 25_000):
        rounds.peer("RabbitMQ Shovel", "1kb", rate)
        rounds.peer("loop by hand, stock SDK", "1kb", rate / 2)

    # When figures are made of them
    figures = {figure.name: figure for figure in rounds.figures()}

    # Then 40,000 a second is enough beside a shovel at 25,000, and not beside a loop at 12,500
    assert figures["syphon_drain_1kb"].ratio == pytest.approx(1.6)
    assert figures["syphon_drain_1kb"].promise_kept is True
    assert figures["syphon_drain_1kb_by_hand"].ratio == pytest.approx(3.2)
    assert figures["syphon_drain_1kb_by_hand"].promise_kept is False
    assert figures["syphon_drain_1kb_cpu_jvm"].value == 5.0
    assert figures["syphon_drain_1kb_cpu_primary"].value == 9.0

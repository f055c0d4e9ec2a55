"""What a hosted syphon is made of, without Spark: its session and its private directory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from twinbus.failover.pair_lifecycle import CLOSE_WINDOW_S
from twinbus.mover import queue_group, work_order_runner
from twinbus.spark.syphon import hosted, query, task
from twinbus.spark.syphon import hosted_session as module
from twinbus.spark.syphon.hosted_session import (
    forget_dead_spark,
    hosted_session,
    is_over,
    is_own,
)
from twinbus.spark.syphon.state_directory import Status


def test_who_waits_for_an_end_waits_longer_than_what_is_to_end() -> None:
    """L1, L2: otherwise a chunk is cut off by whoever waits, and nobody tells of it."""
    shift_s = queue_group.STOP_S_MAX + queue_group.CLOSE_S_MAX
    heard_s = task.PROGRESS_INTERVAL_S + work_order_runner.STOP_CHECK_S
    assert heard_s + shift_s < hosted.QUERY_STOP_S_MAX - 0.5, "Spark ends the batch then"
    assert hosted.QUERY_STOP_S_MAX < hosted.STOP_S_MAX < CLOSE_WINDOW_S
    assert hosted.QUERY_STOP_S_MAX < query.STOP_S_MAX


# -- the session ------------------------------------------------------------------------------


class Sessions:
    """Stands for Spark: makes sessions and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Any] = []
        self.stopped: list[Any] = []
        monkeypatch.setattr(module, "local_session", self.make)
        for name in ("_active_spark_context", "_gateway", "_jvm"):
            monkeypatch.setattr(SparkContext, name, None)
        for name in ("_instantiatedSession", "_activeSession"):
            monkeypatch.setattr(SparkSession, name, None)

    def make(self, *_name: object, more: Any = None, **_options: object) -> Any:
        session: Any = SimpleNamespace(_sc=SimpleNamespace(getConf=lambda: more or {}))
        session.sparkContext = session._sc
        session.stop = lambda: self.stop(session)
        process = SimpleNamespace(poll=lambda: None)
        SparkContext._active_spark_context = session._sc
        SparkContext._gateway = SimpleNamespace(proc=process, close=lambda: None)  # type: ignore[assignment]
        SparkSession._instantiatedSession = session
        self.made.append(session)
        return session

    def stop(self, session: Any) -> None:
        assert is_own(session), "until it has ended it is not the application's"
        self.stopped.append(session)
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None

    def kill(self) -> None:
        """As kill -9 does: the process has ended, and nothing else has changed."""
        SparkContext._gateway.proc.poll = lambda: -9  # type: ignore[union-attr]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    return Sessions(monkeypatch)


def test_several_hosted_syphons_share_a_session_that_ends_with_the_last(sessions: Sessions) -> None:
    """L2: closing one pair does not end the query of another."""
    with hosted_session() as first:
        with hosted_session() as second:
            assert first is second and is_own(first)
        assert sessions.stopped == []
    assert sessions.stopped == sessions.made == [first]
    with hosted_session() as third:
        assert third is not first


def test_after_its_jvm_was_killed_another_session_is_made(sessions: Sessions) -> None:
    """P1: a restart inside the application works."""
    with hosted_session() as first:
        sessions.kill()
    assert sessions.stopped == [], "nobody is there to be asked"
    assert SparkContext._gateway is None and SparkSession._instantiatedSession is None
    with hosted_session() as second:
        assert second is not first and not is_over(second)
    assert sessions.stopped == [second]


def test_a_session_that_others_still_use_is_replaced_when_it_was_killed(
    sessions: Sessions,
) -> None:
    with hosted_session() as first:
        sessions.kill()
        with hosted_session() as second:
            assert second is not first and is_over(first)
        assert sessions.stopped == [second]
    assert sessions.stopped == [second]


def test_a_session_that_the_application_has_made_meanwhile_is_left_to_it(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was faster: it is used, and not stopped."""
    theirs = sessions.make()
    builder = SimpleNamespace(getOrCreate=lambda: theirs)
    monkeypatch.setattr(SparkSession, "builder", builder)
    with hosted_session() as used:
        assert used is theirs and not is_own(used)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(module, "local_session", lambda *_name, **_options: theirs)
    with hosted_session() as used:
        assert used is theirs and not is_own(used)
    assert sessions.stopped == []


def test_a_jvm_that_lives_is_not_forgotten(sessions: Sessions) -> None:
    session = sessions.make()
    assert not forget_dead_spark() and not is_over(session)


# -- the directory ----------------------------------------------------------------------------


# -- what it tells ----------------------------------------------------------------------------


async def test_a_stall_and_dead_letters_are_told_once_each() -> None:
    """Y7: when they begin, and again when they begin again."""
    told: list[object] = []
    job: Any = SimpleNamespace(on_stall=told.append, on_dead_letters=told.append)
    syphon = hosted.SparkSyphon(job, None)
    syphon._loop = asyncio.get_running_loop()
    stalled, dead = Status(stalled="7 messages wait"), {"dead-lettered": 2}
    for status in (Status(), stalled, stalled, Status(counts=dead), Status(counts=dead), stalled):
        syphon._notify_all(status)
    await asyncio.sleep(0)
    assert told == ["7 messages wait", 2, "7 messages wait"]


async def test_foreign_messages_are_told_with_their_pair() -> None:
    """P21: how many more there are, for each pair by itself."""
    told: list[object] = []
    job: Any = SimpleNamespace(on_foreign=lambda owner, count: told.append((owner, count)))
    syphon = hosted.SparkSyphon(job, None)
    syphon._loop = asyncio.get_running_loop()
    for counts in ({}, {"a": 2}, {"a": 2}, {"a": 5, "b": 1}):
        syphon._notify_all(Status(foreign=counts))
    await asyncio.sleep(0)
    assert told == [("a", 2), ("a", 3), ("b", 1)]


async def test_a_missing_claim_is_told_once_each_time() -> None:
    """P18: with the path and the claim, as soon as the status has it."""
    told: list[tuple[str, str]] = []
    job: Any = SimpleNamespace(on_refused=lambda *missing: told.append(missing))
    syphon = hosted.SparkSyphon(job, None)
    syphon._loop = asyncio.get_running_loop()
    listen, both = {"q/0": "Listen"}, {"q/0": "Listen", "orders": "Send"}
    for refused in ({}, listen, both, both, {}, listen):
        syphon._notify_all(Status(refused=dict(refused)))
    await asyncio.sleep(0)
    assert told == [("q/0", "Listen"), ("orders", "Send"), ("q/0", "Listen")]


def test_a_session_of_our_own_has_a_core_for_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    asked: list[int] = []
    monkeypatch.setattr(
        module,
        "local_session",
        lambda *names, cores, **more: (asked.append(cores), sessions.make(*names, **more))[1],
    )
    for tasks in (None, 1, 8):
        with hosted_session(tasks):
            pass
    assert asked == [2, 2, 8]

"""What is written down as a fault has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.brokered_message import encode_message
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import TwinbusError
from twinbus.message import BrokeredMessage
from verification.fault_campaign import nemesis
from verification.fault_campaign.cards import ONE_LEFT, SYNC_ERROR, WORKER, Fault
from verification.fault_campaign.history import Event, Journal, read
from verification.fault_campaign.nemesis import Nemesis
from verification.fault_campaign.plan import PRIMARY, SECONDARY, Plan
from verification.fault_campaign.processes import LAUNCHERS, Child
from verification.fault_campaign.site import Site
from verification.fault_campaign.syphon import SparkChild

KILL_WORKER = Fault(name="kill syphon's worker", process="syphon-1", part=WORKER)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One in which nothing runs."""
    journal = Journal(tmp_path / "controller.jsonl", "controller")
    site = Site(Plan(), tmp_path, journal, LAUNCHERS)
    site.brokers[PRIMARY].port = 5_671
    yield site
    journal.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "AGAIN_S", 0.01)
    monkeypatch.setattr(nemesis, "BUSY_WORKER_S_MAX", 0.1)
    monkeypatch.setattr(nemesis, "VICTIM_S_MAX", 0.2)
    monkeypatch.setattr(nemesis, "SYNC_S_MAX", 0.1)


def written(tmp_path: Path) -> list[Event]:
    return list(read(tmp_path / "controller.jsonl"))


def names(tmp_path: Path) -> list[tuple[str, str, str]]:
    return [(each.what, each.type, each.detail) for each in written(tmp_path)]


class Syphon(SparkChild):
    """One whose parts are there from some look on."""

    def __init__(self, answers: list[bool]) -> None:
        self.name = "syphon-1.0"
        self._answers = answers
        self.asked: list[int | None] = []

    def kill_part(self, part: str, rng: Random, port: int | None = None) -> bool:
        self.asked.append(port)
        return bool(self._answers) and self._answers.pop(0)


# -- parts of Spark -------------------------------------------------------------------------------


async def test_a_part_that_is_not_there_yet_is_looked_for_again(site: Site, tmp_path: Path) -> None:
    site.roles["syphon-1"] = Syphon([False, False, True])
    await Nemesis(site).strike(KILL_WORKER)
    assert names(tmp_path) == [
        ("fault", "invoke", "kill syphon's worker"),
        ("kill", "ok", "worker"),
        ("fault", "ok", "kill syphon's worker"),
    ]


async def test_a_part_that_is_never_there_is_neither_a_fault_nor_a_kill(
    site: Site, tmp_path: Path
) -> None:
    site.roles["syphon-1"] = syphon = Syphon([])
    await Nemesis(site).strike(KILL_WORKER)
    assert names(tmp_path) == [("fault", "info", "kill syphon's worker")]
    # First one that moves, then any.
    assert syphon.asked[0] == 5_671
    assert syphon.asked[-1] is None


async def test_others_have_their_turn_while_a_part_is_looked_for(site: Site) -> None:
    """Whoever starts a dead syphon again must not wait for the fault that waits for it."""

    class Looked(Syphon):
        def kill_part(self, part: str, rng: Random, port: int | None = None) -> bool:
            assert site.turn("syphon-1").locked()
            return super().kill_part(part, rng, port)

    site.roles["syphon-1"] = Looked([False, True])
    turns = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        turns.append(site.turn("syphon-1").locked())
        await pause(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verification.fault_campaign.nemesis.asyncio.sleep", sleep)
        await Nemesis(site).strike(KILL_WORKER)
    assert turns[0] is False


# -- syncs ----------------------------------------------------------------------------------------


class Board:
    """Of a broker that syncs, or not."""

    def __init__(self, syncs: bool) -> None:
        self._syncs = syncs
        self.failed = 3

    def set(self, field: str, number: int) -> None:
        assert field == "sync_fails_in"
        self.failed += self._syncs and number > 0

    def get(self, field: str) -> int:
        assert field == "sync_failed"
        return self.failed


@pytest.mark.parametrize(("syncs", "name"), [(True, SYNC_ERROR), (False, "kill primary")])
async def test_an_error_of_a_disk_that_nobody_met_is_a_plain_kill(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool, name: str
) -> None:
    async def nothing(*_facts: Any) -> None: ...

    async def is_well() -> bool:
        return not syncs

    broker = site.brokers[PRIMARY]
    site.boards = {PRIMARY: Board(syncs)}  # type: ignore[dict-item]
    monkeypatch.setattr(broker, "kill", nothing)
    monkeypatch.setattr(broker, "is_well", is_well)
    monkeypatch.setattr(site, "start", nothing)
    await Nemesis(site).strike(Fault(name=SYNC_ERROR, process=PRIMARY, amount=3))

    told = written(tmp_path)
    assert [(each.what, each.detail) for each in told] == [
        ("fault", name),
        ("kill", ""),
        ("fault", name),
    ]
    if not syncs:  # It counts from when the trap was set: a sync may have failed at once.
        assert told[1].at_s - told[0].at_s >= 0.1


# -- the dead -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["kill", "end"])
async def test_one_that_is_dead_already_was_not_killed_by_us_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async def wait() -> int:
        return 1

    async def start(_role: str) -> None: ...

    monkeypatch.setattr(site, "start", start)
    site.roles["sender-1"] = child = Child("sender-1.0", tmp_path)
    gone: Any = SimpleNamespace(returncode=1, wait=wait)
    child._process = gone
    await Nemesis(site).strike(Fault(name=f"{verb} sender", process="sender-1"))
    assert ("died", "info", "exit code 1") in names(tmp_path)


# -- a full queue ---------------------------------------------------------------------------------


class Queue:
    """A driver, its sender and its receiver at once: a queue that has taken some fillers."""

    def __init__(self, answered: int, lost: int) -> None:
        self._answered, self._lost = answered, lost
        self.there: list[int] = []

    def sender(self, _path: str) -> Queue:
        return self

    receiver = sender

    async def schedule(self, _messages: Any, *, timeout_s: float) -> list[int]:
        if len(self.there) >= self._answered + self._lost:
            raise TwinbusError("it is full")
        self.there.append(len(self.there) + 1)
        if len(self.there) > self._answered:
            raise TwinbusError("the answer was lost")
        return self.there[-1:]

    async def cancel_scheduled(self, numbers: list[int], *, timeout_s: float) -> None:
        assert len(numbers) == len(set(numbers)), "one number twice is refused"
        self.there = [each for each in self.there if each not in numbers]

    async def peek(self, _count_max: int, *, timeout_s: float) -> list[ReceivedMessage]:
        encoded = encode_message(BrokeredMessage(b"", message_id=nemesis.FILLER))
        return [ReceivedMessage("backlog", encoded, number) for number in self.there]

    async def close(self) -> None: ...


@pytest.mark.parametrize(("answered", "lost"), [(2, 0), (2, 1), (0, 1), (0, 0)])
async def test_all_that_filled_a_queue_is_taken_out_also_when_no_number_is_known(
    site: Site, monkeypatch: pytest.MonkeyPatch, answered: int, lost: int
) -> None:
    queue = Queue(answered, lost)

    async def ask(_method: str, _path: str, _json: Any = None) -> dict[str, int]:
        return {"scheduled_message_count": len(queue.there)}

    broker = site.brokers[PRIMARY]
    monkeypatch.setattr(broker, "ask", ask)
    monkeypatch.setattr(broker, "connection_string", lambda: "")
    monkeypatch.setattr(AmqpDriver, "from_connection_string", lambda _text: queue)
    await Nemesis(site).strike(Fault(name="backlog: full", process=PRIMARY, place="backlog"))
    assert queue.there == []


# -- backlog queues -------------------------------------------------------------------------------


async def test_all_backlog_queues_but_one_are_disabled_and_come_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared, *others = site.plan.backlog
    asked: list[tuple[str, Any]] = []

    async def ask(method: str, path: str, json: Any) -> None:
        asked.append((path, json["status"]))

    monkeypatch.setattr(site.brokers[SECONDARY], "ask", ask)
    await Nemesis(site).strike(Fault(name=ONE_LEFT, process=SECONDARY, place=spared))
    assert asked[: len(others)] == [(f"queues/{each}", "Disabled") for each in others]
    assert asked[len(others) :] == [(f"queues/{each}", "Active") for each in others]

"""kill -9 of a broker under load (``tests/integration/durability``): all that it answered must hold
afterwards.

Four kinds of load: nothing but sends; messages with every kind of settlement; sessions with their
states; a client that sends again whatever was not answered, to a queue that detects duplicates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.integration.durability.history import Found, History
from tests.integration.durability.load import Receiver, Sender, Worker
from tests.integration.durability.load_parts import (
    SESSIONS,
    Holder,
    Resender,
    SessionHistory,
    SessionSender,
    seeded,
    state_of,
    take_session,
)
from tests.integration.durability.taking_stock import take_stock
from tests.integration.durability.test_kill_nine import come_back, verify_store
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.errors import TwinbusError

QUEUE = "orders"
LIVES = 5
BROKERS_MAX = 4
PATIENT = {"max_delivery_count": 1_000, "lock_duration_ms": 300_000}


@dataclass(frozen=True, slots=True)
class Load:
    """Who works while the broker is killed."""

    history: Callable[[], History]
    workers: tuple[type[Worker], ...]
    properties: dict[str, object]
    sessions: tuple[str, ...] = ()
    repeats: bool = False
    """What was not answered is sent again at the end."""
    life_s_max: float = 0.4
    """After the first answer."""


LOADS: dict[str, Load] = {
    "sends": Load(History, (Sender,), {}, life_s_max=0.02),
    "messages": Load(History, (Sender, Receiver), {}),
    "sessions": Load(SessionHistory, (SessionSender, Holder), {"requires_session": True}, SESSIONS),
    "repeats": Load(
        History, (Resender, Receiver), {"requires_duplicate_detection": True}, repeats=True
    ),
}


@dataclass(frozen=True, slots=True)
class Kills:
    """Lives of one broker, whose books are closed at the end of the last; then of another one."""

    load: str
    unit: str = "lives"
    rounds_max: int = BROKERS_MAX * LIVES
    has_processes: bool = True

    @property
    def name(self) -> str:
        return f"kill -9, {self.load}"

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for seed in range(self.rounds_max // LIVES):
            yield from _lives(LOADS[self.load], directory / str(seed), Random(seed))


def _lives(load: Load, directory: Path, random: Random) -> Iterator[list[str]]:
    history = load.history()
    directory.mkdir()
    with BrokerProcess(directory / "data") as broker:
        broker.create_queue(QUEUE, **{**PATIENT, **load.properties})
        for _ in range(LIVES - 1):
            try:
                _live_and_die(load, broker, history, random)
            except TwinbusError as error:
                yield [f"the broker does not come back: {error}"]
                return
            yield _taken(history.complaints)
        history.life += 1
        try:
            if load.repeats:
                _send_again(broker, history, random)
            history.check(_found(load, broker, history))
            broker.stop()
            verify_store(directory / "data")
        except (AssertionError, TwinbusError) as error:
            history.complaints.append(f"the books cannot be closed: {error}")
        yield _taken(history.complaints)


def _taken(complaints: list[str]) -> list[str]:
    taken, complaints[:] = complaints[:], []
    return taken


def _live_and_die(load: Load, broker: BrokerProcess, history: History, random: Random) -> None:
    history.life += 1
    arguments = (broker.port, broker.token(), QUEUE, history)
    workers = [kind(*arguments, seeded(random)) for kind in load.workers]
    for worker in workers:
        worker.start()
    assert workers[0].has_begun.wait(20), broker.log()
    time.sleep(random.uniform(0.0, load.life_s_max))
    broker.kill()
    for worker in workers:
        worker.finish()
    come_back(broker, random)


def _send_again(broker: BrokerProcess, history: History, random: Random) -> None:
    unanswered = [sent for sent in history.sent.values() if not sent.is_accepted]
    final = Resender(broker.port, broker.token(), QUEUE, history, seeded(random))
    final.start()
    deadline_s = time.monotonic() + 30
    while not all(sent.is_accepted for sent in unanswered) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    final.finish()


def _found(load: Load, broker: BrokerProcess, history: History) -> Found:
    if isinstance(history, SessionHistory):
        with connected(broker.port, broker.token()) as client:
            for session in load.sessions:
                take_session(client, QUEUE, session)
                history.state_found(session, state_of(client, QUEUE, session))
    return take_stock(broker, QUEUE, history, load.sessions)

"""kill -9 at random moments under load: nothing acknowledged is lost or comes back.

TWINBUS_KILLS       how many kills in all (50 unless told)
TWINBUS_KILL_SEED   the first seed; a failure prints the one to replay
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from urllib.error import HTTPError

import pytest

from tests.integration.durability.history import History
from tests.integration.durability.load import Receiver, Sender
from tests.integration.durability.taking_stock import take_stock
from tests.support.broker_process import BrokerProcess
from tests.support.queue_simulation.mutants import acknowledge_before_commit
from twinbus.broker.storage.data_directory import DataDirectory
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.mutation.planting import hand_on

KILLS = int(os.environ.get("TWINBUS_KILLS", "50"))
SEED = int(os.environ.get("TWINBUS_KILL_SEED", "1"))
KILLS_PER_TEST = 10
QUEUE = "orders"
# A broker that acknowledges too early loses something in almost every kill.
HASTY_KILLS_MAX = 20
# A life lasts this long after the first acknowledgement in it: a few commits to a few hundred.
LIFE_S_MIN, LIFE_S_MAX = 0.0, 0.4
# One restart in so many is killed as well, at any moment of it.
KILLED_RESTARTS = 0.2
RESTART_S_MAX = 0.6


def live_and_die(broker: BrokerProcess, history: History, random: Random) -> None:
    """One life of the broker: load, then the kill."""
    history.life += 1
    workers = [
        kind(broker.port, broker.token(), QUEUE, history, Random(random.getrandbits(32)))
        for kind in (Sender, Receiver)
    ]
    for worker in workers:
        worker.start()
    assert workers[0].has_begun.wait(20), broker.log()
    time.sleep(random.uniform(LIFE_S_MIN, LIFE_S_MAX))
    broker.kill()
    for worker in workers:
        worker.finish()


def come_back(broker: BrokerProcess, random: Random) -> None:
    """Restart; sometimes the restart is killed too."""
    if random.random() < KILLED_RESTARTS:
        broker.launch()
        time.sleep(random.uniform(0.0, RESTART_S_MAX))
        broker.kill()
    broker.restart()


def verify_store(data: Path) -> None:
    """Every row of the store is as it was written, and the books are right."""
    directory = DataDirectory(data)
    store = SqliteStore(directory.namespace_store_path("demo"))
    store.open()
    store.verify_all()
    store.close()
    directory.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, KILLS // KILLS_PER_TEST)))
def test_a_killed_broker_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    """M8 and M2: after kill -9 every acknowledged send and settlement holds."""
    command = f"TWINBUS_KILL_SEED={seed} TWINBUS_KILLS={KILLS_PER_TEST}"
    print(
        f"SEED={seed} REPLAY: {command} python -m pytest "
        "tests/integration/durability/test_kill_nine.py"
    )
    random, history = Random(seed), History()
    broker = BrokerProcess(tmp_path / "data")

    # Given a broker that is killed again and again while clients send and receive
    with broker:
        broker.create_queue(QUEUE, max_delivery_count=1_000, lock_duration_ms=300_000)
        for _ in range(min(KILLS, KILLS_PER_TEST)):
            live_and_die(broker, history, random)
            come_back(broker, random)

        # When it has come back for the last time
        history.life += 1
        found = take_stock(broker, QUEUE, history)
        assert broker.stop() == 0

    # Then everything is where the answers said that it would be
    history.check(found)
    print(history.acknowledged, {place: len(getattr(found, place)) for place in found.__slots__})
    assert history.complaints == []
    verify_store(tmp_path / "data")


def test_the_kills_see_a_broker_that_acknowledges_too_early(tmp_path: Path) -> None:
    """M8: the bug is planted, and a few kills are enough to find lost messages."""
    random, history = Random(SEED), History()
    environment = dict(os.environ)
    hand_on(acknowledge_before_commit, environment)
    broker = BrokerProcess(tmp_path / "data", environment=environment)

    # Given a broker that answers when the commit begins, killed until something is missing
    with broker:
        broker.create_queue(QUEUE, max_delivery_count=1_000, lock_duration_ms=300_000)
        there = acknowledged = 0
        for _ in range(HASTY_KILLS_MAX):
            # Counted life by life: sends that were stored and not acknowledged would hide a loss.
            there_before, acknowledged_before = there, acknowledged
            history.life += 1
            sender = Sender(broker.port, broker.token(), QUEUE, history, random)
            sender.start()
            assert sender.has_begun.wait(20), broker.log()
            broker.kill()
            sender.finish()
            broker.restart()
            try:
                counts = broker.queue(QUEUE)
            except HTTPError as error:
                if error.code != 404:
                    raise
                return  # The queue itself was acknowledged too early.
            there = counts["active_message_count"] + counts["scheduled_message_count"]
            acknowledged = history.acknowledged["sends"]
            if there - there_before < acknowledged - acknowledged_before:
                return

    pytest.fail("as many messages were there as had been acknowledged")


def test_the_load_does_what_the_kills_are_about(tmp_path: Path) -> None:
    """Every kind of send and settlement is acknowledged in a life of half a second."""
    history = History()
    with BrokerProcess(tmp_path / "data") as broker:
        broker.create_queue(QUEUE, max_delivery_count=1_000, lock_duration_ms=300_000)
        arguments = (broker.port, broker.token(), QUEUE, history)
        workers = [Sender(*arguments, Random(1)), Receiver(*arguments, Random(2))]
        for worker in workers:
            worker.start()
        time.sleep(0.5)
        for worker in workers:
            worker.finish()

    assert set(history.acknowledged) == {"sends", "complete", "abandon", "defer", "dead_letter"}
    assert any(sent.is_scheduled and sent.is_accepted for sent in history.sent.values())

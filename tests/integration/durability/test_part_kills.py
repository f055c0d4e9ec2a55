"""kill -9 under load, for sessions, topics, chains of forwards and duplicate detection.

TWINBUS_PART_KILLS  how many kills each story has (8 unless told)
TWINBUS_KILL_SEED   the seed; a failure prints the one to replay
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.integration.durability.history import Found, History
from tests.integration.durability.load import Receiver, Sender, Worker
from tests.integration.durability.load_parts import (
    SESSIONS,
    Holder,
    Publisher,
    Resender,
    SessionHistory,
    SessionSender,
    is_red,
    number_of,
    seeded,
    session_of,
    state_of,
    take_session,
)
from tests.integration.durability.taking_stock import (
    drained,
    drained_sessions,
    peeked,
    take_stock,
)
from tests.integration.durability.test_kill_nine import come_back, verify_store
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected

KILLS = int(os.environ.get("TWINBUS_PART_KILLS", "8"))
SEED = int(os.environ.get("TWINBUS_KILL_SEED", "1"))
LIFE_S_MAX = 0.4
PATIENT = {"max_delivery_count": 1_000, "lock_duration_ms": 300_000}


@pytest.fixture
def random() -> Random:
    print(f"SEED={SEED} REPLAY: TWINBUS_KILL_SEED={SEED} TWINBUS_PART_KILLS={KILLS}")
    return Random(SEED)


def killed(
    broker: BrokerProcess,
    random: Random,
    histories: list[History],
    workers: Callable[[], list[Worker]],
) -> None:
    """Again and again: load from these workers, kill, and come back."""
    for _ in range(KILLS):
        for history in histories:
            history.life += 1
        busy = workers()
        for worker in busy:
            worker.start()
        assert busy[0].has_begun.wait(20), broker.log()
        time.sleep(random.uniform(0.0, LIFE_S_MAX))
        broker.kill()
        for worker in busy:
            worker.finish()
        come_back(broker, random)
    for history in histories:
        history.life += 1


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_killed_broker_keeps_sessions_in_order_and_their_states(
    tmp_path: Path, random: Random
) -> None:
    """M3, M8: nothing lost or doubled, first deliveries in order, a state as it was left."""
    history = SessionHistory()
    with BrokerProcess(tmp_path / "data") as broker:
        # Given a queue with sessions, killed while somebody sends and somebody holds sessions
        broker.create_queue("orders", requires_session=True, **PATIENT)

        def workers() -> list[Worker]:
            arguments = (broker.port, broker.token(), "orders", history)
            return [kind(*arguments, seeded(random)) for kind in (SessionSender, Holder)]

        killed(broker, random, [history], workers)

        # When everything is taken out, session by session; no lock has outlived its broker
        with connected(broker.port, broker.token()) as client:
            for session in SESSIONS:
                take_session(client, "orders", session)
                history.state_found(session, state_of(client, "orders", session))
        found = take_stock(broker, "orders", history, SESSIONS)
        assert broker.stop() == 0

    # Then everything is where the answers said that it would be
    history.check(found)
    print(history.acknowledged, {place: len(getattr(found, place)) for place in found.__slots__})
    assert history.complaints == []
    assert history.acknowledged["complete"] and history.acknowledged["states"]
    verify_store(tmp_path / "data")


def test_a_killed_broker_keeps_every_copy_that_the_rules_let_in(
    tmp_path: Path, random: Random
) -> None:
    """M1, M3, M8: also of what was scheduled; a subscription's settlements are its own."""
    history, red = History(), History()
    with BrokerProcess(tmp_path / "data") as broker:
        # Given a topic with three kinds of subscriptions, and a receiver at one of them
        broker.create_topic("news", "all")
        rule = {"name": "red", "filter": {"kind": "sql", "expression": "colour = 'red'"}}
        broker.create_subscription("news", "red", rules=[rule], **PATIENT)
        broker.create_subscription("news", "held", requires_session=True)
        red_path = "news/subscriptions/red"

        def workers() -> list[Worker]:
            at, token = broker.port, broker.token()
            return [
                Publisher(at, token, "news", history, seeded(random), red=red),
                Receiver(at, token, red_path, red, seeded(random)),
            ]

        killed(broker, random, [history, red], workers)

        # When the last scheduled message was due, and everything is taken out
        where = f"/namespaces/{broker.namespace}/topics/news"
        until(lambda: not broker.admin("GET", where)["scheduled_message_count"], "all are due")
        reds = take_stock(broker, red_path, red, counts=broker.subscription("news", "red"))
        count = {name: broker.subscription("news", name) for name in ("all", "held")}
        with connected(broker.port, broker.token()) as client:
            alls = drained(client, "news/subscriptions/all", count["all"]["active_message_count"])
            held = drained_sessions(
                client, "news/subscriptions/held", count["held"]["active_message_count"], SESSIONS
            )
        assert broker.stop() == 0

    # Then each has what its rule lets in, once, and with it all that was acknowledged
    everything = Counter(label for label, _seq, _count in alls)
    acknowledged = {label for label, sent in history.sent.items() if sent.is_accepted}
    assert acknowledged and acknowledged <= set(everything) <= set(history.sent)
    assert set(everything.values()) == {1}
    assert Counter(label for label, _seq, _count in held) == everything
    for label in filter(is_red, everything):
        red.sent[label].is_accepted = True
    red.check(reds)
    assert red.complaints == []
    assert set(reds.everything()) <= set(filter(is_red, everything))
    _in_order(history, alls)
    for session in SESSIONS:
        _in_order(history, [each for each in held if session_of(each[0]) == session])
    assert any(sent.is_scheduled and sent.is_accepted for sent in history.sent.values())
    verify_store(tmp_path / "data")


def _in_order(history: History, messages: list[tuple[str, int, int]]) -> None:
    """What was sent at once came in the order in which it was sent."""
    at_once = [each[0] for each in messages if not history.sent[each[0]].is_scheduled]
    assert at_once == sorted(at_once, key=number_of)


def test_a_killed_broker_forwards_along_a_chain_without_loss_or_repeat(
    tmp_path: Path, random: Random
) -> None:
    """M3, M8: queue, topic, subscription, queue; a message is always in exactly one of them."""
    history = History()
    with BrokerProcess(tmp_path / "data") as broker:
        # Given a chain, with a sender at its beginning and a receiver at its end
        broker.create_queue("last", **PATIENT)
        broker.create_topic("middle")
        broker.create_subscription("middle", "on", forward_to="last")
        broker.create_queue("first", forward_to="middle")

        def workers() -> list[Worker]:
            at, token = broker.port, broker.token()
            return [
                Sender(at, token, "first", history, seeded(random)),
                Receiver(at, token, "last", history, seeded(random)),
            ]

        killed(broker, random, [history], workers)

        # When all has come to the end of the chain
        until(lambda: not broker.queue("first")["active_message_count"], "the first is empty")
        until(
            lambda: not broker.subscription("middle", "on")["active_message_count"],
            "the subscription is empty",
        )
        found: Found = take_stock(broker, "last", history)
        with connected(broker.port, broker.token()) as client:
            found.scheduled = peeked(client, "first")
        assert broker.stop() == 0

    # Then everything is where the answers said that it would be
    history.check(found)
    print(history.acknowledged, {place: len(getattr(found, place)) for place in found.__slots__})
    assert history.complaints == []
    assert found.scheduled and history.acknowledged["complete"]
    verify_store(tmp_path / "data")


def test_a_client_that_sends_again_after_every_kill_is_heard_exactly_once(
    tmp_path: Path, random: Random
) -> None:
    """M3, M8: an id and its message are on disk together, or neither is."""
    history = History()
    with BrokerProcess(tmp_path / "data") as broker:
        # Given a queue that detects duplicates, and a client that repeats what was not answered
        broker.create_queue("orders", requires_duplicate_detection=True, **PATIENT)

        def workers() -> list[Worker]:
            arguments = (broker.port, broker.token(), "orders", history)
            return [kind(*arguments, seeded(random)) for kind in (Resender, Receiver)]

        killed(broker, random, [history], workers)

        # When it has sent everything again for the last time
        unanswered = [sent for sent in history.sent.values() if not sent.is_accepted]
        final = Resender(broker.port, broker.token(), "orders", history, seeded(random))
        final.start()
        until(lambda: all(sent.is_accepted for sent in unanswered), "all were answered")
        final.finish()
        found = take_stock(broker, "orders", history)
        assert broker.stop() == 0

    # Then every id was there once: no message came twice, and none is missing
    history.check(found)
    print(history.acknowledged, {place: len(getattr(found, place)) for place in found.__slots__})
    assert history.complaints == []
    assert history.acknowledged["complete"] and found.waiting
    verify_store(tmp_path / "data")

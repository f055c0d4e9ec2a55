"""Looking at messages costs what is shown, and others are read to meanwhile (cases 153 to 155)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.adversarial.filling import BATCH_FORMAT, fill
from tests.adversarial.talk import Told, ask, longs, put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Int, Long, Symbol, Timestamp
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import DataSections, Message
from twinbus.amqp.message.properties import Properties

# How many scheduled messages a session peek has to look through; the finding had 100,000.
SCHEDULED_COUNT = int(os.environ.get("TWINBUS_SCHEDULED_COUNT", "20000"))
PEEKER_COUNT = 4
# A session that begins like the ones in the queue, so that nothing is decided by its first letter.
ABSENT = "session-none"


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that nobody else uses, because its CPU time is counted."""
    data: Path = tmp_path_factory.mktemp("peeks") / "data"
    with BrokerProcess(data, queues=()) as running:
        yield running


def cpu_s(broker: BrokerProcess) -> float:
    """CPU time that the broker has used, in user mode and in the kernel."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watched_memory(broker: BrokerProcess) -> Iterator[list[int]]:
    """The broker's memory, every few milliseconds."""
    samples = [broker.memory_bytes()]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.002):
            samples.append(broker.memory_bytes())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield samples
    finally:
        is_over.set()
        watching.join(5)


def peek(
    client: WireClient, queue: str, first: int = 1, count: int = 1, session: str | None = None
) -> Told:
    body = {"from-sequence-number": Long(first), "message-count": Int(count)}
    if session is not None:
        body["session-id"] = session
    return ask(client, queue, "peek-message", body)


def schedule(broker: BrokerProcess, queue: str, count: int, body: bytes = b"x" * 200) -> None:
    """So many messages of many sessions for tomorrow."""
    due = Timestamp(int(time.time() * 1_000) + 86_400_000)
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): due}
    with connected(broker.port, broker.token()) as client:
        link = client.attach_sender(queue)
        for start in range(0, count, 1_000):
            messages = [
                Message(
                    properties=Properties(group_id=f"session-{number % 100}"),
                    message_annotations=annotations,
                    body=body,
                ).encode()
                for number in range(start, min(count, start + 1_000))
            ]
            batch = Message(body=DataSections(tuple(messages))).encode()
            assert client.send(link, batch, message_format=BATCH_FORMAT) == Accepted()


def test_case_153_a_peek_of_one_costs_one_message(own_broker: BrokerProcess) -> None:
    """M3, M13: not all those that are read with it."""
    few, many = own_broker.fresh_queue(), own_broker.fresh_queue()
    fill(own_broker, few, 1, b"x" * 100)
    fill(own_broker, many, 4_000, b"x" * 100)
    costs = {}
    with connected(own_broker.port, own_broker.token()) as client:
        for queue in (few, many):
            assert peek(client, queue).status == 200
            before = cpu_s(own_broker)
            for _ in range(300):
                assert len(peek(client, queue).body["messages"]) == 1
            costs[queue] = (cpu_s(own_broker) - before) / 300 * 1_000
    print({queue: f"{ms:.2f} ms" for queue, ms in costs.items()})
    assert costs[many] <= 3 * costs[few] + 0.5, costs


def test_case_154_a_session_peek_does_not_keep_other_queues_waiting(
    own_broker: BrokerProcess,
) -> None:
    """M3, M13: another queue's first message is read while scheduled ones are looked through."""
    held = own_broker.fresh_queue(requires_session=True)
    schedule(own_broker, held, SCHEDULED_COUNT)
    other = own_broker.fresh_queue()
    with connected(own_broker.port, own_broker.token()) as client:
        put(client, other, b"first")

    def look(client: WireClient) -> float:
        client.timeout_s = 60
        assert peek(client, held, session=ABSENT).status == 204
        return time.monotonic()

    clients = [connected(own_broker.port, own_broker.token()) for _ in range(PEEKER_COUNT + 1)]
    with ThreadPoolExecutor(PEEKER_COUNT) as pool:
        receiving = clients.pop()
        receiving.timeout_s = 60
        began = time.monotonic()
        looks = [pool.submit(look, client) for client in clients]
        time.sleep(0.05)
        asked = time.monotonic()
        receiving.attach_receiver(other).grant(1)
        receiving.wait_for(DeliveryReceived)
        came = time.monotonic()
        ends = sorted(each.result() for each in looks)
    for client in (receiving, *clients):
        client.close()
    print(
        f"first message after {came - asked:.3f} s, "
        f"peeks after {', '.join(f'{end - began:.3f}' for end in ends)} s"
    )
    assert came < ends[0], "the first message waited for a peek"


def test_case_154_a_session_peek_finds_what_is_behind_all_the_others(
    own_broker: BrokerProcess,
) -> None:
    """M3: looking in small steps misses nothing."""
    queue = own_broker.fresh_queue(requires_session=True)
    schedule(own_broker, queue, 2_050)
    with connected(own_broker.port, own_broker.token()) as client:
        found = peek(client, queue, count=50, session="session-7").body["messages"]
        numbers = [_number(each["message"]) for each in found]
        assert numbers == [8 + 100 * turn for turn in range(21)]
        found = peek(client, queue, first=909, count=3, session="session-7").body["messages"]
        assert [_number(each["message"]) for each in found] == [1_008, 1_108, 1_208]


def test_case_155_many_large_scheduled_messages_are_cancelled_in_little_memory(
    own_broker: BrokerProcess,
) -> None:
    """M3, M13: cancelling needs their size, not all their bytes at once."""
    queue = own_broker.fresh_queue()
    count = 400
    body = os.urandom(200_000)
    due = Timestamp(int(time.time() * 1_000) + 86_400_000)
    message = Message(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): due}, body=body
    ).encode()
    with connected(own_broker.port, own_broker.token()) as client:
        client.timeout_s = 60
        link = client.attach_sender(queue)
        for _ in range(count):
            assert client.send(link, message) == Accepted()
        numbers = longs(*range(1, count + 1))
        with watched_memory(own_broker) as samples:
            told = ask(client, queue, "cancel-scheduled-message", {"sequence-numbers": numbers})
        assert told.status == 200
    grown = max(samples) - samples[0]
    print(f"{grown >> 20} MB to cancel {count * len(body) >> 20} MB, {len(samples)} samples")
    assert own_broker.counts(queue)["scheduled_message_count"] == 0
    assert grown < 40 << 20, f"{grown >> 20} MB to cancel {count * len(body) >> 20} MB"


def _number(message: bytes) -> int:
    annotations = Message.decode(message).message_annotations
    assert annotations is not None
    return int(annotations["x-opt-sequence-number"])

"""A large body is checked in steps, each within a turn (M13)."""

from __future__ import annotations

import math
import time

import pytest

from tests.support.amqp.worst_inputs import CROWDS, a_list, described
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.amqp.message.message import DataSections, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.message.repeated_layout import RepeatedLayout
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.server.ingest import (
    FORMAT_BATCH,
    FORMAT_MESSAGE,
    Ingestion,
    ingest,
    ingest_run,
    plain_messages,
)
from twinbus.common.clock import Instant
from twinbus.encoding.ping import PING_CONTENT_TYPE, ping

NOW = Instant(5.0, 1_700_000_000_000)
QUEUE = QueueDescription(path="q")
LARGE = described(0x77, CROWDS["short strings"](30_000))
SMALL = described(0x77, b"\xa1\x01a")


def begun(payload: bytes, message_format: int = FORMAT_MESSAGE) -> Ingestion:
    return Ingestion(payload, message_format, QUEUE, DEFAULT_LIMITS, NOW)


def test_no_step_of_a_large_body_holds_the_loop() -> None:
    """M13: with no time left each call does one step, of 2 ms at most."""
    ingestion = begun(LARGE)
    seconds = []
    is_done = False
    while not is_done:
        began = time.thread_time()
        is_done = ingestion.go_on(-math.inf)
        seconds.append(time.thread_time() - began)
    assert len(seconds) > len(LARGE) // 8_192
    assert sorted(seconds)[len(seconds) // 2] < 0.004
    assert len(ingestion.taken.messages) == 1


def test_what_is_taken_in_steps_is_what_is_taken_at_once() -> None:
    batch = Message(body=DataSections((SMALL, LARGE, SMALL, LARGE))).encode()
    ingestion = begun(batch, FORMAT_BATCH)
    while not ingestion.go_on(-math.inf):
        pass
    at_once = ingest(batch, FORMAT_BATCH, QUEUE, DEFAULT_LIMITS, NOW)

    records = [each.record for each in ingestion.taken.messages]
    assert records == [each.record for each in at_once.messages]
    assert len(records) == 4


def test_a_wrong_body_is_refused_at_its_last_step() -> None:
    good = a_list([b"\xa1\x01a"] * 20_000)
    ingestion = begun(described(0x77, good[:-1] + b"\xff"))

    def take_all() -> None:
        while not ingestion.go_on(-math.inf):
            pass

    with pytest.raises(DecodeError, match="UTF-8"):
        take_all()
    assert ingestion.taken.messages == []


def test_a_run_ends_before_a_large_body() -> None:
    plain: RepeatedLayout = plain_messages()
    assert len(ingest_run([SMALL, LARGE], QUEUE, DEFAULT_LIMITS, NOW, plain)) == 1
    assert len(ingest_run([SMALL, SMALL], QUEUE, DEFAULT_LIMITS, NOW, plain)) == 2


def test_a_run_ends_before_the_content_type_of_a_ping() -> None:
    """M7: a ping among others is found, and a message that only mentions the type is ordinary."""
    plain: RepeatedLayout = plain_messages()
    mentions = Message(properties=Properties(subject="x"), body=PING_CONTENT_TYPE.encode()).encode()
    pretends = Message(properties=Properties(content_type=PING_CONTENT_TYPE), body=b"x").encode()
    for special in (ping("1"), pretends):
        assert len(ingest_run([SMALL, special, SMALL], QUEUE, DEFAULT_LIMITS, NOW, plain)) == 1
    assert len(ingest_run([SMALL, mentions], QUEUE, DEFAULT_LIMITS, NOW, plain)) == 2


@pytest.mark.parametrize("name", ["ping", "message"])
def test_a_ping_within_a_batch_is_found_wherever_it_is(name: str) -> None:
    """M7: bodies are not searched, properties are."""
    special = {"ping": ping("1"), "message": SMALL}[name]
    batch = Message(body=DataSections((SMALL, special, SMALL))).encode()
    taken = ingest(batch, FORMAT_BATCH, QUEUE, DEFAULT_LIMITS, NOW)
    assert (len(taken.messages), taken.ping_count) == ((2, 1) if name == "ping" else (3, 0))


def test_a_run_of_dear_messages_ends_with_the_turn() -> None:
    """M13: what is left of it has turns of its own."""
    annotations = {Symbol(f"a{number}"): number for number in range(200)}
    dear = Message(message_annotations=annotations, properties=Properties(), body=b"x").encode()
    plain: RepeatedLayout = plain_messages()
    assert len(ingest_run([dear] * 8, QUEUE, DEFAULT_LIMITS, NOW, plain)) == 8
    assert len(ingest_run([dear] * 8, QUEUE, DEFAULT_LIMITS, NOW, plain, -math.inf)) == 1

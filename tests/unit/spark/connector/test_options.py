"""The options of the connector: one checked value for reads, one for writes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from twinbus.errors import ConfigurationError
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.connector.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    Mode,
    ReadOptions,
    WriteOptions,
    check_read_options,
)

NAMESPACE = {"connectionStringEnv": "ORDERS"}


def read(is_streaming: bool = True, **options: str) -> ReadOptions:
    return ReadOptions.from_options({**NAMESPACE, **options}, is_streaming=is_streaming)


def write(**options: str) -> WriteOptions:
    return WriteOptions.from_options({**NAMESPACE, **options})


# -- what to read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"queue": "Orders"}, ("orders",)),
        ({"queues": "orders, invoices,ORDERS"}, ("orders", "invoices")),
        ({"topic": "news", "subscription": "all"}, ("news/Subscriptions/all",)),
        ({"queue": "orders", "subQueue": "deadLetter"}, ("orders/$DeadLetterQueue",)),
        ({"queue": "orders", "subqueue": "NONE"}, ("orders",)),
        (
            {"topic": "news", "subscription": "all", "subQueue": "deadletter"},
            ("news/Subscriptions/all/$DeadLetterQueue",),
        ),
        ({"QUEUE": "orders"}, ("orders",)),
    ],
)
def test_options_name_what_is_read(options: dict[str, str], paths: tuple[str, ...]) -> None:
    assert read(**options).paths == paths


def test_a_pattern_chooses_among_the_queues_that_exist() -> None:
    options = read(queuePattern="Orders-?/*", subQueue="deadLetter")

    found = options.paths_among(["orders-b/x", "orders-a/y/z", "orders-10/x", "other", "orders-a"])

    assert options.paths == ()
    assert found == ("orders-a/y/z/$DeadLetterQueue", "orders-b/x/$DeadLetterQueue")


def test_a_pattern_is_no_regular_expression() -> None:
    assert read(queuePattern="a.b").paths_among(["a.b", "axb"]) == ("a.b",)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "Set exactly one of queue, queues"),
        ({"queue": "a", "queues": "b"}, "'queue' and 'queues' .*Set exactly one"),
        ({"topic": "a"}, "'topic' and 'subscription'"),
        ({"queue": "a", "subscription": "b"}, "'topic' and 'subscription'"),
        ({"queue": "a b"}, "a b"),
        ({"queue": "orders/$management"}, "management"),
        ({"queues": "a,,b"}, "empty"),
        ({"queuePattern": "[a]"}, "'queuePattern'"),
        ({"queue": "a", "subQueue": "transfer"}, "'subQueue': 'transfer'. Use none or deadLetter"),
    ],
)
def test_what_to_read_must_be_clear(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        read(**options)


# -- how to read --------------------------------------------------------------------------


def test_a_stream_has_defaults() -> None:
    options = read(queue="orders")

    assert options == ReadOptions(
        namespace=NamespaceRef.of_env("ORDERS"),
        paths=("orders",),
        mode=Mode.PEEK_LOCK,
        messages_per_trigger_max=10_000,
        bytes_per_trigger_max=64 * 1024 * 1024,
        wait_s=900.0,
        receivers_per_queue=1,
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_stream_can_be_told() -> None:
    options = read(
        queue="orders",
        receivemode="ReceiveAndDelete",
        maxmessagespertrigger="100000",
        maxBytesPerTrigger="1g",
        maxWaitTime="2.5",
        receiversPerQueue="4",
        driverHost="10.0.0.7",
    )

    assert options.mode is Mode.RECEIVE_AND_DELETE
    assert options.messages_per_trigger_max == 100_000
    assert options.bytes_per_trigger_max == 1 << 30
    assert options.wait_s == 2.5
    assert (options.receivers_per_queue, options.driver_host) == (4, "10.0.0.7")


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("64m", 64 << 20), ("64 MB", 64 << 20), ("2k", 2048), ("5000", 5000)]
)
def test_sizes_are_written_as_people_write_them(text: str, size_bytes: int) -> None:
    assert read(queue="a", maxBytesPerTrigger=text).bytes_per_trigger_max == size_bytes


def test_a_batch_looks_and_takes_nothing() -> None:
    options = read(is_streaming=False, queue="a", startingSequenceNumber="41", maxMessages="7")

    assert options.mode is Mode.PEEK
    assert (options.starting_sequence_number, options.messages_max) == (41, 7)
    assert read(is_streaming=False, queue="a", receiveMode="PEEK").messages_max is None


@pytest.mark.parametrize(
    ("is_streaming", "options", "sentence"),
    [
        (False, {"receiveMode": "receiveAndDelete"}, "receiveMode is peek"),
        (False, {"receiveMode": "peekLock"}, "receiveMode is peek"),
        (False, {"maxMessagesPerTrigger": "5"}, "'maxMessagesPerTrigger' is for a stream only"),
        (True, {"maxMessages": "5"}, "'maxMessages' is for a batch only"),
        (True, {"receiveMode": "peek"}, "'receiveMode': 'peek'. Use peekLock or"),
        (True, {"maxMessagesPerTrigger": "0"}, "'maxMessagesPerTrigger' .*1 to 100,000"),
        (True, {"maxMessagesPerTrigger": "100001"}, "'maxMessagesPerTrigger' .*1 to 100,000"),
        (True, {"maxMessagesPerTrigger": "many"}, "'maxMessagesPerTrigger' .*whole number"),
        (True, {"maxMessagesPerTrigger": "٣"}, "'maxMessagesPerTrigger' .*whole number"),
        (True, {"maxBytesPerTrigger": "64x"}, "'maxBytesPerTrigger' .*bytes.*64m"),
        (True, {"maxBytesPerTrigger": "2g"}, "'maxBytesPerTrigger' .*from 1 to"),
        (True, {"maxWaitTime": "soon"}, "'maxWaitTime' .*seconds"),
        (True, {"maxWaitTime": "nan"}, "'maxWaitTime' .*from 0.1 to"),
        (True, {"receiversPerQueue": "65"}, "'receiversPerQueue' .*1 to 64"),
    ],
)
def test_values_outside_their_limits_are_refused(
    is_streaming: bool, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        read(is_streaming=is_streaming, queue="a", **options)


# -- names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxmessagepertrigger", "maxMessagesPerTrigger"),
        ("conectionStringEnv", "connectionStringEnv"),
        ("que", "queue"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"option .*'{name}'. Did you mean '{nearest}'"):
        read(queue="orders", **{name: "5"})


def test_an_option_like_no_other_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match=r"option .*'zzz'") as caught:
        read(queue="orders", zzz="5")
    assert all(name in caught.value.hint for name in READ_OPTIONS)
    assert "connectionStringFile" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "a", "zzz": "5"}, "option .*'zzz'"),
        ({"queue": "a", "receiveMode": "x"}, "'receiveMode': 'x'. Use peekLock or"),
        ({"queue": "a", "maxMessages": "x"}, "'maxMessages' .*whole number"),
        ({"queue": "a", "maxMessages": "1", "maxWaitTime": "1"}, "is for a stream only"),
        ({"queue": "a", "maxWaitTime": "x"}, "'maxWaitTime' .*seconds"),
        ({"topic": "a"}, "'topic' and 'subscription'"),
    ],
)
def test_a_load_refuses_what_neither_a_stream_nor_a_batch_has(
    options: dict[str, str], sentence: str
) -> None:
    """S1: Spark does not say in load() which of the two it will be."""
    with pytest.raises(ConfigurationError, match=sentence):
        check_read_options({"connectionStringEnv": "NAME", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"maxWaitTime": "1", "receiveMode": "receiveAndDelete"},
        {"maxMessages": "1"},
        {"receiveMode": "Peek"},
        {},
    ],
)
def test_a_load_takes_what_one_of_the_two_has(options: dict[str, str]) -> None:
    check_read_options({"connectionStringEnv": "NAME", "queue": "orders", **options})


def test_the_value_of_an_unknown_option_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(queue="orders", conectionString="Endpoint=sb://x;SharedAccessKey=canary")

    assert "canary" not in str(caught.value)


def test_a_path_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ConfigurationError, match="Use the option 'queue' or 'topic'"):
        read(path="orders")


def test_options_of_spark_itself_are_left_alone() -> None:
    assert write(queue="orders", checkpointLocation="somewhere").destination == "orders"


def test_a_namespace_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="connectionStringEnv"):
        ReadOptions.from_options({"queue": "orders"}, is_streaming=True)


def test_every_option_has_a_meaning() -> None:
    assert all(READ_OPTIONS.values()) and all(WRITE_OPTIONS.values())


# -- writing ------------------------------------------------------------------------------


def test_rows_go_to_a_queue_or_a_topic_or_where_they_say() -> None:
    assert write(queue="Orders").destination == "orders"
    assert write(topic="news").destination == "news"
    assert write().destination is None


def test_a_write_can_be_told() -> None:
    options = write(queue="a", sendtimeout="5", batchesInFlight="1")

    assert (options.send_timeout_s, options.batches_in_flight_max) == (5.0, 1)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "a", "topic": "b"}, "'queue' and 'topic'"),
        ({"queue": "a/$DeadLetterQueue"}, r"\$DeadLetterQueue"),
        ({"queue": "a", "maxMessagesPerTrigger": "5"}, "option .*'maxMessagesPerTrigger'"),
        ({"queue": "a", "sendTimeout": "0"}, "'sendTimeout' .*from 0.1"),
        ({"queue": "a", "batchesInFlight": "0"}, "'batchesInFlight' .*1 to 64"),
    ],
)
def test_a_write_that_is_not_clear_is_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        write(**options)


@pytest.mark.parametrize("name", ["queue", "subQueue", "receiveMode", "nonsense", "caFile"])
def test_a_secret_in_the_wrong_option_is_not_repeated(name: str) -> None:
    secret = "Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    options = {"connectionStringEnv": "NAME", "queue": "orders", name: secret}
    with pytest.raises(ConfigurationError, match="a connection string") as raised:
        ReadOptions.from_options(options, is_streaming=True)
    assert "c2VjcmV0" not in str(raised.value)

"""The sink on a real Spark session, against a real broker: what rows become, what is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import SparkPair
from tests.support.amqp.strategies import typed
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.codec.types import Int, Long, Timestamp, UByte
from twinbus.amqp.message.message import AmqpValue
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import ReceiveMode
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.message import BrokeredMessage
from twinbus.spark.connector.message_columns import schema, to_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = pytest.mark.timeout(300)

QUERY_S_MAX = 60


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    from twinbus.spark.connector.data_source import ServiceBusDataSource

    spark.dataSource.register(ServiceBusDataSource)
    return spark


def write(rows: DataFrame, pair: SparkPair, **options: str) -> None:
    writing = rows.write.format("servicebus").mode("append")
    writing.option("connectionStringFile", str(pair.primary_file)).options(**options).save()


def streamed(rows: DataFrame, pair: SparkPair, scratch: Path, **options: str) -> DataStreamWriter:
    return (
        rows.writeStream.format("servicebus")
        .option("connectionStringFile", str(pair.primary_file))
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
    )


def finished(writing: DataStreamWriter) -> None:
    query = writing.start()
    try:
        assert query.awaitTermination(QUERY_S_MAX)
    finally:
        query.stop()


def taken(broker: BrokerProcess, path: str) -> list[BrokeredMessage]:
    """Everything that is there, as an application receives it."""
    return [decode_message(each) for each in asyncio.run(_taken(broker, path))]


async def _taken(broker: BrokerProcess, path: str) -> list[ReceivedMessage]:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    receiver = driver.receiver(path, mode=ReceiveMode.RECEIVE_AND_DELETE)
    found: list[ReceivedMessage] = []
    while more := await receiver.receive(1_000, wait_s=0.3):
        found += more
    await driver.close()
    return found


def bodies(broker: BrokerProcess, path: str) -> list[bytes]:
    return [each.body for each in taken(broker, path)]


# -- what rows become ---------------------------------------------------------------------


def test_a_batch_write_sends_every_row_once(session: SparkSession, pair: SparkPair) -> None:
    queue = pair.primary.fresh_queue()
    rows = session.range(5_000).selectExpr("cast(id as string) as body")

    write(rows.repartition(2), pair, queue=queue)

    found = Counter(bodies(pair.primary, queue))
    assert found == Counter(str(number).encode() for number in range(5_000))


def test_every_column_becomes_its_part_of_the_message(
    session: SparkSession, pair: SparkPair
) -> None:
    queue = pair.primary.fresh_queue()
    rows = session.sql(
        """
        select unhex('00FF') as body, 'm-1' as messageId, 'c-1' as correlationId,
            's-1' as sessionId, 's-1' as partitionKey, 'order' as subject,
            'text/plain' as contentType, 'gzip' as contentEncoding, 'billing' as to,
            'answers' as replyTo, 'r-1' as replyToSessionId, 60000L as timeToLive, 7 as priority,
            map('a', '5', 'b', 'x', 'c', '2027-01-01T00:00:00Z', 'd', null) as properties,
            map('a', 'int', 'c', 'timestamp') as propertyTypes
        """
    )

    write(rows, pair, queue=queue)

    [message] = taken(pair.primary, queue)
    assert (message.body, message.message_id, message.correlation_id) == (b"\x00\xff", "m-1", "c-1")
    assert (message.session_id, message.partition_key, message.subject) == ("s-1", "s-1", "order")
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert (message.to, message.reply_to, message.reply_to_session_id) == (
        *("billing", "answers", "r-1"),
    )
    assert (message.time_to_live, message.priority) == (timedelta(seconds=60), 7)
    assert typed(message.properties) == typed(
        {"a": Int(5), "b": "x", "c": Timestamp(1_798_761_600_000), "d": None}
    )


def test_rows_choose_their_own_destination(session: SparkSession, pair: SparkPair) -> None:
    usual, other = pair.primary.fresh_queue(), pair.primary.fresh_queue()
    topic = pair.primary.fresh_topic("all")
    rows = session.createDataFrame(
        [("1", None), ("2", other.upper()), ("3", topic), ("4", None)],
        "body string, destination string",
    )

    write(rows.coalesce(1), pair, queue=usual)

    assert bodies(pair.primary, usual) == [b"1", b"4"]
    assert bodies(pair.primary, other) == [b"2"]
    assert bodies(pair.primary, f"{topic}/Subscriptions/all") == [b"3"]


def test_a_topic_is_written_to_like_a_queue(session: SparkSession, pair: SparkPair) -> None:
    topic = pair.primary.fresh_topic("first", "second")

    write(session.sql("select 'news' as body"), pair, topic=topic)

    for name in ("first", "second"):
        assert bodies(pair.primary, f"{topic}/Subscriptions/{name}") == [b"news"]


def test_a_schedule_is_kept(session: SparkSession, pair: SparkPair) -> None:
    queue = pair.primary.fresh_queue()
    rows = session.sql(
        "select 'later' as body, timestamp'2099-01-01 00:00:00' as scheduledEnqueueTime"
    )

    write(rows, pair, queue=queue)

    assert pair.primary.queue(queue)["scheduled_message_count"] == 1
    assert taken(pair.primary, queue) == []


def kinds() -> list[BrokeredMessage]:
    """One message of every kind that a queue can hold."""
    properties = {"i": Int(5), "l": Long(5), "u": UByte(5), "s": "5", "b": b"\x00", "n": None}
    return [
        BrokeredMessage(b"plain"),
        BrokeredMessage(
            b"", properties=properties, session_id="s", time_to_live=timedelta(days=99)
        ),
        BrokeredMessage(AmqpValue({"a": [Int(1), "x"]}), subject="value", message_id=7),
        BrokeredMessage(None, correlation_id=b"\x01"),
    ]


def test_what_a_source_read_is_written_unchanged(session: SparkSession, pair: SparkPair) -> None:
    """P12: all kinds of messages, with the columns of the source as they are."""
    origin, target = pair.primary.fresh_queue(), pair.primary.fresh_queue()
    asyncio.run(_send(pair.primary, origin, kinds()))
    batch = to_batch(asyncio.run(_taken(pair.primary, origin)))
    assert session.createDataFrame([], schema()).columns == batch.schema.names

    import pyarrow as pa

    write(session.createDataFrame(pa.table(batch)).coalesce(1), pair, queue=target)

    for before, after in zip(kinds(), taken(pair.primary, target), strict=True):
        assert typed(after.properties) == typed(before.properties)
        assert after.body == before.body
        assert (after.session_id, after.subject) == (before.session_id, before.subject)
        assert after.correlation_id == before.correlation_id
        if not isinstance(before.message_id, str):
            assert after.message_id == before.message_id
        assert after.time_to_live == before.time_to_live


async def _send(broker: BrokerProcess, path: str, messages: list[BrokeredMessage]) -> None:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    for message in messages:
        parcel = OutgoingMessage(encode_message(message, now_ms=now_ms))
        await driver.sender(path).send([parcel], timeout_s=30)
    await driver.close()


# -- streams ------------------------------------------------------------------------------


@pytest.fixture
def files(session: SparkSession, tmp_path: Path) -> Path:
    """Parquet files, one for each micro-batch."""
    where = tmp_path / "rows"
    rows = session.range(3_000).selectExpr("cast(id as string) as body", "id % 2 as half")
    rows.repartition(3).write.parquet(str(where))
    return where


def test_a_stream_is_written_and_goes_on_where_it_was(
    session: SparkSession, pair: SparkPair, files: Path, tmp_path: Path
) -> None:
    queue, other = pair.primary.fresh_queue(), pair.primary.fresh_queue()
    rows = (
        session.readStream.schema("body string, half bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(files))
        .selectExpr("body", f"if(half = 0, '{other}', null) as destination")
    )

    finished(streamed(rows, pair, tmp_path, queue=queue))
    finished(streamed(rows, pair, tmp_path, queue=queue))

    found = Counter(bodies(pair.primary, queue) + bodies(pair.primary, other))
    assert found == Counter(str(number).encode() for number in range(3_000))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]"))) == 3


# -- refused when it is planned -----------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("'x' as body, 5 as mesageId", {"queue": "a"}, "Did you mean 'messageId'"),
        ("'x' as body", {"queue": "a", "batchesInFlite": "5"}, "Did you mean 'batchesInFlight'"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_a_task_starts(
    session: SparkSession, pair: SparkPair, columns: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        write(session.sql(f"select {columns}"), pair, **options)


def test_nothing_is_replaced(session: SparkSession, pair: SparkPair) -> None:
    rows = session.sql("select 'x' as body").write.format("servicebus").mode("overwrite")

    with pytest.raises(Exception, match=r"ConfigurationError.*cannot be replaced"):
        rows.option("connectionStringFile", str(pair.primary_file)).option("queue", "a").save()


# -- refused by a task --------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_named(session: SparkSession, pair: SparkPair) -> None:
    with pytest.raises(Exception, match="'nowhere' failed"):
        write(session.sql("select 'x' as body"), pair, queue="nowhere")


def test_a_message_too_large_is_named_and_its_partition_stays(
    session: SparkSession, pair: SparkPair
) -> None:
    queue = pair.primary.fresh_queue()
    rows = session.range(100).selectExpr(
        "concat('m-', id) as messageId", "if(id = 77, repeat('x', 300000), 'small') as body"
    )

    with pytest.raises(Exception, match=r"'m-77' has 300,\d{3} bytes; 'queue-"):
        write(rows.coalesce(1), pair, queue=queue)

    assert pair.primary.counts(queue)["active_message_count"] == 0


def test_a_task_goes_on_when_the_queue_takes_messages_again(
    session: SparkSession, pair: SparkPair
) -> None:
    queue = pair.primary.fresh_queue()
    made = pair.primary.admin("POST", FAULTS, {"kind": "cannot-send", "scope": {"entity": queue}})
    mended = threading.Thread(target=_mend_when_hit, args=(pair.primary, made["id"]))
    mended.start()

    write(session.sql("select 'x' as body"), pair, queue=queue)

    mended.join(QUERY_S_MAX)
    assert bodies(pair.primary, queue) == [b"x"]


FAULTS = "/namespaces/east/faults"


def _mend_when_hit(broker: BrokerProcess, fault: str) -> None:
    for _ in range(10 * QUERY_S_MAX):
        [found] = [each for each in broker.admin("GET", FAULTS) if each["id"] == fault]
        if found["hit_count"] >= 2:
            break
        time.sleep(0.1)
    broker.admin("DELETE", f"{FAULTS}/{fault}")

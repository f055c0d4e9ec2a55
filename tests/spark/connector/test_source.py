"""``format("servicebus")`` on a real Spark session, against a real broker process."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.connector.scene import fill, ids, left, taken
from twinbus.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, StreamingQuery

QUERY_S_MAX = 100
WITH_SESSIONS = "with-sessions"


class Bench:
    """A session, a broker, and a directory of one test."""

    def __init__(self, spark: SparkSession, pair: SparkPair, directory: Path) -> None:
        self.spark, self.pair, self.directory = spark, pair, directory
        self.broker = pair.primary

    def options(self, **options: object) -> dict[str, str]:
        named = self.pair.primary_ref.to_options()
        return {**named, **{name: str(value) for name, value in options.items()}}

    def stream(self, name: str = "servicebus", **options: object) -> DataFrame:
        reader: DataStreamReader = self.spark.readStream.format(name)
        return reader.options(**self.options(**options)).load()

    def batch(self, **options: object) -> DataFrame:
        return self.spark.read.format("servicebus").options(**self.options(**options)).load()

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    @property
    def output(self) -> str:
        return str(self.directory / "output")

    def to_parquet(self, frame: DataFrame) -> StreamingQuery:
        """Take what is there, and write it."""
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start(self.output)
        )
        return ended(query)

    def written(self) -> list[str]:
        """The ids in the output, as often as they are there."""
        rows = self.spark.read.parquet(self.output).select("messageId").collect()
        return sorted(row.messageId for row in rows)

    def each_batch(
        self, frame: DataFrame, work: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        query = (
            frame.writeStream.foreachBatch(work)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        return ended(query)


def ended(query: StreamingQuery) -> StreamingQuery:
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise TimeoutError("the query did not end")
    return query


@pytest.fixture
def bench(spark: SparkSession, pair: SparkPair, tmp_path: Path) -> Bench:
    from tests.spark.connector.stumbling import StumblingSource

    register(spark)
    spark.dataSource.register(StumblingSource)
    return Bench(spark, pair, tmp_path)


def test_a_stream_to_parquet_takes_everything_and_leaves_nothing(bench: Bench) -> None:
    """S1 and S2: several queues, bounded batches, AvailableNow; the queues are empty then."""
    queues = [bench.broker.fresh_queue() for _ in range(3)]
    for index, queue in enumerate(queues):
        fill(bench.broker, queue, ids(700, first=index * 1_000))
    query = bench.to_parquet(bench.stream(queues=",".join(queues), maxMessagesPerTrigger=900))

    expected = sorted([*ids(700), *ids(700, first=1_000), *ids(700, first=2_000)])
    assert bench.written() == expected
    assert [left(bench.broker, queue) for queue in queues] == [0, 0, 0]
    rows = [progress.numInputRows for progress in query.recentProgress]
    assert sum(rows) == 2_100
    assert max(rows) <= 900

    # When more has come, the same query goes on with it.
    fill(bench.broker, queues[0], ids(5, first=9_000))
    bench.to_parquet(bench.stream(queues=",".join(queues)))
    assert bench.written() == sorted([*expected, *ids(5, first=9_000)])


def test_a_stream_wakes_up_for_a_message_and_shows_what_became_of_it(bench: Bench) -> None:
    """S1 and S2: a running query settles a batch once it is written, without waiting for more."""
    queue = bench.broker.fresh_queue()
    query = (
        bench.stream(queue=queue)
        .select("messageId", "queue")
        .writeStream.format("memory")
        .queryName("woken")
        .start()
    )
    try:
        for count in (1, 2):
            fill(bench.broker, queue, ids(1, first=count))
            until(lambda count=count: bench.spark.table("woken").count() == count)  # type: ignore[misc]
            until(lambda: left(bench.broker, queue) == 0)
        query.processAllAvailable()
        counts = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert counts["settled"] >= 1
        assert counts["locksLost"] == 0
    finally:
        query.stop()
    assert {row.queue for row in bench.spark.table("woken").collect()} == {queue}


def test_two_actions_on_a_batch_see_the_same_rows(bench: Bench) -> None:
    """S2: what the second action wrote is what is settled."""
    queue = bench.broker.fresh_queue()
    fill(bench.broker, queue, ids(1_500))
    seen: list[tuple[bool, list[str], list[str]]] = []

    def work(frame: DataFrame, _epoch: int) -> None:
        is_empty = frame.isEmpty()
        first = [row.messageId for row in frame.select("messageId").collect()]
        fill(bench.broker, queue, ids(1, first=5_000 + len(seen)))
        second = [row.messageId for row in frame.select("messageId").collect()]
        seen.append((is_empty, first, second))

    bench.each_batch(bench.stream(queue=queue, maxMessagesPerTrigger=1_000), work)
    assert all(not is_empty and first == second for is_empty, first, second in seen)
    found = [each for _, first, _ in seen for each in first]
    rest = taken(bench.broker, queue)
    assert sorted([*found, *rest]) == sorted([*ids(1_500), *ids(len(seen), first=5_000)])


def test_a_source_that_stands_twice_in_a_plan_gives_the_same_twice(bench: Bench) -> None:
    queue = bench.broker.fresh_queue()
    fill(bench.broker, queue, ids(300))
    frame = bench.stream(queue=queue)
    bench.to_parquet(frame.union(frame))
    assert bench.written() == sorted(ids(300) * 2)
    assert left(bench.broker, queue) == 0


def test_a_killed_worker_costs_nothing(bench: Bench) -> None:
    """S2: kill -9 of the Python worker in the middle of a task; the next try goes on.

    What the killed one held and had told nobody of comes when its locks end, in a later run.
    """
    queues = [bench.broker.fresh_queue(lock_duration_ms=5_000) for _ in range(2)]
    for index, queue in enumerate(queues):
        fill(bench.broker, queue, ids(900, first=index * 1_000))
    bench.to_parquet(bench.stream("stumbling", queues=",".join(queues)))
    if any(left(bench.broker, queue) for queue in queues):
        time.sleep(5)
        bench.to_parquet(bench.stream(queues=",".join(queues)))
    assert bench.written() == sorted([*ids(900), *ids(900, first=1_000)])
    assert [left(bench.broker, queue) for queue in queues] == [0, 0]


def test_locks_are_renewed_while_a_slow_batch_is_written(bench: Bench) -> None:
    """S2: a lock of 5 seconds, a batch of 7: no message comes twice.

    What limit() leaves out of rows that were handed to Spark counts as read, and is settled.
    """
    queue = bench.broker.fresh_queue(lock_duration_ms=5_000)
    fill(bench.broker, queue, ids(200))
    seen: list[str] = []

    def work(frame: DataFrame, _epoch: int) -> None:
        seen.extend(row.messageId for row in frame.select("messageId").limit(20).collect())
        time.sleep(7)

    bench.each_batch(bench.stream(queue=queue), work)
    assert seen == ids(20)
    assert left(bench.broker, queue) == 0


def test_a_lost_checkpoint_loses_no_message(bench: Bench) -> None:
    """S2: the queue knows what was written, not the checkpoint, which is lost with a batch that
    was read and never written."""
    queue = bench.broker.fresh_queue(lock_duration_ms=5_000)
    fill(bench.broker, queue, ids(100))

    def stumble(frame: DataFrame, _epoch: int) -> None:
        assert frame.count() == 100
        raise RuntimeError("the disk is full")

    with pytest.raises(Exception, match="the disk is full"):
        bench.each_batch(bench.stream(queue=queue), stumble)
    shutil.rmtree(bench.checkpoint)
    until(lambda: bench.broker.queue(queue)["locked_message_count"] == 0)
    bench.to_parquet(bench.stream(queue=queue))
    assert bench.written() == ids(100)
    assert left(bench.broker, queue) == 0


def test_a_trigger_that_would_settle_nothing_is_refused(bench: Bench) -> None:
    """S2: Spark ends such a query before it says that its batch was written."""
    queue = bench.broker.fresh_queue()
    fill(bench.broker, queue, ids(3))
    query = (
        bench.stream(queue=queue)
        .writeStream.format("parquet")
        .option("checkpointLocation", bench.checkpoint)
        .trigger(once=True)
        .start(bench.output)
    )
    with pytest.raises(Exception, match=r"Use trigger\(availableNow=True\)"):
        ended(query)
    assert left(bench.broker, queue) == 3


def test_messages_can_be_deleted_on_receipt(bench: Bench) -> None:
    """S1: receiveMode=receiveAndDelete."""
    queue = bench.broker.fresh_queue()
    fill(bench.broker, queue, ids(50))
    bench.to_parquet(bench.stream(queue=queue, receiveMode="receiveAndDelete"))
    assert bench.written() == ids(50)
    assert left(bench.broker, queue) == 0


def test_subscriptions_and_dead_letter_queues_are_read(bench: Bench) -> None:
    """S1: topic + subscription, subQueue=deadLetter."""
    topic = bench.broker.fresh_topic("all")
    fill(bench.broker, topic, ids(20))
    where = {"topic": topic, "subscription": "all"}
    bench.to_parquet(bench.stream(**where))
    assert bench.written() == ids(20)
    assert bench.broker.subscription(topic, "all")["active_message_count"] == 0

    queue = bench.broker.fresh_queue(default_ttl_ms=1_000, dead_lettering_on_expiration=True)
    fill(bench.broker, queue, ids(5))
    until(lambda: bench.broker.queue(queue)["dead_letter_message_count"] == 5)
    dead = Bench(bench.spark, bench.pair, bench.directory / "dead")
    dead.to_parquet(dead.stream(queue=queue, subQueue="deadLetter"))
    assert dead.written() == ids(5)
    assert bench.broker.queue(queue)["dead_letter_message_count"] == 0


def test_a_batch_read_looks_and_takes_nothing(bench: Bench) -> None:
    """S1: spark.read peeks, over all queues that fit a pattern."""
    stem = bench.broker.fresh_queue()
    for index in range(3):
        bench.broker.create_queue(f"{stem}-part-{index}")
        fill(bench.broker, f"{stem}-part-{index}", ids(600, first=index * 1_000))
    management = {"administrationPort": bench.broker.admin_port}
    frame = bench.batch(queuePattern=f"{stem}-part-*", **management)
    assert frame.count() == 1_800
    assert frame.select("queue").distinct().count() == 3
    assert frame.rdd.getNumPartitions() == 3
    assert left(bench.broker, f"{stem}-part-1") == 600
    assert bench.broker.queue(f"{stem}-part-1")["locked_message_count"] == 0

    some = bench.batch(queue=f"{stem}-part-0", startingSequenceNumber=11, maxMessages=5)
    numbers = [row.sequenceNumber for row in some.select("sequenceNumber").collect()]
    assert sorted(numbers) == [11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "nowhere"}, "nowhere"),
        ({"queue": WITH_SESSIONS}, f"'{WITH_SESSIONS}' requires sessions"),
        ({"queuePattern": "no-such-*"}, "queuePattern 'no-such-*'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(
    bench: Bench, options: dict[str, Any], sentence: str
) -> None:
    """S1: unknown queues, sessions."""
    if options.get("queue") == WITH_SESSIONS:
        bench.broker.create_queue(WITH_SESSIONS, requires_session=True)
    given = {**options, "administrationPort": bench.broker.admin_port}
    with pytest.raises(Exception, match=r"(?s)twinbus") as refused:
        bench.to_parquet(bench.stream(**given))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "a", "que": "b"}, "Unknown option of servicebus: 'que'. Did you mean 'queue'?"),
        ({}, "No option names what to read. Set exactly one of queue, queues,"),
    ],
)
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_wrong_options_are_refused_by_load_with_the_sentence_first(
    bench: Bench, kind: str, options: dict[str, Any], sentence: str
) -> None:
    """S1: before anything is started, and without a traceback in front of it."""
    load = bench.stream if kind == "stream" else bench.batch
    with pytest.raises(Exception, match="ConfigurationError") as refused:
        load(**options)
    told = str(refused.value)
    assert f"data source instance: twinbus.errors.ConfigurationError: {sentence}" in told
    assert "Traceback" not in told


def test_wrong_options_of_a_write_are_refused_with_the_sentence_first(bench: Bench) -> None:
    """S1: a write has no load()."""
    rows = bench.spark.range(1).selectExpr("'x' AS body")
    writer = rows.write.format("servicebus").options(**bench.options(queue="orders", timeout=5))
    with pytest.raises(Exception, match="ConfigurationError") as refused:
        writer.mode("append").save()
    told = str(refused.value)
    assert "twinbus.errors.ConfigurationError: Unknown option of servicebus: 'timeout'." in told
    assert "Traceback" not in told


def test_a_look_at_a_queue_with_sessions_is_refused_as_a_stream_is(bench: Bench) -> None:
    """S1: with the same sentence."""
    name = f"{WITH_SESSIONS}-looked-at"
    bench.broker.create_queue(name, requires_session=True)
    with pytest.raises(Exception, match=f"'{name}' requires sessions"):
        bench.batch(queue=name).collect()


def until(happened: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)

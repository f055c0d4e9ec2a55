"""An application whose secrets are canaries: whatever it shows, none of them may be in it.

It runs in a process of its own, with everything Spark can write down turned on, and leaves in its
directory what a curious colleague would find. Started by test_secrets.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinbus.spark.runtime.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Deed = Callable[["SparkSession", Mapping[str, str], Path], object]

PROVIDER = "tests.spark.canary_application:connection_string"
STREAM_S_MAX = 60
IMPATIENCE_S = 1
HOPELESS = ("far", "wrong")
ROWS = 3


def connection_string() -> str:
    """What a provider would fetch from a vault."""
    return Path(os.environ["CANARY_FILE"]).read_text()


def main(directory: Path) -> None:
    """plan.json says how each namespace is named and what to do there."""
    plan: list[dict[str, Any]] = json.loads((directory / "plan.json").read_text())
    raw = os.environ["CANARY_RAW"]
    (directory / "events").mkdir()
    with watched_processes(directory / "processes.txt"):
        spark = local_session(
            "canary",
            fast_start=True,
            more={
                "spark.master": "local[2]",  # What fails is not tried again.
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": str(directory / "events"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
            },
        )
        for index, part in enumerate(plan):
            # What holds a secret is in no file of the plan.
            options = {**part["options"], **dict.fromkeys(part["raw"], raw)}
            for deed in part["deeds"]:
                attempted(part["name"], DEEDS[deed], spark, options, directory / str(index))
        spark.stop()


def attempted(
    name: str,
    deed: Deed,
    spark: SparkSession,
    options: Mapping[str, str],
    directory: Path,
) -> None:
    """Everything that comes out is shown, and every error as a user would see it."""
    try:
        print(f"{name} {deed.__name__}: done", deed(spark, options, directory), flush=True)
    except Exception as error:
        print(f"{name} {deed.__name__}: failed", type(error).__name__, flush=True)
        print(repr(error), str(error), "".join(traceback.format_exception(error)), flush=True)


def some_rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("encode(string(id), 'utf-8') as body")


def written(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    writer = some_rows(spark).write.format("servicebus").options(**for_writing(options))
    writer.mode("append").save()
    return ROWS


def for_writing(options: Mapping[str, str]) -> dict[str, str]:
    told = {name: value for name, value in options.items() if name != "driverHost"}
    # What must succeed may take its time on a busy machine.
    if Path(options.get("connectionStringFile", "")).name in HOPELESS:
        told["sendTimeout"] = str(IMPATIENCE_S)
    return told


def poured(spark: SparkSession, options: Mapping[str, str], directory: Path) -> object:
    """The sink of a stream."""
    some_rows(spark).write.parquet(str(directory / "to-pour"))
    frame = spark.readStream.schema("body binary").parquet(str(directory / "to-pour"))
    ended(
        frame.writeStream.format("servicebus")
        .options(**for_writing(options))
        .option("checkpointLocation", str(directory / "pouring" / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return ROWS


def asked_in_sql(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    """The options as text of a statement, and everything that shows a table."""
    said = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW looked USING servicebus OPTIONS ({said})")
    try:
        spark.sql("EXPLAIN EXTENDED SELECT messageId FROM looked").show(truncate=False)
        return spark.sql("SELECT messageId FROM looked").count()
    finally:
        spark.sql("DROP VIEW looked")


def kept_as_table(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    """Spark 4.3 keeps the options of a table and does not hand them to a source in Python."""
    said = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TABLE kept USING servicebus OPTIONS ({said})")
    try:
        for statement in ("DESCRIBE EXTENDED kept", "SHOW CREATE TABLE kept"):
            spark.sql(statement).show(100, truncate=False)
        print(spark.catalog.getTable("kept"))
        return spark.table("kept").count()
    finally:
        spark.sql("DROP TABLE kept")


def syphoned(spark: SparkSession, options: Mapping[str, str], directory: Path) -> object:
    """A backlog comes home; what is told of it is printed, too."""
    from twinbus.spark.syphon import SyphonSettings, read_receipts, start_syphon

    settings = SyphonSettings.from_options(options)
    print(settings)
    syphon = start_syphon(spark, settings, directory / "state", once=True)
    try:
        syphon.query.explain(True)
        if not syphon.wait(STREAM_S_MAX):
            raise TimeoutError("the syphon still works")
        print(read_receipts(spark, directory / "state" / "receipts").collect())
        return syphon.status().counts.get("moved", 0)
    finally:
        print(syphon.status(), syphon.query.lastProgress)
        syphon.stop()


def looked_at(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    frame = spark.read.format("servicebus").options(**options).load()
    frame.explain(True)
    frame.explain("formatted")
    rows = frame.collect()
    print(rows, frame.schema.json(), frame)
    return len(rows)


def streamed(
    spark: SparkSession,
    options: Mapping[str, str],
    directory: Path,
    within_s: int = STREAM_S_MAX,
) -> object:
    frame = spark.readStream.format("servicebus").options(**options).load()
    ended(
        frame.writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(),
        within_s,
    )
    collected = spark.read.parquet(str(directory / "rows")).collect()
    print(collected)
    return len(collected)


def stopped(spark: SparkSession, options: Mapping[str, str], directory: Path) -> object:
    """A stream that tries and tries to connect, and whoever started it has seen enough."""
    return streamed(spark, options, directory, IMPATIENCE_S)


def ended(query: StreamingQuery, within_s: int = STREAM_S_MAX) -> None:
    """Once it has; everything it says of itself is printed."""
    try:
        if not query.awaitTermination(within_s):
            raise TimeoutError("the stream still waits")
        query.explain(True)
    finally:
        print(query.lastProgress, query.status, repr(query.exception()))
        query.stop()


def mistyped(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    """The secret under a name that means nothing."""
    secret = os.environ["CANARY_RAW"]
    return (
        spark.read.format("servicebus")
        .options(**options)
        .option("conectionString", secret)
        .load()
        .count()
    )


DEEDS: Mapping[str, Deed] = {
    deed.__name__: deed
    for deed in (
        written,
        looked_at,
        streamed,
        stopped,
        poured,
        asked_in_sql,
        kept_as_table,
        syphoned,
        mistyped,
    )
}


@contextmanager
def watched_processes(path: Path) -> Iterator[None]:
    """The command lines of all processes of this machine meanwhile, each once."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.2):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(process.read_bytes())
                except OSError:
                    continue  # It has ended.

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        path.write_bytes(b"\n".join(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

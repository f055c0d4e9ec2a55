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

from twinbus.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Deed = Callable[["SparkSession", Mapping[str, str], Path], object]

PROVIDER = "tests.spark.canary_application:connection_string"
STREAM_S_MAX = 60
SEND_S_MAX = 2
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
            options = dict(part["options"])
            if part["name"] == "raw":
                options["connectionString"] = raw
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


def written(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    rows = spark.range(ROWS).selectExpr("encode(string(id), 'utf-8') as body")
    writer = rows.write.format("servicebus").options(**options)
    writer.option("sendTimeout", str(SEND_S_MAX)).mode("append").save()
    return ROWS


def looked_at(spark: SparkSession, options: Mapping[str, str], _directory: Path) -> object:
    frame = spark.read.format("servicebus").options(**options).load()
    frame.explain(True)
    frame.explain("formatted")
    rows = frame.collect()
    print(rows, frame.schema.json(), frame)
    return len(rows)


def streamed(spark: SparkSession, options: Mapping[str, str], directory: Path) -> object:
    frame = spark.readStream.format("servicebus").options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(STREAM_S_MAX):
            raise TimeoutError("the stream still waits")
        return _shown(query, spark.read.parquet(str(directory / "rows")))
    finally:
        print(query.lastProgress, query.status, repr(query.exception()))
        query.stop()


def _shown(query: Any, rows: DataFrame) -> object:
    query.explain(True)
    collected = rows.collect()
    print(collected)
    return len(collected)


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
    deed.__name__: deed for deed in (written, looked_at, streamed, mistyped)
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

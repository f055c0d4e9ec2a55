"""Audit logs and receipts as tables with the columns of the next steps; completeness of the logs.

    files --audit_lines--> lines --without_copies--> --events_of--> --sent_of-->

    side  place  event  number  message_id  at_ms  reason  destination  original
    from_place  from_number  publication  copies  expires_ms  line

``place`` is a queue or subscription, its dead-letter queue included; ``side`` is primary or
backlog; ``number`` is the sequence number there, and ``line`` identifies a line. Times are Unix
milliseconds.

Rule 1: a line that cannot be parsed is counted and left out; a file is read once, however often it
        is named. Lines in several files are the same if run and number are the same; lines of older
        versions have neither.
Rule 2: a namespace may be the primary of one pair and contain the backlog of another: the queues of
        that backlog are not entities of the primary.
Rule 3: the numbers of a run have no gap; a missing number is a lost line. Lines before the first
        one do not count as lost: logs may begin in the middle of a run.
Rule 4: files of one run that have the same numbers are copies.
Rule 5: a run without an end is still open, or was killed: its last lines may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from twinbus.common.entity_path import BACKLOG_SEPARATOR, backlog_prefix
from twinbus.errors import ConfigurationError
from twinbus.metering.operations_log import CLOSED
from twinbus.spark.syphon.query import in_words_of_today, read_receipts
from twinbus.spark.syphon.receipt_rows import RECEIPT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "AUDIT_COLUMNS",
    "EVENT_COLUMNS",
    "RECEIPTS",
    "SENT_COLUMNS",
    "RunPart",
    "audit_lines",
    "census",
    "events_of",
    "have_copies",
    "lost_lines",
    "receipt_lines",
    "receipts_of",
    "run_parts",
    "sent_of",
    "unclosed",
    "without_copies",
]

_DAMAGED: Final = "_damaged"
AUDIT_COLUMNS: Final = (
    "source string, run string, number bigint, at string, namespace string, entity string, "
    "event string, sequence_number bigint, message_id string, reason string, destination string, "
    "original_sequence_number bigint, from_entity string, from_sequence_number bigint, "
    "publication bigint, copies int, expires string, via string"
)
EVENT_COLUMNS: Final = (
    "side string, place string, event string, number bigint, message_id string, at_ms bigint, "
    "reason string, destination string, original bigint, from_place string, from_number bigint, "
    "publication string, copies int, expires_ms bigint, line string"
)
SENT_COLUMNS: Final = "entity string, message_id string, via string, at_ms bigint"
RECEIPTS: Final = (
    "queue string, number bigint, message_id string, entity string, outcome string, "
    "reason string, at_ms bigint, enqueued_ms bigint"
)
_RECEIPT_LINE: Final = (
    "queue string, sequence_number bigint, message_id string, destination string, "
    "outcome string, reason string, enqueued_ms bigint, settled_ms bigint"
)


def audit_lines(spark: SparkSession, directories: Mapping[str, Path]) -> DataFrame:
    """Every line of the audit logs below these directories; a file in two of them is read once.

    ``given`` has the names of the directories that a line is in.
    """
    names_of: dict[Path, list[str]] = {}
    for name, directory in directories.items():
        found = {each.resolve() for each in directory.rglob("audit*.jsonl")}
        if not found:
            raise ConfigurationError(
                f"No audit log found below {str(directory)!r}",
                hint="Start brokers with --audit, and create clients with audit=True",
            )
        for each in found:
            names_of.setdefault(each, []).append(name)
    together: dict[tuple[str, ...], list[str]] = {}
    for each, names in sorted(names_of.items()):
        together.setdefault(tuple(names), []).append(str(each))
    parts = [_read(spark, files, names) for names, files in together.items()]
    return reduce(lambda one, other: one.unionByName(other), parts)


def _read(spark: SparkSession, files: list[str], names: Iterable[str]) -> DataFrame:
    is_damaged = (
        F.col(_DAMAGED).isNotNull()
        | F.col("event").isNull()
        | F.col("entity").isNull()
        | F.try_to_timestamp("at").isNull()
    )
    return (
        spark.read.schema(f"{AUDIT_COLUMNS}, {_DAMAGED} string")
        .option("columnNameOfCorruptRecord", _DAMAGED)
        .json(files)
        .select(
            F.lit(",".join(names)).alias("given"),
            F.input_file_name().alias("file"),
            is_damaged.alias("is_damaged"),
            F.coalesce("source", F.lit("broker")).alias("source"),
            "run",
            F.col("number").alias("line"),
            F.lower("namespace").alias("namespace"),
            F.lower("entity").alias("place"),
            "event",
            F.col("sequence_number").alias("number"),
            "message_id",
            _ms("at").alias("at_ms"),
            "reason",
            F.lower("destination").alias("destination"),
            F.col("original_sequence_number").alias("original"),
            F.lower("from_entity").alias("from_place"),
            F.col("from_sequence_number").alias("from_number"),
            "publication",
            "copies",
            _ms("expires").alias("expires_ms"),
            F.coalesce(F.lower("via"), F.lit("")).alias("via"),
        )
    )


def census(lines: DataFrame) -> DataFrame:
    """The number of lines by source, place and event: a few rows."""
    return lines.groupBy("given", "source", "namespace", "place", "event", "is_damaged").agg(
        F.count("*").alias("lines")
    )


def run_parts(lines: DataFrame) -> DataFrame:
    """The part of each run in each file, with the fields of RunPart."""
    return (
        lines.where(_is_numbered())
        .groupBy("source", "namespace", "run", "file")
        .agg(
            F.min("line").alias("first"),
            F.max("line").alias("last"),
            F.count("*").alias("lines"),
            F.max(F.col("event") == CLOSED).alias("is_closed"),
        )
    )


def without_copies(lines: DataFrame) -> DataFrame:
    """Every line once, also where a log and a copy of it were given (rule 1)."""
    once = lines.where(_is_numbered()).dropDuplicates(["source", "namespace", "run", "line"])
    return once.unionByName(lines.where(~_is_numbered()))


def _is_numbered() -> Column:
    return F.col("run").isNotNull() & F.col("line").isNotNull() & ~F.col("is_damaged")


def events_of(lines: DataFrame, pair: str) -> DataFrame:
    """The brokers' lines about messages of the pair: on its primary, and in its backlog queues."""
    place = F.col("place")
    is_backlog = place.startswith(backlog_prefix(pair))
    is_primary = (F.col("namespace") == pair) & ~place.contains(BACKLOG_SEPARATOR)
    return (
        lines.where(~F.col("is_damaged") & (F.col("source") == "broker") & (place != ""))
        .where(is_backlog | is_primary)
        .select(
            F.when(is_backlog, "backlog").otherwise("primary").alias("side"),
            "place",
            "event",
            "number",
            "message_id",
            "at_ms",
            "reason",
            "destination",
            "original",
            "from_place",
            "from_number",
            _of_run("publication").alias("publication"),
            "copies",
            "expires_ms",
            _of_run("line").alias("line"),
        )
    )


def sent_of(lines: DataFrame, pair: str) -> DataFrame:
    """The lines of the pair's clients about their sends: one row for each message."""
    return lines.where(
        ~F.col("is_damaged")
        & (F.col("source") == "client")
        & (F.col("event") == "sent")
        & (F.col("namespace") == pair)
    ).select(F.col("place").alias("entity"), "message_id", "via", "at_ms")


def receipt_lines(spark: SparkSession, where: Path) -> DataFrame:
    """Receipts of the syphon on Spark (a directory), or of the mover (lines of JSON)."""
    for directory in (where, where / "receipts"):
        if directory.is_dir() and any(directory.glob("run=*")):
            return _as_lines(read_receipts(spark, directory))
    files = [where] if where.is_file() else sorted(where.glob("*.jsonl"))
    if not files:
        raise ConfigurationError(
            f"No receipts found in {str(where)!r}",
            hint="Name the directory of the syphon's --receipts, or its state directory",
        )
    lines = spark.read.schema(_RECEIPT_LINE).json([str(each) for each in files])
    return in_words_of_today(lines.where("queue is not null"))


def _as_lines(receipts: DataFrame) -> DataFrame:
    return receipts.select(
        *(name for name in _names(_RECEIPT_LINE) if name in _names(RECEIPT_COLUMNS)),
        F.unix_millis("enqueued_at").alias("enqueued_ms"),
        F.unix_millis("settled_at").alias("settled_ms"),
    )


def receipts_of(lines: DataFrame, pair: str) -> DataFrame:
    """The receipts of the pair's backlog queues; those of a dry run moved nothing."""
    return lines.where(
        F.lower("queue").startswith(backlog_prefix(pair)) & ~F.col("outcome").startswith("would-")
    ).select(
        F.lower("queue").alias("queue"),
        F.col("sequence_number").alias("number"),
        "message_id",
        F.lower("destination").alias("entity"),
        "outcome",
        "reason",
        F.col("settled_ms").alias("at_ms"),
        "enqueued_ms",
    )


def _names(columns: str) -> list[str]:
    return [each.split()[0] for each in columns.split(", ")]


def _of_run(name: str) -> Column:
    """A number of a run, made unique by the run."""
    return F.when(F.col("run").isNotNull() & F.col(name).isNotNull(), F.concat_ws("#", "run", name))


def _ms(name: str) -> Column:
    return F.unix_millis(F.try_to_timestamp(name))


class RunPart(NamedTuple):
    """The part of one run in one file."""

    source: str
    namespace: str
    run: str
    file: str
    first: int
    last: int
    lines: int
    is_closed: bool

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.namespace, self.run


def _by_run(parts: Iterable[RunPart]) -> Iterator[list[RunPart]]:
    ordered = sorted(parts, key=lambda part: (*part.key, part.first, part.last))
    for _key, some in groupby(ordered, key=attrgetter("key")):
        yield list(some)


def have_copies(parts: Iterable[RunPart]) -> bool:
    """Whether a line may occur twice (rule 4)."""
    return any(
        any(later.first <= sooner.last for sooner, later in pairwise(run))
        or any(part.lines > part.last - part.first + 1 for part in run)
        for run in _by_run(parts)
    )


def lost_lines(parts: Iterable[RunPart]) -> int:
    """How many numbers are missing, in parts without copies (rule 3)."""
    return sum(
        max(part.last for part in run) - run[0].first + 1 - sum(part.lines for part in run)
        for run in _by_run(parts)
    )


def unclosed(parts: Iterable[RunPart]) -> Iterator[str]:
    """One sentence for each side that has runs without an end (rule 5)."""
    counts: dict[str, int] = {}
    for run in _by_run(parts):
        if not any(part.is_closed for part in run):
            side = "clients" if run[0].source == "client" else f"the broker of {run[0].namespace}"
            counts[side] = counts.get(side, 0) + 1
    for side, count in sorted(counts.items()):
        runs = "1 run" if count == 1 else f"{count:,} runs"
        yield f"{runs} of {side} without an end: unless still open, the last lines may be missing."

"""The whole chain, over logs as brokers, clients and movers write them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.spark.reconciliation.rows import BACKLOG
from twinbus.cli import app
from twinbus.cost.reconciliation import MessageStatus
from twinbus.errors import ConfigurationError
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome, to_json_line
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.reconciliation.message_locations import SCAN_COLUMNS, SCANNED_COLUMNS
from twinbus.spark.reconciliation.pipeline import Sources, reconcile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OF_OTHERS = "other/x-servicebus-transfer/0"
NO_END = (
    "1 run of the broker of home without an end: unless still open, the last lines may be missing."
)
OF_CLIENT = "audit-5f0c33a1b2c4d6e8-2026-11-16.jsonl"


def line(namespace: str, entity: str, event: str, second: int, **more: Any) -> str:
    at = f"2026-11-16T12:00:{second:02d}.000Z"
    facts = {"version": 1, "at": at, "namespace": namespace, "entity": entity, "event": event}
    return json.dumps(facts | more)


def home(entity: str, event: str, second: int, number: int | None, **more: Any) -> str:
    return line("home", entity, event, second, sequence_number=number, **more)


def away(event: str, second: int, number: int, **more: Any) -> str:
    return line("spare", BACKLOG, event, second, sequence_number=number, **more)


def sent(message_id: str, second: int, via: str = "", namespace: str = "home") -> str:
    more = {"source": "client", "message_id": message_id, "via": via, "bytes": 10}
    return line(namespace, "Orders", "sent", second, **more)


def run_of(name: str, *lines: str | None, is_open: bool = False) -> list[str]:
    """The log of one run: numbered, from its beginning to its end. None is a line that was lost."""
    first = next(json.loads(each) for each in lines if each is not None)
    mark = {key: first[key] for key in ("version", "at", "namespace", "source") if key in first}
    marks = [json.dumps({**mark, "entity": "", "event": each}) for each in ("opened", "closed")]
    written = []
    for number, each in enumerate([marks[0], *lines, *([] if is_open else marks[1:])], 1):
        if each is not None and each.endswith("}"):
            written.append(json.dumps({**json.loads(each), "run": name, "number": number}))
        elif each is not None:
            written.append(each)
    return written


def receipt(number: int, message_id: str) -> str:
    return to_json_line(
        Receipt(
            BACKLOG, number, message_id, "orders", ReceiptOutcome.MOVED, "", 9, 1, 2, 3, "host", 1
        )
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """An outage in which one message was taken from the backlog by somebody else."""
    written = {
        "primary/home/audit-2026-11-16.jsonl": run_of(
            "aa01",
            home("orders", "stored", 1, 1, message_id="a"),
            home("orders", "completed", 2, 1),
            home("orders", "stored", 9, 2, message_id="b"),
            home("orders", "stored", 9, 3, message_id="stranger"),
            # The primary holds the backlog of another pair: that is no entity of its own.
            home(OF_OTHERS, "stored", 5, 1, message_id="q", destination="bills"),
            '{"version":1,"at":"2026-11-16T12:0',
            is_open=True,
        ),
        "secondary/spare/audit-2026-11-16.jsonl": run_of(
            "bb02",
            away("stored", 4, 811, message_id="b", destination="orders"),
            away("completed", 9, 811),
            away("stored", 5, 812, message_id="c", destination="orders"),
            away("completed", 8, 812),
            line("spare", OF_OTHERS, "stored", 5, sequence_number=1),
            None,
        ),
        f"client/home/{OF_CLIENT}": run_of(
            "5f0c33a1b2c4d6e8", sent("a", 1), sent("b", 4, BACKLOG), sent("c", 5, BACKLOG)
        ),
        f"client/other/{OF_CLIENT}": run_of("5f0c33a1b2c4d6e8", sent("z", 5, namespace="other")),
        # A copy, made before the log was complete.
        f"client/saved/home/{OF_CLIENT}": run_of(
            "5f0c33a1b2c4d6e8", sent("a", 1), sent("b", 4, BACKLOG), is_open=True
        ),
        "receipts.jsonl": [receipt(811, "b")],
        "journal.jsonl": [
            json.dumps({"event": name, "at": f"2026-11-16T12:00:0{at}+00:00", "path": "Orders"})
            for name, at in (("diverted", 3), ("restored", 7))
        ],
    }
    for name, lines in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_message_that_somebody_took_from_the_backlog_is_named(
    spark: SparkSession, logs: Path
) -> None:
    """C3: the books do not close, and each difference is listed with what the logs say last."""
    sources = {
        "primary-logs": logs / "primary",
        "secondary-logs": logs / "secondary",
        # The same files by another way are not read twice.
        "client-logs": logs,
        "receipts": logs / "receipts.jsonl",
        "journal": logs / "journal.jsonl",
    }
    given = [word for name, path in sources.items() for word in (f"--{name}", str(path))]
    result = CliRunner().invoke(app, ["cost", "reconcile", *given, "--output", "json"])

    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["verdict"] == (
        "Reconciliation of home failed: of 3 sent, 1 missing and 1 unexpected, "
        "as far as the logs can be read."
    )
    (orders,) = answer["entities"]
    fates = {status.value: orders[status.value] for status in MessageStatus if orders[status.value]}
    assert fates == {"delivered": 1, "waiting": 1, "missing": 1}
    assert orders["outages"] == [["2026-11-16T12:00:03.000Z", "2026-11-16T12:00:07.000Z"]]
    assert (answer["damaged_lines"], answer["lost_lines"]) == (1, 1)
    assert NO_END in answer["unproven"]
    missing, stranger = answer["differences"]
    assert (missing["message_id"], missing["kind"]) == ("c", "missing")
    assert missing["said"] == (
        f"sent to {BACKLOG}, acknowledged at 2026-11-16T12:00:05.000Z; "
        f"stored in {BACKLOG} as 812 at 2026-11-16T12:00:05.000Z, completed there at "
        "2026-11-16T12:00:08.000Z, no receipt; never stored on the primary"
    )
    assert (stranger["message_id"], stranger["kind"]) == ("stranger", "unexpected")
    assert stranger["said"] == (
        "stored in orders as 3 at 2026-11-16T12:00:09.000Z; no client has recorded that it sent it"
    )


def test_receipts_alone_are_a_beginning(spark: SparkSession, logs: Path) -> None:
    """C3: each source alone is usable, and the answer says what it leaves unproven."""
    arguments = ["cost", "reconcile", "--receipts", str(logs / "receipts.jsonl")]
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 0
    assert "succeeded: 1 sent, 1 of them unproven, none missing." in result.stdout
    assert "Sources: receipts." in result.stdout
    assert "Without the audit log of the primary" in result.stdout


def test_the_logs_are_read_after_the_look(
    spark: SparkSession, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: what is taken during a look is delivered, not missing; torn lines name no queue."""
    asked = {}

    def scan_queues(
        spark: SparkSession, side: str, namespace: object, known: Iterable[str], **_more: Any
    ) -> tuple[DataFrame, DataFrame]:
        asked[side] = sorted(known)
        if side == "primary":
            with (logs / "primary/home/audit-2026-11-16.jsonl").open("a") as log:
                taken = json.loads(home("orders", "completed", 10, 2))
                log.write(json.dumps({**taken, "run": "aa01", "number": 8}) + "\n")
        scanned = [("primary", "orders", 9_999_999_999_999)] if side == "primary" else []
        return (
            spark.createDataFrame([], SCAN_COLUMNS),
            spark.createDataFrame(scanned, SCANNED_COLUMNS),
        )

    monkeypatch.setattr("twinbus.spark.reconciliation.pipeline.scan_queues", scan_queues)
    monkeypatch.setattr("twinbus.spark.reconciliation.pipeline.DIFFERENCES_MAX", 0)
    there = NamespaceRef.of_file(logs / "connection")
    sources = Sources(
        primary_logs=logs / "primary", client_logs=logs / "client", primary=there, secondary=there
    )

    answer = reconcile(spark, sources)

    (orders,) = answer.entities
    assert asked["primary"] == ["orders"]
    assert orders.statuses[MessageStatus.DELIVERED] == 2
    assert orders.unexpected == 1
    assert any(note.startswith("Only 0 differing ids") for note in answer.notes)


@pytest.mark.parametrize(
    ("sources", "arguments", "sentence"),
    [
        ({"primary": "primary"}, ["--pair", "hmoe"], "by the broker of hmoe"),
        ({"primary": "secondary", "client": "client"}, ["--pair", "home"], "by the broker of home"),
        ({"secondary": "primary", "client": "client"}, ["--pair", "home"], "by another broker"),
        ({"client": "secondary"}, ["--pair", "home"], "by a client of home"),
    ],
)
def test_logs_of_somebody_else_are_refused(
    spark: SparkSession,
    logs: Path,
    sources: dict[str, str],
    arguments: list[str],
    sentence: str,
) -> None:
    """C3: a wrong name and exchanged directories prove nothing."""
    given = [w for name, path in sources.items() for w in (f"--{name}-logs", str(logs / path))]
    result = CliRunner().invoke(app, ["cost", "reconcile", *given, *arguments])

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Check --pair" in result.stderr


def test_nothing_found_is_no_verdict(spark: SparkSession, logs: Path) -> None:
    """C3: books that name no message do not close."""
    arguments = ["--receipts", str(logs / "receipts.jsonl"), "--pair", "hmoe", "--output", "json"]
    result = CliRunner().invoke(app, ["cost", "reconcile", *arguments])

    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["closes"] is None
    assert "hmoe" in answer["verdict"]


def test_whatever_goes_wrong_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: only books that were read to the end can be open."""

    def fail(_options: object) -> bool:
        raise KeyError("place")

    monkeypatch.setattr("twinbus.cli.cost.reconcile_run.run_reconcile", fail)

    result = CliRunner().invoke(app, ["cost", "reconcile", "--primary-logs", str(tmp_path)])

    assert result.exit_code == 2
    assert result.stderr.startswith("twinbus: ")
    assert result.stderr.endswith(": KeyError: 'place'\n")


def test_what_cannot_be_read_is_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """C3: bad input is said, with a way out."""
    with pytest.raises(ConfigurationError, match="No audit log"):
        reconcile(spark, Sources(primary_logs=tmp_path))
    with pytest.raises(ConfigurationError, match="No receipts"):
        reconcile(spark, Sources(receipts=tmp_path))
    with pytest.raises(ConfigurationError, match="at least one source"):
        reconcile(spark, Sources())
    names = ("one", "two")
    (tmp_path / "audit.jsonl").write_text("\n".join(sent("a", 1, namespace=n) for n in names))
    with pytest.raises(ConfigurationError, match=r"several primaries: one, two.*--pair"):
        reconcile(spark, Sources(client_logs=tmp_path))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "yesterday", "--receipts", "."], "'yesterday'"),
        (["--from", "2026-11-17", "--to", "2026-11-16", "--receipts", "."], "--from is not"),
        (["--primary-logs", "nowhere"], "'nowhere' not found"),
        (["--receipts", ".", "--output", "xml"], "--output: 'xml'"),
        (["--receipts", ".", "--look"], "primary namespace is not set"),
    ],
)
def test_a_wrong_command_line_is_no_verdict(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: the exit code 1 says that messages are missing; an error has another one."""
    for name in [each for each in os.environ if each.startswith("SERVICEBUS_")]:
        monkeypatch.delenv(name)

    result = CliRunner().invoke(app, ["cost", "reconcile", *arguments])

    assert result.exit_code == 2
    assert sentence in result.stderr

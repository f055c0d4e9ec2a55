"""The books that a client keeps of itself."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.common.clock import Instant, SystemClock
from twinbus.cost.units import Operation
from twinbus.encoding.envelope import alias, ping
from twinbus.errors import AccessRefused, CommunicationError
from twinbus.metering import client_meter
from twinbus.metering.client_meter import ClientMeter

PATIENCE_S = 10.0


def message(message_id: str, body: bytes = b"secret") -> bytes:
    return Message(properties=Properties(message_id=message_id), body=body).encode()


def books_in(directory: Path, **chosen: Any) -> ClientMeter:
    return ClientMeter(directory, **{"name": "contoso", "other_name": "localhost-5672", **chosen})


def records_in(directory: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(directory.rglob(f"{kind}-*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [line for line in lines if line.get("event") not in ("opened", "closed")]


def eventually(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def long_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interval ends during the test."""
    monkeypatch.setattr("twinbus.metering.operations_log.INTERVAL_MS", 10**12)


def test_a_client_that_does_nothing_writes_nothing(tmp_path: Path) -> None:
    books_in(tmp_path, audit=True).close()
    assert not list(tmp_path.iterdir())


def test_what_a_client_did_stands_in_files_of_its_own_run(tmp_path: Path) -> None:
    """C1: as a broker's lines, with their source; opened and closed."""
    one, other = books_in(tmp_path), books_in(tmp_path)
    one.sent("Orders", [message("a"), message("b", b"x" * 70_000)], is_own=True)
    one.received("orders", Operation.RECEIVE, [100, 200])
    one.received("orders", Operation.PEEK, [])
    one.settled("orders", 2)
    one.add_request("orders", Operation.EMPTY_RECEIVE)
    other.add_request("orders", Operation.MANAGEMENT)
    one.close()
    other.close()

    files = {path.name[:27] for path in (tmp_path / "contoso").iterdir()}
    assert files == {f"operations-{books.run}" for books in (one, other)}
    lines = [line for line in records_in(tmp_path, "operations") if line["run"] == one.run]
    assert {line["source"] for line in lines} == {"client"}
    assert {line["namespace"] for line in lines} == {"contoso"}
    amounts = {
        line["operation"]: [line[name] for name in ("calls", "messages", "units")] for line in lines
    }
    assert amounts == {
        "opened": [0, 0, 0],
        "send": [1, 2, 3],
        "receive": [1, 2, 2],
        "peek": [1, 0, 1],
        "settle": [1, 2, 0],
        "empty-receive": [1, 0, 1],
        "closed": [0, 0, 0],
    }
    assert [line["number"] for line in lines] == list(range(1, 8))
    assert (lines[0]["operation"], lines[-1]["operation"]) == ("opened", "closed")
    sent = next(line for line in lines if line["operation"] == "send")
    assert sent["entity"] == "orders"
    assert sent["bytes_in"] == len(message("a")) + len(message("b", b"x" * 70_000))


def test_pings_are_counted_apart_and_are_in_no_audit(tmp_path: Path) -> None:
    """C2: pings are messages, and say so."""
    books = books_in(tmp_path, audit=True)
    books.sent("orders", [ping("p1")], is_own=True)
    books.sent("orders", [message("a")], is_own=True)
    books.close()
    lines = {line["operation"]: line["messages"] for line in records_in(tmp_path, "operations")}
    assert lines == {"opened": 0, "ping": 1, "send": 1, "closed": 0}
    assert [line["message_id"] for line in records_in(tmp_path, "audit")] == ["a"]


def test_the_audit_names_each_message_and_where_it_went(tmp_path: Path) -> None:
    """C1: by id, never by body; what went round is in the books of the primary it is meant for."""
    books = books_in(tmp_path, name="fabrikam", audit=True)
    books.sent("Orders", [message("a")], is_own=True)
    backlog = "contoso/x-servicebus-transfer/3"
    books.sent(backlog, [alias(message("b"), "bills"), alias(message("c"), "orders")], is_own=True)
    books.sent("orders", [message("moved")], is_own=False)
    books.close()

    here = records_in(tmp_path / "fabrikam", "audit")
    assert [(line["message_id"], line["entity"], line["via"]) for line in here] == [
        ("a", "orders", "")
    ]
    there = records_in(tmp_path / "contoso", "audit")
    assert [(line["message_id"], line["entity"], line["via"]) for line in there] == [
        ("b", "bills", backlog),
        ("c", "orders", backlog),
    ]
    assert {"version", "source", "at", "namespace", "event", "bytes"} < set(there[0])
    assert (there[0]["namespace"], there[0]["source"], there[0]["event"]) == (
        "contoso",
        "client",
        "sent",
    )
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    sends = sum(
        line["messages"]
        for line in records_in(tmp_path, "operations")
        if line["operation"] == "send"
    )
    assert sends == 4  # What a mover sends is charged like everything else.


def test_much_is_written_before_its_interval_ends(tmp_path: Path, long_interval: None) -> None:
    """C1: a kill costs at most unwritten_units_max."""
    books = books_in(tmp_path)
    for _ in range(30):
        books.received("orders", Operation.RECEIVE, [10] * 2_000)
    eventually(lambda: sum(each["units"] for each in records_in(tmp_path, "operations")) >= 50_000)
    books.close()


def test_audit_lines_do_not_wait_for_the_interval(tmp_path: Path, long_interval: None) -> None:
    books = books_in(tmp_path, audit=True)
    books.sent("orders", [message("a")], is_own=True)
    eventually(lambda: bool(records_in(tmp_path, "audit")))
    assert not [line for line in records_in(tmp_path, "operations") if line["operation"] == "send"]
    books.close()


def test_a_steady_audit_does_not_keep_the_counts_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the interval ends although something else always wakes the writer."""
    monkeypatch.setattr("twinbus.metering.operations_log.INTERVAL_MS", 200)
    monkeypatch.setattr(client_meter, "AUDIT_PAUSE_S", 0.001)
    books = books_in(tmp_path, audit=True)

    def is_counted() -> bool:
        books.sent("orders", [message("a")], is_own=True)
        lines = records_in(tmp_path, "operations")
        return any(line["operation"] == "send" for line in lines)

    eventually(is_counted)
    books.close()


def test_a_full_disk_costs_lines_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    long_interval: None,
) -> None:
    """C1: the gap in the numbers tells of them, and so does the log; a torn line spoils none."""
    is_full = True
    write = os.write

    def write_or_not(file: int, data: bytes) -> int:
        if is_full:
            write(file, data[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr("twinbus.metering.json_lines.os.write", write_or_not)
    books = books_in(tmp_path, audit=True)
    with caplog.at_level(logging.ERROR, "twinbus.metering"):
        books.sent("orders", [message("a")], is_own=True)
        eventually(lambda: caplog.text.count("could not be written") >= 2)
    is_full = False
    books.sent("orders", [message("b")], is_own=True)
    books.close()

    whole = []
    for path in (tmp_path / "contoso").glob("operations-*"):
        whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    lines = [json.loads(line) for line in whole]
    assert [(line["number"], line["operation"]) for line in lines] == [(2, "send"), (3, "closed")]
    assert lines[0]["messages"] == 2
    audit = next((tmp_path / "contoso").glob("audit-*")).read_text().splitlines()
    lines = [json.loads(line) for line in audit if line.endswith("}")]
    # The numbers of what the disk refused are missing: the beginning, and "a".
    assert [(line["number"], line.get("message_id")) for line in lines] == [(3, "b"), (4, None)]


def test_a_disk_that_hangs_keeps_nobody_and_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: lines that nobody can write are dropped, and that is said."""
    monkeypatch.setattr(client_meter, "SENT_WAITING_MAX", 10)
    goes_on, hangs = threading.Event(), threading.Event()
    write = os.write

    def hanging(file: int, data: bytes) -> int:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)
        return write(file, data)

    monkeypatch.setattr("twinbus.metering.json_lines.os.write", hanging)
    books = books_in(tmp_path, audit=True)
    books.add_request("orders", Operation.PEEK)
    assert hangs.wait(PATIENCE_S)
    began_s = time.monotonic()
    for number in range(100):
        books.sent("orders", [message(str(number))], is_own=True)
    assert time.monotonic() - began_s < 1
    goes_on.set()
    with caplog.at_level(logging.ERROR, "twinbus.metering"):
        books.close()
    audit = records_in(tmp_path, "audit")
    assert [line["number"] for line in audit] == list(range(2, 12))
    (path,) = (tmp_path / "contoso").glob("audit-*")
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["event"], last["number"]) == ("closed", 11 + 90 + 1)
    assert "Audit log: 90 lines" in caplog.text
    sends = [line for line in records_in(tmp_path, "operations") if line["operation"] == "send"]
    assert sum(line["messages"] for line in sends) == 100


# -- the namespace's name -------------------------------------------------------------------------


def test_a_namespace_that_is_away_is_asked_once(tmp_path: Path, long_interval: None) -> None:
    """C1: lines are worth more than the name that they stand under; sends are audited at once."""
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        raise CommunicationError("nobody there")

    books = books_in(tmp_path, name=None, ask_name=ask, audit=True)
    books.sent("orders", [message("a")], is_own=True)
    eventually(lambda: bool(records_in(tmp_path, "audit")))
    books.close()
    assert asked == 1
    assert {line["namespace"] for line in records_in(tmp_path, "operations")} == {"localhost-5672"}


def test_a_namespace_that_does_not_answer_keeps_no_books_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: a question has an end, whoever closes the books meanwhile."""
    monkeypatch.setattr(client_meter, "ASK_TIMEOUT_S", 0.05)

    async def hang() -> str:
        await asyncio.sleep(60)
        return "contoso"

    books = books_in(tmp_path, name=None, ask_name=hang)
    books.add_request("orders", Operation.PEEK)
    books.close()
    lines = [line["operation"] for line in records_in(tmp_path, "operations")]
    assert lines == ["opened", "peek", "closed"]
    assert "did not return its name: TimeoutError" in caplog.text


def test_where_nobody_tells_the_name_the_address_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse() -> str:
        raise AccessRefused("Manage is missing", hint="Use another rule")

    async def break_down() -> str:
        raise RuntimeError("Event loop is closed")

    for ask in (refuse, break_down, None):
        books = books_in(tmp_path, name=None, ask_name=ask)
        books.add_request("orders", Operation.EMPTY_RECEIVE)
        books.close()
    lines = records_in(tmp_path, "operations")
    assert {line["namespace"] for line in lines} == {"localhost-5672"}
    assert len([line for line in lines if line["operation"] == "empty-receive"]) == 3
    assert "Use another rule. Set namespace_name" in caplog.text


def test_a_name_that_somebody_knows_is_not_asked_for(tmp_path: Path) -> None:
    async def never() -> str:
        raise AssertionError("asked")

    books = books_in(tmp_path, name=None, ask_name=never)
    books.set_name("contoso")
    books.add_request("orders", Operation.EMPTY_RECEIVE)
    books.close()
    assert {line["namespace"] for line in records_in(tmp_path, "operations")} == {"contoso"}


def test_a_better_name_counts_until_something_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, long_interval: None
) -> None:
    """C1: one namespace, one name; where that comes too late it is said."""
    books = books_in(tmp_path, name="contoso")
    books.set_name("shop")
    books.add_request("orders", Operation.PEEK)
    eventually(lambda: bool(records_in(tmp_path, "operations")))
    books.set_name("shop")
    assert not caplog.text
    books.set_name("another")
    assert "namespace 'shop' started under this name and keeps it" in caplog.text
    books.close()
    assert {line["namespace"] for line in records_in(tmp_path, "operations")} == {"shop"}


# -- trouble --------------------------------------------------------------------------------------


def test_a_thread_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: what was counted before is in the books, and close() raises nothing."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    books = books_in(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        with books.harmless:
            books.add_request("orders", Operation.PEEK)
    assert caplog.text.count("can't start new thread") == 1
    monkeypatch.setattr(threading.Thread, "start", start)
    with books.harmless:
        books.add_request("orders", Operation.PEEK)
    books.close()
    amounts = {line["operation"]: line["units"] for line in records_in(tmp_path, "operations")}
    assert amounts == {"opened": 0, "peek": 4, "closed": 0}

    never_begun = books_in(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with never_begun.harmless:
        never_begun.add_request("orders", Operation.PEEK)
    never_begun.close()


def test_harmless_lets_pass_what_is_no_error() -> None:
    with pytest.raises(KeyboardInterrupt), client_meter._Harmless():
        raise KeyboardInterrupt


def test_a_writer_that_breaks_down_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_given: object, **_chosen: object) -> None:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(client_meter, "operations_log", broken)
    books = books_in(tmp_path)
    books.add_request("orders", Operation.PEEK)
    books.close()
    assert "contoso stopped: embedded null byte" in caplog.text


def test_books_that_have_no_end_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: close() waits for a moment only."""
    monkeypatch.setattr(client_meter, "CLOSE_TIMEOUT_S", 0.05)
    goes_on = threading.Event()
    write = os.write

    def hanging(file: int, data: bytes) -> int:
        assert goes_on.wait(PATIENCE_S)
        return write(file, data)

    monkeypatch.setattr("twinbus.metering.json_lines.os.write", hanging)
    books = books_in(tmp_path)
    books.add_request("orders", Operation.PEEK)
    books.close()
    assert "contoso: the last lines were not written" in caplog.text
    goes_on.set()
    assert books._thread is not None
    books._thread.join(PATIENCE_S)


# -- processes ------------------------------------------------------------------------------------


# -- intervals ------------------------------------------------------------------------------------


class JustBefore(SystemClock):
    """A clock that shows so many milliseconds less than a round time when it is made."""

    def __init__(self, left_ms: int) -> None:
        self._shift_ms = 10**12 - left_ms - super().now().wall_ms

    def now(self) -> Instant:
        real = super().now()
        return real._replace(wall_ms=real.wall_ms + self._shift_ms)


@pytest.mark.parametrize("slow", ["audit", "disk"])
def test_an_interval_ends_at_its_time_although_the_writer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """C1: the audit's pause is cut short, and a disk that takes its time moves no interval."""
    monkeypatch.setattr(client_meter, "AUDIT_PAUSE_S", 5.0)
    write = os.write

    def slowly(file: int, data: bytes) -> int:
        if b'"send"' in data:
            time.sleep(1)
        return write(file, data)

    if slow == "disk":
        monkeypatch.setattr("twinbus.metering.json_lines.os.write", slowly)
    books = books_in(tmp_path, audit=slow == "audit", clock=JustBefore(800))
    if slow == "disk":  # Much, so that it is written at once and keeps the disk past the time.
        books._on_full()
    books.sent("orders", [message("a")], is_own=True)
    eventually(lambda: any(r["operation"] == "send" for r in records_in(tmp_path, "operations")))
    books.add_request("orders", Operation.PEEK)
    books.close()
    lines = records_in(tmp_path, "operations")
    ends = {line["operation"]: line["to"][17:-1] for line in lines}
    begins = {line["operation"]: line["from"][17:-1] for line in lines}
    # 10**12 ms are 01:46:40.000.
    if slow == "audit":
        assert "40.000" <= ends["send"] < "44.000"
    else:
        assert begins["send"] <= ends["send"]
        assert begins["peek"] >= "40.000"

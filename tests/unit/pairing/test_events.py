"""What happens in a pair is told: live, to callbacks, in the log, and in the journal on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.pairing.pairs import FakePair, OpenFakePair, eventually
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.errors import CommunicationError, ConfigurationError
from twinbus.failover.events import Diverted, PingRefused, RestoreDelayed, Suspected
from twinbus.pairing.events import EVENTS_WAITING_MAX, EventHub, EventRecord, Journal, read_journal


async def outage(pair: FakePair) -> None:
    """One diversion and its end."""
    pair.home.answer_once("orders", CommunicationError("gone", was_sent=False))
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await pair.until_told("restored")


OUTAGE = ["suspected", "diverted", "ping-sent", "restored"]


async def test_events_can_be_read_live(fake_pair: FakePair) -> None:
    """P16: every transition is one typed event, with a reason and the calendar's time."""
    stream = fake_pair.primary.events()
    await outage(fake_pair)
    seen = [await asyncio.wait_for(anext(stream), 5) for _ in OUTAGE]
    assert [each.name for each in seen] == OUTAGE
    diverted = seen[1]
    assert isinstance(diverted.event, Diverted) and "Gone" in diverted.event.reason
    assert abs(diverted.at - datetime.now(UTC)) < timedelta(minutes=1)
    assert diverted.primary == "contoso.example:5671"
    assert diverted.secondary == "fabrikam.example:5671"


async def test_a_stream_ends_with_its_factory(fake_pair: FakePair) -> None:
    """P16: after what has arrived; and a stream that is opened later is empty."""
    stream = fake_pair.primary.events()
    reading = asyncio.create_task(_all_of(stream))
    await outage(fake_pair)
    await fake_pair.primary.close()
    assert await asyncio.wait_for(reading, 5) == [*OUTAGE, "factory-closed"]
    assert await _all_of(fake_pair.primary.events()) == []


async def _all_of(stream: object) -> list[str]:
    return [each.name async for each in stream]  # type: ignore[attr-defined]


async def test_a_slow_reader_loses_the_oldest_and_knows_it() -> None:
    """P16: bounded, so that a forgotten reader costs no memory."""
    hub = EventHub("contoso")
    stream = hub.stream()
    for index in range(EVENTS_WAITING_MAX + 7):
        hub.publish([Suspected("orders", float(index))])
    assert stream.dropped == 7
    assert (await anext(stream)).event == Suspected("orders", 7.0)
    stream.close()
    hub.publish([Suspected("orders", 1.0)])
    assert len([each async for each in stream]) == EVENTS_WAITING_MAX - 1


class SlowMachine:
    """The module ``time`` of a machine that is busy whenever a clock is read."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._pauses_s = cycle([0.0, 0.3, 0.0, 0.0001, 0.02, 0.0, 0.0])

    def monotonic(self) -> float:
        self._passed_s += next(self._pauses_s)
        return 5_000.0 + self._passed_s

    def time(self) -> float:
        self._passed_s += next(self._pauses_s)
        return 1.8e9 + self._passed_s


async def test_what_follows_is_not_stamped_before_what_caused_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P16: ``diverted`` has the moment of ``suspected`` or a later one."""
    machine = SlowMachine()
    monkeypatch.setattr("twinbus.pairing.events.time", machine)
    hub, told = EventHub("contoso"), list[EventRecord]()
    hub.subscribe(told.append)
    for _ in range(20):
        at_s = machine.monotonic()
        hub.publish([Suspected("orders", at_s), Diverted("orders", at_s)])
    stamps = [each.at for each in told]
    assert len(stamps) == 40 and stamps == sorted(stamps)


async def test_the_stamps_follow_a_clock_that_somebody_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P16: the calendar's time, not that of the process's start."""
    hub, told = EventHub("contoso"), list[EventRecord]()
    hub.subscribe(told.append)
    hub.publish([Suspected("orders", time.monotonic())])
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3_600)
    hub.publish([Diverted("orders", time.monotonic())])
    monkeypatch.undo()
    hub.publish([Diverted("orders", time.monotonic())])
    assert told[1].at - told[0].at > timedelta(minutes=59)
    assert told[2].at < told[1].at


async def test_a_refused_ping_is_an_error_in_the_log_with_a_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P23: callers see no error while the backlog takes their messages, so the log is loud."""
    EventHub("contoso").publish([PingRefused("orders", 1.0, "unauthorized", "the key is wrong")])
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "the key is wrong" in record.message and "a key with the Send claim" in record.message


async def test_callbacks_are_told_and_their_errors_stop_nothing(
    open_fake_pair: OpenFakePair,
) -> None:
    """P16: from the options or from on_event(); a send never fails for a listener."""
    told: list[str] = []

    def broken(occurrence: EventRecord) -> None:
        raise RuntimeError("a mistake of the application")

    pair = await open_fake_pair(on_event=lambda each: told.append(each.name))
    pair.primary.on_event(broken)
    more: list[str] = []
    stop = pair.primary.on_event(lambda each: more.append(each.name))
    await outage(pair)
    stop()
    stop()
    pair.primary.force_failover("orders")
    assert told == [*OUTAGE, "diverted"]
    assert more == OUTAGE


async def test_the_log_warns_of_trouble_and_tells_its_end(
    fake_pair: FakePair, caplog: pytest.LogCaptureFixture
) -> None:
    """P16: under the logger ``twinbus``."""
    with caplog.at_level(logging.INFO, logger="twinbus"):
        await outage(fake_pair)
    levels = {
        record.getMessage().split()[1].rstrip(":"): record.levelno
        for record in caplog.records
        if record.name == "twinbus.pairing" and "contoso.example" in record.getMessage()
    }
    assert levels["diverted"] == logging.WARNING
    assert levels["restored"] == logging.INFO
    assert "ping-sent" not in levels


# --- the journal -------------------------------------------------------------------------------


async def test_the_journal_holds_every_event_as_a_line(
    open_fake_pair: OpenFakePair, tmp_path: Path
) -> None:
    """P16: readable by people, by programs, and by read_journal()."""
    path = tmp_path / "failover.jsonl"
    pair = await open_fake_pair(journal=path)
    await outage(pair)
    await pair.primary.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [*OUTAGE, "factory-closed"]
    assert lines[1]["path"] == "orders" and "Gone" in lines[1]["reason"]
    assert [each.name for each in read_journal(path)] == [*OUTAGE, "factory-closed"]
    assert all(each.at.tzinfo is not None for each in read_journal(path))


def occurrence(index: int = 0) -> EventRecord:
    return EventRecord(Suspected("orders", 0.0, f"ünï {index}\n"), datetime.now(UTC), "contoso")


def test_a_journal_goes_on_where_an_earlier_process_left_it(tmp_path: Path) -> None:
    """P16: append-only; a line that was torn by a crash costs itself and no other."""
    path = tmp_path / "journal.jsonl"
    for _ in range(2):
        journal = Journal(path)
        journal.append(occurrence())
        journal.close()
        journal.close()
    with path.open("ab") as file:
        file.write(b'{"event": "diverted", "at": "2026-01-01T0')
    journal = Journal(path)
    journal.append(occurrence())
    journal.close()
    assert [each.name for each in read_journal(path)] == ["suspected"] * 3
    assert len(path.read_bytes().splitlines()) == 4


def test_foreign_lines_are_left_out(tmp_path: Path) -> None:
    """P16: a reader is never stopped by what somebody wrote into the file."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'\xff\xfe\n[]\n{}\nnull\n"x"\n{"event": 1, "at": "never"}\n\n')
    assert list(read_journal(path)) == []


def aged(days: float, path: str = "orders", index: int = 0) -> EventRecord:
    at = datetime.now(UTC) - timedelta(days=days)
    return EventRecord(Suspected(path, 0.0, f"reason {index}"), at, "contoso")


def written(path: Path, *occurrences: EventRecord, keep_days: int | None = None) -> list[str]:
    """The reasons in a journal after one more process has written to it."""
    journal = Journal(path, keep_days=keep_days)
    for each in occurrences:
        journal.append(each)
    journal.close()
    return [str(each.facts["reason"]) for each in read_journal(path)]


def test_old_lines_are_dropped_when_a_journal_is_opened(tmp_path: Path) -> None:
    """M13: and only where that was asked for; the last of each entity stays, it may be diverted."""
    path = tmp_path / "journal.jsonl"
    lines = [aged(90, index=1), aged(80, index=2), aged(70, "other", 3), aged(1, index=4)]
    assert len(written(path, *lines)) == 4
    path.chmod(0o660)
    with path.open("ab") as file:
        file.write(b"foreign\n")

    assert written(path, aged(0, index=5), keep_days=30) == [
        "reason 2",
        "reason 3",
        "reason 4",
        "reason 5",
    ]
    assert path.stat().st_mode & 0o777 == 0o660
    assert b"foreign\n" in path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["journal.jsonl"]


def test_a_journal_that_others_write_is_left_as_it_is(tmp_path: Path) -> None:
    """M13, P16: what they append would go to a file that nobody reads any more."""
    path = tmp_path / "journal.jsonl"
    written(path, aged(90, index=1), aged(80, index=2))
    other = Journal(path)
    try:
        assert len(written(path, aged(0, index=3), keep_days=30)) == 3
        other.append(aged(0, index=4))
    finally:
        other.close()
    assert written(path, keep_days=30) == ["reason 2", "reason 3", "reason 4"]


def test_a_journal_behind_a_link_is_left_as_it_is(tmp_path: Path) -> None:
    """M13: the link stays one."""
    (tmp_path / "real").mkdir()
    path = tmp_path / "journal.jsonl"
    path.symlink_to(tmp_path / "real" / "journal.jsonl")
    written(path, aged(90, index=1), aged(80, index=2))

    assert len(written(path, keep_days=30)) == 2
    assert path.is_symlink()


async def test_a_journal_that_cannot_be_written_is_refused_when_the_pair_is_made(
    open_fake_pair: OpenFakePair, tmp_path: Path
) -> None:
    """P1: an error of the options leaves both factories usable."""
    pair = await open_fake_pair(is_paired=False, journal=tmp_path / "missing" / "journal")
    with pytest.raises(ConfigurationError, match="journal"):
        await pair.primary.pair_namespace(pair.options)
    assert not pair.primary.is_paired
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))


async def test_a_disk_that_fails_costs_lines_and_no_sends(
    open_fake_pair: OpenFakePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P16: Rule 1 of the journal."""

    def full(file: int, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twinbus.pairing.events._write_fully", full)
    pair = await open_fake_pair(journal=tmp_path / "journal")
    await outage(pair)
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"two"))


def test_lines_that_the_disk_does_not_take_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P16: what is missing is known."""
    monkeypatch.setattr("twinbus.pairing.events.LINES_WAITING_MAX", 3)

    def stuck(journal: Journal) -> None:
        journal._lines.get()

    monkeypatch.setattr(Journal, "_write", stuck)
    journal = Journal(tmp_path / "journal")
    for index in range(6):
        journal.append(occurrence(index))
    journal._thread.join(5)
    assert 2 <= journal.lines_dropped <= 3


# --- how they are told -------------------------------------------------------------------------


def test_every_moment_leaves_as_utc() -> None:
    """P16: the core's clock means nothing to a reader."""
    told = EventRecord(RestoreDelayed("orders", 1.0, 2.0), datetime.now(UTC), "contoso").to_dict()
    assert "at_s" not in told and "until_s" not in told
    assert datetime.fromisoformat(told["until"]).tzinfo is not None


def test_an_event_reads_as_a_sentence_would() -> None:
    """P16: the name an operator would say, and the facts."""
    assert str(occurrence(3)).startswith("suspected: path=orders, reason=")


async def test_a_secret_is_in_no_text(tmp_path: Path) -> None:
    """P16: neither repr, nor error, nor event holds a key."""
    key = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    text = f"Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey={key}"
    text += ";UseDevelopmentEmulator=true"
    factory = MessagingFactory.from_connection_string(text, driver="amqp", retry_total=0)
    with pytest.raises(CommunicationError) as caught:
        await factory.create_message_sender("orders").send(BrokeredMessage(b""), timeout=5)
    told = f"{factory!r} {vars(factory)!r} {caught.value} {caught.value!r} {factory.failovers()}"
    assert key not in told
    await factory.close()
    await eventually(lambda: not factory.is_open)


async def test_a_listener_that_nobody_would_await_is_refused(open_fake_pair: OpenFakePair) -> None:
    """P16: it would never hear anything."""

    async def listener(occurrence: EventRecord) -> None:
        raise AssertionError

    pair = await open_fake_pair(is_paired=False)
    with pytest.raises(ConfigurationError, match="coroutine"):
        pair.primary.on_event(listener)
    with pytest.raises(ConfigurationError, match="coroutine"):
        await open_fake_pair(on_event=listener)


def test_a_journal_of_an_earlier_version_has_the_names_of_today(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    line = {"event": "cleared", "at": "2026-11-01T00:00:00+00:00", "path": "orders"}
    path.write_text("".join(json.dumps({**line, "event": each}) + "\n" for each in EARLIER))
    assert [each.name for each in read_journal(path)] == list(EARLIER.values())
    assert [each.facts["event"] for each in read_journal(path)] == list(EARLIER.values())


EARLIER = {
    "cleared": "suspicion-cleared",
    "held": "entity-held",
    "queue-withdrawn": "backlog-queue-withdrawn",
    "queue-returned": "backlog-queue-reinstated",
    "backlog-out-of-reach": "backlog-exhausted",
    "backlog-level": "backlog-threshold-crossed",
    "drained": "backlog-drained",
    "closed": "factory-closed",
    "faulted": "factory-faulted",
    "diverted": "diverted",
}

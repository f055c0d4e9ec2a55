"""Histories survive the death of their writers."""

from __future__ import annotations

from pathlib import Path

from verification.fault_campaign.history import Journal, merged, read


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "one.jsonl", "sender-1")
    written = [
        journal.write("send", "invoke", values=("s-1", "s-2"), place="orders"),
        journal.write("receive", "ok", values=("s-1",), copy=0, enqueued_s=1.5, detail="ü\n"),
        journal.write("left", "ok", place="orders", count=3),
    ]
    journal.close()
    assert list(read(tmp_path / "one.jsonl")) == written


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "one.jsonl", "sender-1")
    whole = journal.write("send", "invoke", values=("s-1",))
    journal.write("send", "ok", values=("s-1",))
    journal.close()
    content = (tmp_path / "one.jsonl").read_bytes()
    (tmp_path / "one.jsonl").write_bytes(content[:-5])
    assert list(read(tmp_path / "one.jsonl")) == [whole]


def test_the_files_of_many_processes_are_one_history(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / f"{name}.jsonl", name) for name in ("a", "b")]
    written = [journals[number % 2].write("send", "invoke") for number in range(6)]
    assert merged(tmp_path.glob("*.jsonl")) == written
    for journal in journals:
        journal.close()

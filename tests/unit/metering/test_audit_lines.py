"""Audit logs: numbered lines between a beginning and an end."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from twinbus.metering.audit_log import AuditLines
from twinbus.metering.json_lines import JsonLines

NOON_MS = 1_794_830_400_000  # 2026-11-16T12:00:00Z


def test_lines_are_numbered_and_what_was_lost_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: run and number name a line for ever; a line that nobody wrote is missed."""
    audit = AuditLines(JsonLines(tmp_path, "audit"), "5f0c", "demo", source="client")
    audit.opened(NOON_MS)
    audit.append(NOON_MS, [{"event": "sent"}, {"event": "sent"}])
    write = os.write

    def refuse(_file: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("twinbus.metering.json_lines.os.write", refuse)
    audit.append(NOON_MS, [{"event": "refused"}])
    monkeypatch.setattr("twinbus.metering.json_lines.os.write", write)
    audit.lost(2)
    audit.closed(NOON_MS + 1)

    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["number"], line["event"]) for line in lines] == [
        (1, "opened"),
        (2, "sent"),
        (3, "sent"),
        (7, "closed"),
    ]
    assert lines[-1] == {
        "version": 1,
        "run": "5f0c",
        "number": 7,
        "source": "client",
        "namespace": "demo",
        "at": "2026-11-16T12:00:00.001Z",
        "entity": "",
        "event": "closed",
    }

"""How a run is counted, without running it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from twinbus.errors import TwinbusError
from verification.fault_campaign.controller import Campaign
from verification.fault_campaign.history import Journal, Tail
from verification.fault_campaign.plan import Plan


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """One that nobody starts."""
    return Campaign(Plan(), tmp_path)


async def test_two_who_look_at_the_same_time_count_once(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "sender-1.0.jsonl", "sender-1.0")
    journal.write("send", "ok", values=("sender-1.0-1", "sender-1.0-2"))
    journal.close()
    find = Tail._new

    def slow(self: Tail, path: Path) -> bytes:
        found = find(self, path)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(Tail, "_new", slow)
    await asyncio.gather(campaign._count(), campaign._count())
    assert campaign._acknowledged == 2


@pytest.mark.parametrize(("answer", "is_empty"), [(0, True), (3, False), (None, False)])
async def test_who_cannot_be_asked_is_not_empty(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, answer: int | None, is_empty: bool
) -> None:
    async def counts() -> AsyncIterator[tuple[str, str, int, int]]:
        yield "primary", "probe", 1, 0
        if answer is None:
            raise TwinbusError("away")
        yield "primary", "orders", answer, 0

    monkeypatch.setattr(campaign, "_counts", counts)
    assert await campaign._is_empty() == is_empty

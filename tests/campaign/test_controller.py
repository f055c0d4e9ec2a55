"""How a run is counted, without running it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from campaign.controller import Campaign
from campaign.history import Journal, Tail, read
from campaign.messages import message_of, print_of
from campaign.plan import Plan
from twinbus.core.encoding import encode_message
from twinbus.core.parcel import Delivered
from twinbus.drivers.amqp import AmqpDriver
from twinbus.errors import TwinbusError


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


async def test_a_dead_letter_is_written_down_with_its_copy_its_print_and_its_reason(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = message_of(campaign.plan, "sender-1.0-7")
    message.properties["DeadLetterReason"] = "too often"
    found = [[Delivered("orders", encode_message(message), 42)], []]

    class Letters:
        """A driver and its receiver at once."""

        def receiver(self, path: str) -> Letters:
            assert path == "orders/$DeadLetterQueue"
            return self

        async def receive(self, _count_max: int, *, wait_s: float) -> list[Delivered]:
            return found.pop(0)

        async def complete(self, _letters: Any, *, timeout_s: float) -> None: ...

        async def close(self) -> None: ...

    monkeypatch.setattr(AmqpDriver, "from_connection_string", lambda _text: Letters())
    monkeypatch.setattr(campaign._site.brokers["primary"], "connection_string", lambda: "")
    await campaign._bury("primary", "orders")

    (event,) = read(tmp_path / "controller.jsonl")
    assert event.values == ("sender-1.0-7",)
    assert (event.what, event.place, event.detail) == ("dead", "orders", "too often")
    assert event.copy == 42
    assert event.print == print_of(message_of(campaign.plan, "sender-1.0-7"))

"""AvailableNow knocks at queues that are far away, or away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import CommunicationError, EntityDisabled, ServiceError, TwinbusError
from twinbus.failover.backoff import Backoff
from twinbus.spark.connector import coordinator
from twinbus.spark.connector.coordinator import AvailableNow

UNTIL_MS = 5_000


class FarReceiver:
    """Its first receive opens the link, which takes longer than it was asked to wait."""

    def __init__(self, *answers: int | ServiceError, open_s: float = 0.0) -> None:
        """An answer is the time at which the message was enqueued, or an error."""
        self._answers = list(answers)
        self._open_s = open_s
        self.given_back: list[int] = []

    async def receive(self, _count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        if self._open_s:
            await asyncio.sleep(self._open_s)
            self._open_s = 0.0
            return []
        if not self._answers:
            await asyncio.sleep(wait_s)
            return []
        answer = self._answers.pop(0)
        if isinstance(answer, ServiceError):
            raise answer
        return [
            ReceivedMessage(path="", encoded=b"", sequence_number=answer, enqueued_at_ms=answer)
        ]

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        self.given_back += [each.sequence_number for each in messages]
        return []


class Knocking:
    """An AvailableNow over some receivers; what it found, and which faults it told."""

    def __init__(self, **receivers: FarReceiver) -> None:
        self.found: dict[str, int] = {}
        self.faults: list[tuple[str, bool]] = []
        self.it = AvailableNow(
            cast(dict[str, Receiver], receivers),
            UNTIL_MS,
            lambda path, error: self.faults.append((path, error is not None)),
        )

    async def knock(self) -> dict[str, int]:
        self.found = {}
        await self.it.probe(lambda path, each: self.found.update({path: each.sequence_number}))
        return self.found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "PROBE_S", 0.02)
    monkeypatch.setattr(coordinator, "PATIENCE_S", 0.3)
    monkeypatch.setattr(coordinator, "Backoff", lambda: Backoff(first_s=0.01, last_s=0.05))


async def test_a_link_that_opens_slowly_is_no_empty_queue() -> None:
    """S1: the wait is for messages. One that the opening used up is begun anew."""
    knocking = Knocking(far=FarReceiver(7, open_s=0.08), empty=FarReceiver())
    assert await knocking.knock() == {"far": 7}
    assert await knocking.knock() == {}


async def test_a_service_that_is_away_for_a_while_is_waited_for() -> None:
    """S1: and told once."""
    away = CommunicationError("nobody is there")
    knocking = Knocking(orders=FarReceiver(away, away, 7))
    assert await knocking.knock() == {"orders": 7}
    assert knocking.faults == [("orders", True), ("orders", False)]


async def test_a_service_that_stays_away_fails_the_query_and_loses_nothing() -> None:
    """S1: to end as if nothing was there would be wrong. What others had is kept all the same."""
    away = [CommunicationError("nobody is there")] * 100
    knocking = Knocking(orders=FarReceiver(*away), news=FarReceiver(8))
    with pytest.raises(TwinbusError, match="is there"):
        await knocking.knock()
    assert knocking.found == {"news": 8}


async def test_what_no_waiting_changes_is_raised_at_once() -> None:
    knocking = Knocking(orders=FarReceiver(EntityDisabled("disabled"), 7))
    with pytest.raises(EntityDisabled):
        await knocking.knock()


async def test_a_queue_is_finished_with_the_first_message_that_came_later() -> None:
    receiver = FarReceiver(UNTIL_MS, UNTIL_MS + 1, 3)
    knocking = Knocking(orders=receiver)
    assert await knocking.knock() == {"orders": UNTIL_MS}
    assert await knocking.knock() == {}
    assert receiver.given_back == [UNTIL_MS + 1]
    assert await knocking.knock() == {}

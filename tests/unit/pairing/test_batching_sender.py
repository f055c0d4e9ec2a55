"""Sends of many callers to one backlog queue share batches, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.pairing.fake_namespace import HANG, FakeNamespace
from twinbus.drivers.interface import may_have_left
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import CommunicationError, MessageRefused, OperationTimeout
from twinbus.pairing.batching_sender import BATCH_COUNT_MAX, BatchingSender

QUEUE = "contoso/x-servicebus-transfer/0"


@pytest.fixture
def away() -> FakeNamespace:
    return FakeNamespace("fabrikam")


def batching(away: FakeNamespace, batch_bytes_max: int = 262_144) -> BatchingSender:
    return BatchingSender(away.sender(QUEUE), batch_bytes_max)


def parcels(*texts: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(text.encode()) for text in texts]


async def send(sender: BatchingSender, *texts: str, timeout_s: float = 5.0) -> None:
    await sender.send(parcels(*texts), timeout_s=timeout_s)


async def test_a_lone_send_waits_for_nobody(away: FakeNamespace) -> None:
    """P24: it is a send of its own."""
    await send(batching(away), "one")
    assert away.batches == [(QUEUE, 1)]


async def test_sends_that_come_together_are_few_batches_in_their_order(away: FakeNamespace) -> None:
    """P24, P25: 500 callers, two sends."""
    sender = batching(away)
    await asyncio.gather(*(send(sender, f"{number:03}") for number in range(500)))
    assert len(away.batches) <= 2
    assert [int(each) for each in away.messages(QUEUE)] == list(range(500))


async def test_a_batch_has_at_most_what_the_queue_takes(away: FakeNamespace) -> None:
    """P24: by bytes and by number; a call is never cut in two."""
    sender = batching(away, batch_bytes_max=10_000)
    await asyncio.gather(*(send(sender, "x" * 2_000, "y" * 2_000) for _ in range(4)))
    assert [count for _path, count in away.batches] == [4, 4]

    away.batches.clear()
    await asyncio.gather(*(send(batching(away), "x") for _ in range(3)))
    sender = batching(away, batch_bytes_max=1 << 20)
    await asyncio.gather(*(send(sender, "x") for _ in range(BATCH_COUNT_MAX + 5)))
    assert max(count for _path, count in away.batches) == BATCH_COUNT_MAX


async def test_one_bad_message_does_not_fail_the_calls_of_others(away: FakeNamespace) -> None:
    """P24: the batch is refused, so each call is sent by itself."""
    sender = batching(away)
    refused = MessageRefused("the batch holds something bad", path=QUEUE)
    away.answer_once(QUEUE, refused, None, refused, None)
    results = await asyncio.gather(
        *(send(sender, text) for text in ("good", "bad", "fine")), return_exceptions=True
    )
    assert [type(each) for each in results] == [type(None), MessageRefused, type(None)]
    assert away.messages(QUEUE) == [b"good", b"fine"]


async def test_trouble_with_the_queue_is_every_callers_own_error(away: FakeNamespace) -> None:
    """P24: each may change its own, and none is tried again here."""
    sender = batching(away)
    away.answer(QUEUE, CommunicationError("gone", path=QUEUE, was_sent=False))
    results = await asyncio.gather(
        *(send(sender, str(number)) for number in range(3)), return_exceptions=True
    )
    assert [type(each) for each in results] == [CommunicationError] * 3
    assert len({id(each) for each in results}) == 3
    assert len(away.attempts) == 1


async def test_every_caller_keeps_its_own_deadline(away: FakeNamespace) -> None:
    """P24: one that runs out is in doubt only if its messages were under way."""
    sender = batching(away)
    away.answer_once(QUEUE, HANG)
    first = asyncio.create_task(send(sender, "under way", timeout_s=0.2))
    await asyncio.sleep(0.05)
    with pytest.raises(OperationTimeout) as waiting:
        await send(sender, "waiting", timeout_s=0.05)
    with pytest.raises(OperationTimeout) as under_way:
        await first
    assert not waiting.value.is_ambiguous and under_way.value.is_ambiguous
    assert away.messages(QUEUE) == []


async def test_a_caller_that_leaves_takes_only_its_own_messages_away(away: FakeNamespace) -> None:
    """P24: before they are under way; and whether they were, it is told."""
    sender = batching(away)
    away.answer_once(QUEUE, "slow")
    first = asyncio.create_task(send(sender, "first"))
    await asyncio.sleep(0.01)
    leaving, staying = (asyncio.create_task(send(sender, text)) for text in ("leaving", "staying"))
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError) as left:
        await leaving
    await first
    await staying
    assert away.messages(QUEUE) == [b"first", b"staying"]
    assert not may_have_left(left.value)


async def test_a_batch_whose_callers_have_all_left_does_not_hold_up_others(
    away: FakeNamespace,
) -> None:
    """P24: the queue did not answer them, and may answer the next one."""
    sender = batching(away)
    away.answer_once(QUEUE, HANG)
    gone = asyncio.create_task(send(sender, "gone"))
    await asyncio.sleep(0.01)
    gone.cancel()
    async with asyncio.timeout(1):
        await send(sender, "next")
    assert away.messages(QUEUE) == [b"next"]


async def test_closing_is_an_error_for_those_who_wait(away: FakeNamespace) -> None:
    """P24: a cancellation that nobody asked for would pass for a quiet end."""
    sender = batching(away)
    away.answer(QUEUE, HANG)
    calls = [asyncio.create_task(send(sender, "first"))]
    await asyncio.sleep(0.01)
    calls += [asyncio.create_task(send(sender, str(number))) for number in range(2)]
    await asyncio.sleep(0.01)
    await sender.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in results] == [CommunicationError] * 3
    assert [getattr(each, "is_ambiguous", None) for each in results] == [True, False, False]


async def test_an_attempt_that_was_cancelled_inside_is_no_success(away: FakeNamespace) -> None:
    """P24: nobody knows what became of the message."""
    inner = away.sender(QUEUE)

    async def gives_up(_messages: object, *, timeout_s: float) -> None:
        raise asyncio.CancelledError

    inner.send = gives_up  # type: ignore[method-assign]
    with pytest.raises(CommunicationError) as raised:
        await send(BatchingSender(inner, 262_144), "one")
    assert raised.value.is_ambiguous


async def test_a_timeout_that_the_queue_answers_is_raised_as_it_is(away: FakeNamespace) -> None:
    """P18: it is a TimeoutError, too, and must not be taken for the end of the caller's time."""
    answer = OperationTimeout("too busy", path=QUEUE, condition="com.microsoft:timeout")
    answer.is_ambiguous = False
    away.answer(QUEUE, answer)
    with pytest.raises(OperationTimeout, match="busy") as raised:
        await send(batching(away), "one")
    assert raised.value.condition == "com.microsoft:timeout"
    assert not raised.value.is_ambiguous

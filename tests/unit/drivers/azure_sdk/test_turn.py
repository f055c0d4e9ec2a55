"""One call at a time has the SDK's sender; those that wait can fail together."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.drivers.azure_sdk.sender_lock import SenderLock
from twinbus.errors import CommunicationError


async def test_calls_have_their_turn_in_the_order_in_which_they_came() -> None:
    turn, order = SenderLock(), list[int]()

    async def call(number: int) -> None:
        if not turn.take():
            await turn.wait()
        order.append(number)
        await asyncio.sleep(0)
        turn.release()

    await asyncio.gather(*(call(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert turn.take()


async def test_all_who_wait_fail_together_each_with_an_error_of_its_own() -> None:
    """P25: a link that cannot be opened for one call cannot be opened for the next."""
    turn = SenderLock()
    assert turn.take()
    waiting = [asyncio.create_task(turn.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    turn.fail(lambda: CommunicationError("refused", was_sent=False))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in results] == [CommunicationError] * 3
    assert len({id(each) for each in results}) == 3
    turn.release()
    assert turn.take()


async def test_a_call_that_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    turn = SenderLock()
    assert turn.take()
    first, second = (asyncio.create_task(turn.wait()) for _ in range(2))
    await asyncio.sleep(0)
    turn.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(1):
        await second

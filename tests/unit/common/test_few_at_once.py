"""The same work for many, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.common.event_loop import bounded_gather


async def test_results_come_in_the_order_of_the_items() -> None:
    async def doubled(number: int) -> int:
        await asyncio.sleep(0.001 * (5 - number))
        return 2 * number

    assert await bounded_gather(range(5), doubled, concurrency_max=2) == [0, 2, 4, 6, 8]


async def test_the_first_error_ends_what_is_under_way() -> None:
    """P1: a pairing that failed does not go on making queues behind the caller's back."""
    before = asyncio.all_tasks()

    async def work(number: int) -> None:
        if number == 1:
            raise ValueError(number)
        await asyncio.sleep(30)

    with pytest.raises(ValueError, match="1"):
        await bounded_gather(range(5), work, concurrency_max=2)
    assert asyncio.all_tasks() == before

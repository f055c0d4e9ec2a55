"""The same work for many, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["bounded_gather"]

Item = TypeVar("Item")
Result = TypeVar("Result")


async def bounded_gather(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], *, concurrency_max: int
) -> list[Result]:
    """The results in the order of the items; the first error ends it, and all that is under way."""
    turns = asyncio.Semaphore(concurrency_max)

    async def one(item: Item) -> Result:
        async with turns:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

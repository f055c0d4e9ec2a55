"""A service that misbehaves on request, and proof that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.drivers.amqp.rogue import Rogue, rogue_service
from twinbus.drivers.amqp import AmqpDriver


@pytest.fixture
async def rogue() -> AsyncIterator[Rogue]:
    async with rogue_service() as service:
        yield service


@pytest.fixture
async def driver(rogue: Rogue) -> AsyncIterator[AmqpDriver]:
    opened = rogue.driver()
    yield opened
    await opened.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}

"""A backlog of its own for every test that kills somebody."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.syphon.drains import Drain, filled


@pytest.fixture
async def drain(pair: SparkPair) -> AsyncIterator[Drain]:
    made = await filled(pair)
    yield made
    await made.scene.close()

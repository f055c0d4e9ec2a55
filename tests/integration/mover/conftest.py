"""One pair of brokers for the tests that leave them alive; killers start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.mover.brokers import Pair, Scene


@pytest.fixture(scope="session")
def standing_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("mover")) as pair:
        yield pair


@pytest.fixture
async def scene(standing_pair: Pair) -> AsyncIterator[Scene]:
    opened = Scene(standing_pair)
    yield opened
    await opened.close()


@pytest.fixture
async def mortal_scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Brokers that a test may kill."""
    with Pair(tmp_path) as pair:
        opened = Scene(pair)
        yield opened
        await opened.close()

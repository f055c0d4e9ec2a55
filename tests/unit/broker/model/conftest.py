"""The models know no time of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.simulated_loop import without_turns


@pytest.fixture(autouse=True)
def _without_turns() -> Iterator[None]:
    with without_turns():
        yield

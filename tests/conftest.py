"""What all tests share."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

FAST = "fast"
FAST_EXAMPLES_MAX = 25

# How long an example takes depends on the machine. What must be quick has tests of its own.
settings.register_profile("twinbus", deadline=None)
# For `make test-fast`: always the same examples, and few of them.
settings.register_profile(
    FAST, deadline=None, derandomize=True, database=None, max_examples=FAST_EXAMPLES_MAX
)
settings.load_profile("twinbus")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that chooses a number of examples itself gets few of them, too."""
    if config.getoption("--hypothesis-profile") != FAST:
        return
    for item in items:
        test = getattr(item, "obj", None)
        # Hypothesis has no public way to change the settings of a test after its definition.
        chosen = getattr(test, "_hypothesis_internal_use_settings", None)
        if chosen is not None and chosen.max_examples > FAST_EXAMPLES_MAX:
            fewer = settings(
                chosen, derandomize=True, database=None, max_examples=FAST_EXAMPLES_MAX
            )
            getattr(test, "__func__", test)._hypothesis_internal_use_settings = fewer


def pytest_collection_finish() -> None:
    """The tests themselves are no garbage: twelve thousand of them, and all that they import.

    A collector that looks at them again and again takes a third of the time of tests that make many
    objects.
    """
    gc.collect()
    gc.freeze()

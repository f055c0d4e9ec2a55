"""What all tests share."""

from __future__ import annotations

import gc

from hypothesis import settings

# How long an example takes depends on the machine. What must be quick has tests of its own.
settings.register_profile("twinbus", deadline=None)
settings.load_profile("twinbus")


def pytest_collection_finish() -> None:
    """The tests themselves are no garbage: twelve thousand of them, and all that they import.

    A collector that looks at them again and again takes a third of the time of tests that make many
    objects.
    """
    gc.collect()
    gc.freeze()

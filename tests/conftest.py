"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes depends on the machine. What must be quick has tests of its own.
settings.register_profile("twinbus", deadline=None)
settings.load_profile("twinbus")

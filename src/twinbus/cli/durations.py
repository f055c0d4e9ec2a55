"""Times as they are written on a command line: as everywhere else."""

from __future__ import annotations

from twinbus.durations import seconds

__all__ = ["seconds"]

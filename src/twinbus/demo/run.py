"""One run of the demo, from its plan to its result."""

from __future__ import annotations

import asyncio
from pathlib import Path

from twinbus.demo.files import opened_files
from twinbus.demo.plan import Plan
from twinbus.demo.result import Result
from twinbus.demo.screen import PlainScreen, Screen
from twinbus.demo.story import Story
from twinbus.spark.java import find_java
from twinbus.spark.session import require_pyspark

__all__ = ["run_demo"]


def run_demo(plan: Plan, keep: Path | None, screen: Screen | None = None) -> Result:
    """Play the story; ``keep`` is a new directory for everything that it writes."""
    # Said now, and not in the middle of the outage.
    require_pyspark()
    find_java()
    with opened_files(keep) as files:
        result = asyncio.run(Story(plan, files, screen or PlainScreen()).run())
        files.note("result.json", result.to_json())
    return result

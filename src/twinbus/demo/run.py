"""One run of the demo, from its plan to its result."""

from __future__ import annotations

import asyncio
import signal
from contextlib import nullcontext, suppress
from pathlib import Path

from twinbus.demo.files import opened_files
from twinbus.demo.live import screen_here
from twinbus.demo.plan import DemoScenario
from twinbus.demo.result import Result
from twinbus.demo.screen import Screen
from twinbus.demo.story import OutageDemo
from twinbus.errors import TwinbusError
from twinbus.spark.java import find_java
from twinbus.spark.session import require_pyspark

__all__ = ["run_demo"]


def run_demo(plan: DemoScenario, keep: Path | None, screen: Screen | None = None) -> Result:
    """Play the story; ``keep`` is a new directory for everything that it writes."""
    # Said now, and not in the middle of the outage.
    require_pyspark()
    find_java()
    with opened_files(keep) as files:
        with screen_here() if screen is None else nullcontext(screen) as shown:
            result = asyncio.run(_played(OutageDemo(plan, files, shown)))
        files.note("result.json", result.to_json())
    return result


async def _played(story: OutageDemo) -> Result:
    task = asyncio.ensure_future(story.run())
    with suppress(NotImplementedError, AttributeError):  # Windows: Ctrl-C alone.
        # A terminal that is closed, too: nothing is left behind. Ctrl-C by name, because who was
        # started in the background of a script ignores it otherwise, and the brokers do not.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise TwinbusError("the demo was stopped before its end") from None

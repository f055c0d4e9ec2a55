"""Stories of one queue in a world that a seed decides (``tests/support/queue_simulation``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.queue_simulation import story
from tests.support.queue_simulation.shadow import Broken
from tests.support.queue_simulation.world import World
from tests.unit.broker.engine.test_simulation import small_limits
from twinbus.broker.storage.sqlite_store import SqliteStore


@dataclass(frozen=True, slots=True)
class Stories:
    """Stories, one after the other; on disk or in memory."""

    name: str = "stories"
    unit: str = "stories"
    rounds_max: int = 4_000
    has_processes: bool = False
    is_on_disk: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        # A full disk is told to the log every time.
        logging.disable(logging.CRITICAL)
        with small_limits():
            for seed in range(self.rounds_max):
                yield self._told(seed, directory / f"{seed}.db")

    def _told(self, seed: int, path: Path) -> list[str]:
        store = SqliteStore(path) if self.is_on_disk else None
        try:
            story.tell(World(seed, store))
        except Broken as broken:
            return [str(broken)]
        except Exception as error:  # A bug may show itself in any way; the check is not named then.
            return [f"{type(error).__name__}: {error}"]
        finally:
            if store is not None:
                store.close()
        return []

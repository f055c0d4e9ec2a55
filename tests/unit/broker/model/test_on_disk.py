"""The same comparisons over SQLite: a restart opens the file again, and audits it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.broker.model.machine import OPTIONS, Machine
from tests.unit.broker.model.test_queue import QueueAndModel
from tests.unit.broker.model.test_session_queue import SessionsAndModel
from tests.unit.broker.model.test_topic import TopicAndModel
from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.sqlite_store import SqliteStore

pytestmark = pytest.mark.slow

# A commit of a real disk costs a hundred times as much as one in memory.
EXAMPLES = 20


class OnDisk(Machine):
    """A machine whose store is a file."""

    def store(self) -> Store:
        self._directory = tempfile.TemporaryDirectory(prefix="twinbus-model-")
        self._store = SqliteStore(Path(self._directory.name) / "store.db")
        return self._store

    def teardown(self) -> None:
        if not hasattr(self, "_store"):
            return
        try:
            super().teardown()
            self._store.verify_all()
        finally:
            self._store.close()
            self._directory.cleanup()


class QueueOnDisk(OnDisk, QueueAndModel):
    """A queue."""


class SessionsOnDisk(OnDisk, SessionsAndModel):
    """A queue with sessions."""


class TopicOnDisk(OnDisk, TopicAndModel):
    """A topic."""


@pytest.mark.parametrize("machine", [QueueOnDisk, SessionsOnDisk, TopicOnDisk])
def test_entities_on_disk_do_what_their_models_say(machine: type[Machine]) -> None:
    """M2, M3, M4, M8: what a restart finds on disk is what clients were told."""
    run_state_machine_as_test(machine, settings=settings(OPTIONS, max_examples=EXAMPLES))

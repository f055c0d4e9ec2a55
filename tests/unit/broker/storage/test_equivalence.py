"""The two drivers are one store: whatever is done to both, both say the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from twinbus.broker.storage.interface import Op, Recovered
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.workload import (
    Workload,
    answers_about_sessions,
    answers_in_time,
    content,
)

chance = st.randoms(use_true_random=False)


class TwoDrivers(RuleBasedStateMachine):
    """M8: the durable store holds what the model in memory holds, also after a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="twinbus-equivalence-"))
        self.sqlite = SqliteStore(self.directory / "store.db")
        self.memory = MemoryStore()
        self.workload = Workload()
        self.sqlite.open()
        self.memory.open()

    def teardown(self) -> None:
        self.sqlite.close()
        shutil.rmtree(self.directory)

    def commit(self, ops: list[Op]) -> None:
        for store in (self.sqlite, self.memory):
            store.commit(ops)

    def reopen(self) -> tuple[Recovered, Recovered]:
        self.sqlite.close()
        self.memory.close()
        self.sqlite = SqliteStore(self.directory / "store.db")
        return self.sqlite.open(), self.memory.open()

    @initialize(random=chance)
    def begin(self, random: Random) -> None:
        self.commit(self.workload.create_queue(random) + self.workload.send(random))

    @rule(random=chance)
    def change_anything(self, random: Random) -> None:
        self.commit(self.workload.anything(random))

    @rule(random=chance)
    def send(self, random: Random) -> None:
        self.commit(self.workload.send(random))

    @rule(random=chance)
    def settle(self, random: Random) -> None:
        self.commit(self.workload.settle(random))

    @rule()
    def maintain(self) -> None:
        self.sqlite.maintain()

    @rule()
    def restart(self) -> None:
        from_sqlite, from_memory = self.reopen()
        assert content(self.sqlite, from_sqlite) == content(self.memory, from_memory)

    @rule(now_ms=st.integers(0, 60))
    def ask_about_time(self, now_ms: int) -> None:
        for queue_id in self.workload.queues:
            assert answers_in_time(self.sqlite, queue_id, now_ms) == answers_in_time(
                self.memory, queue_id, now_ms
            )

    @invariant()
    def every_queue_is_the_same(self) -> None:
        for queue_id in self.workload.queues:
            for after_seq in (0, 7):
                assert self.sqlite.load_chunks(queue_id, after_seq, 900, 9) == (
                    self.memory.load_chunks(queue_id, after_seq, 900, 9)
                )
                assert answers_about_sessions(self.sqlite, queue_id, after_seq) == (
                    answers_about_sessions(self.memory, queue_id, after_seq)
                )
                assert self.sqlite.load_deferred_seqs(queue_id, after_seq, 9) == (
                    self.memory.load_deferred_seqs(queue_id, after_seq, 9)
                )


TestTwoDrivers = TwoDrivers.TestCase
TestTwoDrivers.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

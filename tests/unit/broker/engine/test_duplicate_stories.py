"""Duplicate detection on many bad days: random sends, refusals, crashes, late news of commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from tests.support.engine.driver import FULL, Answer, Driver
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.stored_message import MessageKeys, chunk_starts, unpack_record
from twinbus.broker.storage.interface import ChunkRow

WINDOW_S = 20
IDS = "abcde"
STEPS = 120


@dataclass
class Sent:
    """A message that somebody sent, and what became of it."""

    message_id: str
    at_s: float
    answer: Answer
    body: str


@dataclass
class Story:
    """One queue, and everybody who sends to it."""

    random: Random
    driver: Driver = field(
        default_factory=lambda: Driver(
            requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_S * 1_000
        )
    )
    now_s: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    stored_at_s: dict[str, float] = field(default_factory=dict)
    on_its_way: Callable[[], None] | None = None

    def send(self) -> None:
        """One to three messages together."""
        answer, messages = Answer(), []
        for _ in range(self.random.randint(1, 3)):
            message_id, body = self.random.choice(IDS), f"body-{len(self.sent)}"
            message = self.driver.message(body)
            message.facts = MessageKeys(message_id, None, None, self.driver.now.wall_ms)
            messages.append(message)
            self.sent.append(Sent(message_id, self.now_s, answer, body))
        self.driver.queue.enqueue(messages, answer)

    def begin_commit(self) -> None:
        """The batch is on disk, and the queue does not know yet."""
        if self.on_its_way is None and self.driver.queue.is_dirty:
            self.on_its_way = self.driver.begin_commit()
            self._look_at_disk()

    def tell(self) -> None:
        if self.on_its_way is not None:
            self.on_its_way()
            self.on_its_way = None

    def begin_refusal(self) -> None:
        """The batch is on its way to a disk that is full."""
        if self.on_its_way is None and self.driver.queue.is_dirty:
            machines, _ops = self.driver._close()

            def tell() -> None:
                for ticket in (ticket for machine in machines for ticket in machine.failed()):
                    ticket.failed(FULL)

            self.on_its_way = tell

    def crash(self) -> None:
        self.on_its_way = None
        self.driver.restart()

    def pass_time(self) -> None:
        self.now_s += self.random.choice((0.5, 3.0, WINDOW_S + 1.0))
        self.driver.at(self.now_s)
        if self.on_its_way is None and self.random.random() < 0.5:
            self.driver.queue.handle_timer(self.driver.now)

    def _look_at_disk(self) -> None:
        store, queue_id = self.driver.store, self.driver.queue.queue_id
        for loaded in store.load_chunks(queue_id, 0, 1 << 30, 1_000_000):
            for body in bodies_in(loaded.row):
                self.stored_at_s.setdefault(body, self.now_s)

    def run(self) -> None:
        steps = [self.send] * 4 + [self.begin_commit] * 2 + [self.tell] * 3
        steps += [self.begin_refusal, self.crash, self.pass_time]
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.tell()
        self.begin_commit()
        self.tell()

    def check(self) -> None:
        """Nothing acknowledged is missing, and nothing is there twice within the window."""
        times: dict[str, list[float]] = defaultdict(list)
        for each in self.sent:
            if each.body in self.stored_at_s:
                times[each.message_id].append(self.stored_at_s[each.body])
        for message_id, stored in times.items():
            stored.sort()
            for earlier, later in pairwise(stored):
                assert later - earlier >= WINDOW_S, f"{message_id} twice, at {earlier} and {later}"
        for each in self.sent:
            if each.answer.is_stored:
                near = [at for at in times[each.message_id] if at > each.at_s - WINDOW_S - 0.001]
                assert near, f"{each.message_id} was acknowledged and is nowhere"


def bodies_in(row: ChunkRow) -> list[str]:
    found = []
    for start, end in pairwise(chunk_starts(row.blob, row.count)):
        body = Message.decode(unpack_record(row.blob, start, end).bare).body
        assert isinstance(body, bytes)
        found.append(body.decode())
    return found


@pytest.mark.parametrize("seed", range(60))
def test_nothing_acknowledged_is_missing_and_nothing_is_doubled(seed: int) -> None:
    """M3, M8: whatever is refused, killed or told late."""
    story = Story(Random(seed))
    story.run()
    story.check()
    assert story.stored_at_s

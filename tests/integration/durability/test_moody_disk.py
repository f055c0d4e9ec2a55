"""A disk that is full every now and then, under everything at once: forwards, copies, duplicates.

    q0 --> topic t --> s1 --> q9 (detects duplicates) --dead letters--> qd
                  +--> s2 (sessions)
                  +--> s3 (a rule)

Rule 1: what a client was told is stored arrives once at every end of its ways.
Rule 2: entities may come and go meanwhile: the namespace goes on, and opens again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.integration.durability.test_kill_nine import verify_store
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec, QueueDescription
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.engine.filters import RuleDescription, SqlFilter, TrueFilter
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE, RELEASE, DeadLetter
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import IncomingMessage, Record, facts_of, pack_record
from twinbus.broker.namespace import forwarder as forwarding_module
from twinbus.broker.namespace import namespace as namespace_module
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.broker.storage.data_directory import DataDirectory
from twinbus.broker.storage.interface import Op, Store
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreFull, TwinbusError

LOAD_S = 3.0
QUIET_LOOKS = 5
# How often a commit finds the disk full, and how long one takes at most: long enough that the
# next one has much to do.
FULL = 0.25
COMMIT_S_MAX = 0.008
SUBSCRIPTIONS = "t/subscriptions/"
Q9 = QueueDescription(
    path="q9",
    requires_duplicate_detection=True,
    forward_dead_lettered_messages_to="qd",
    max_delivery_count=3,
)
T = TopicDescription(path="t", requires_duplicate_detection=True)
S1 = SubscriptionDescription(path=SUBSCRIPTIONS + "s1", forward_to="q9")
S2 = SubscriptionDescription(path=SUBSCRIPTIONS + "s2", requires_session=True)
S3 = SubscriptionDescription(path=SUBSCRIPTIONS + "s3")
Q0 = QueueDescription(path="q0", forward_to="t")
THREES = RuleDescription("threes", SqlFilter("sys.MessageId LIKE '%3'"))
MORE = RuleDescription("more", TrueFilter())


@dataclass
class Mood:
    """Whether commits are refused at the moment."""

    random: Random
    is_bad: bool = False


class Told:
    """A ticket of a client that notes what was stored."""

    def __init__(self, ids: list[str], stored: set[str]) -> None:
        self._ids, self._stored = ids, stored

    def stored(self, seqs: range) -> None:
        self._stored.update(self._ids)

    def failed(self, error: Exception) -> None: ...


@dataclass
class Crowd:
    """Clients of one namespace, inside its process so that nothing slows them down."""

    namespace: RunningNamespace
    random: Random
    sent: list[str] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    """What was sent to where it goes everywhere, and was acknowledged."""
    stored_in_q9: set[str] = field(default_factory=set)
    taken: dict[str, Counter[str]] = field(default_factory=dict)
    """What receivers asked to complete; such a wish is carried out in the end."""
    _repeats: list[tuple[float, list[str]]] = field(default_factory=list)

    def machine(self, path: str) -> Queue | None:
        return self.namespace.access.catalogue.find(path)

    # -- sending --------------------------------------------------------------------------

    def send_something(self) -> None:
        """New messages, with old ones among them; often the same again somewhere else, soon."""
        new = [f"m{len(self.sent) + n}" for n in range(self.random.randint(1, 4))]
        self.sent += new
        ids = [*new, self.random.choice(self.sent)] if self.random.random() < 0.3 else new
        path = self.random.choice(("q0", "q0", "t", "t", "q9"))
        self._send(path, ids, self.stored_in_q9 if path == "q9" else self.stored)
        if self.random.random() < 0.4:
            at_s = time.monotonic() + self.random.choice((0.005, 0.01, 0.02, 0.05))
            self._repeats.append((at_s, ids))
        for at_s, again in list(self._repeats):
            if at_s < time.monotonic():
                self._repeats.remove((at_s, again))
                # Whether this one is refused says nothing about the first.
                self._send(self.random.choice(("t", "q9")), again, set())

    def _send(self, path: str, ids: list[str], stored: set[str]) -> None:
        queue = self.machine(path)
        if queue is not None:
            queue.enqueue([self._message(each) for each in ids], Told(ids, stored))
            self.namespace.access.touch(queue)

    def _message(self, message_id: str) -> IncomingMessage:
        properties = Properties(message_id=message_id, group_id=f"g{message_id[-1]}")
        body = b"x" * self.random.choice((5, 400))
        record = pack_record(Record(Message(properties=properties, body=body).encode()))
        now_ms = self.namespace.access.now().wall_ms
        due_ms = now_ms + self.random.randint(1, 300) if self.random.random() < 0.15 else None
        return IncomingMessage(record, None, due_ms, facts_of(record, now_ms))

    # -- receiving ------------------------------------------------------------------------

    def receive(self, path: str) -> None:
        """Somebody receives there from now on, and settles as it likes."""
        queue = self.machine(path)
        assert queue is not None
        taken = self.taken.setdefault(path, Counter())
        consumer = Consumer(_nowhere, unsettled_max=50, credit=1 << 30)
        consumer.deliver = partial(self._settle, queue, taken)
        queue.attach(consumer)
        queue.credit_available(consumer)
        self.namespace.access.touch(queue)

    def _settle(self, queue: Queue, taken: Counter[str], grant: DeliveryBatch) -> None:
        outcomes = [COMPLETE, ABANDON, RELEASE, DeadLetter("moody")]
        assert grant.run is not None
        for index in range(grant.start, grant.start + grant.count):
            (outcome,) = self.random.choices(outcomes, (60, 15, 10, 15))
            if outcome is COMPLETE:
                taken[_id_at(grant.chunk, grant.blob, index)] += 1
            now = self.namespace.access.now()
            queue.settle(grant.run, 1 << index, outcome, now, None)
        self.namespace.access.touch(queue)

    def left_in(self, queue: Queue | None) -> Counter[str]:
        """What is on disk and not gone."""
        assert queue is not None
        ids: Counter[str] = Counter()
        store: Store = self.namespace.access._store
        for loaded in store.load_chunks(queue.queue_id, 0, 1 << 30, 1 << 20):
            chunk = Chunk.from_store(loaded)
            there = (index for index in range(chunk.count) if not chunk.gone >> index & 1)
            ids.update(_id_at(chunk, loaded.row.blob, index) for index in there)
        return ids

    def is_quiet(self) -> bool:
        """Everything that moves has come to its end."""
        machines = [self.machine(path) for path in ("q0", "q9", "qd", "t", S1.path, S3.path)]
        q9 = self.machine("q9")
        machines.append(q9.dead_letters if q9 is not None else None)
        return not any(
            machine is None or machine.active_count or machine.scheduled_count or machine.is_dirty
            for machine in machines
        )

    async def until_quiet(self) -> None:
        """Quiet in several looks, with a commit between two of them.

        What a commit on its way holds is in no queue until it is written, however slow the disk
        is. A commit that begins after the look ends after it.
        """
        deadline_s = time.monotonic() + 60
        looks = 0
        while looks < QUIET_LOOKS:
            looks = looks + 1 if self.is_quiet() else 0
            assert time.monotonic() < deadline_s, "something moves all the time"
            await self.namespace.create_queue("look")
            await self.namespace.delete_queue("look")
            await asyncio.sleep(0.05)


def _nowhere(_grant: DeliveryBatch) -> None: ...


def _id_at(chunk: Chunk, blob: bytes, index: int) -> str:
    return facts_of(blob[chunk.starts[index] : chunk.starts[index + 1]]).message_id or ""


@asynccontextmanager
async def moody(
    data: Path, monkeypatch: pytest.MonkeyPatch, random: Random
) -> AsyncIterator[tuple[RunningNamespace, Mood]]:
    """A namespace on such a disk, with all its entities."""
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 0.01)
    monkeypatch.setattr(forwarding_module, "RETRY_S", 0.02)
    mood, commit = Mood(random), SqliteStore.commit

    def commit_or_not(store: SqliteStore, ops: Sequence[Op]) -> None:
        if mood.is_bad:
            time.sleep(random.uniform(0.0, COMMIT_S_MAX))
            if random.random() < FULL:
                raise StoreFull(path="moody")
        commit(store, ops)

    monkeypatch.setattr(SqliteStore, "commit", commit_or_not)
    async with Broker(BrokerOptions(data_directory=data)) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=["qd"]))
        for description in (Q9, T):
            await namespace.access.create_queue(description)
        for subscription in (S1, S2):
            await namespace.create_subscription(subscription)
        await namespace.create_subscription(S3, [THREES])
        await namespace.create_queue(Q0)
        yield namespace, mood
        mood.is_bad = False


async def test_a_moody_disk_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: refusals, moves, copies, due messages and duplicates meet in every commit."""
    random = Random(1)
    async with moody(tmp_path / "data", monkeypatch, random) as (namespace, mood):
        # Given much that happens on such a disk
        crowd = Crowd(namespace, random)
        for path in ("q9", "qd", S3.path):
            crowd.receive(path)
        mood.is_bad = True
        until_s = time.monotonic() + LOAD_S
        while time.monotonic() < until_s:
            crowd.send_something()
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.01)))

        # When it has room for good, and all has come to its end
        mood.is_bad = False
        await crowd.until_quiet()

        # Then what was stored is at every end, once, and everywhere only what was sent
        dead, s3 = crowd.machine("qd"), crowd.machine(S3.path)
        assert dead is not None and s3 is not None
        ends = {
            "q9": crowd.taken["q9"] + crowd.taken["qd"] + crowd.left_in(dead.dead_letters),
            "s2": crowd.left_in(crowd.machine(S2.path)),
            "s3": crowd.taken[S3.path] + crowd.left_in(s3.dead_letters),
        }
        wanted = {
            "q9": crowd.stored | crowd.stored_in_q9,
            "s2": crowd.stored,
            "s3": {each for each in crowd.stored if each.endswith("3")},
        }
    assert min(map(len, wanted.values())) > 10
    for end, found in ends.items():
        assert wanted[end] - set(found) == set(), end
        assert [each for each, count in found.items() if count > 1] == [], end
        assert set(found) <= set(crowd.sent), end
    verify_store(tmp_path / "data")


async def test_entities_may_come_and_go_on_a_moody_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: whatever is refused, the namespace goes on and can be opened again."""
    random = Random(2)
    async with moody(tmp_path / "data", monkeypatch, random) as (namespace, mood):
        # Given sends while an administrator makes and deletes everything that they go through
        crowd = Crowd(namespace, random)
        changes: list[Callable[[], Awaitable[object]]] = [
            partial(namespace.purge, "q9"),
            partial(namespace.delete_queue, "q0"),
            partial(namespace.create_queue, Q0),
            partial(namespace.delete_queue, "qd"),
            partial(namespace.create_queue, "qd"),
            partial(namespace.delete_subscription, "t", "s3"),
            partial(namespace.create_subscription, S3),
            partial(namespace.create_rule, "t", "s3", MORE),
            partial(namespace.update_rule, "t", "s3", MORE),
            partial(namespace.delete_rule, "t", "s3", "more"),
            partial(namespace.delete_topic, "t"),
            partial(namespace.create_topic, T),
            partial(namespace.create_subscription, S1),
            partial(namespace.reset, keep_entities=True),
        ]
        mood.is_bad = True
        tasks: list[asyncio.Task[None]] = []
        until_s = time.monotonic() + LOAD_S
        while time.monotonic() < until_s:
            crowd.send_something()
            if random.random() < 0.2:
                tasks.append(asyncio.create_task(_tried(random.choice(changes))))
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.01)))

        # Then nothing of it ends the namespace, and every request is answered
        mood.is_bad = False
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert namespace.access.failure is None
        assert len(crowd.stored) > 10

    # And it opens again with what it had
    verify_store(tmp_path / "data")
    _recovers(tmp_path / "data")


async def _tried(change: Callable[[], Awaitable[object]]) -> None:
    with suppress(TwinbusError):
        await change()


def _recovers(data: Path) -> None:
    """A broker that begins anew can make its entities from what is on disk."""
    directory = DataDirectory(data)
    store = SqliteStore(directory.namespace_store_path("demo"))
    found: Iterable[Queue] = Catalogue(store.open(), Random(3)).entities()
    assert {"q9"} <= {queue.description.path for queue in found}
    store.close()
    directory.close()

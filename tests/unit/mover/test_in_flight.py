"""How much is on the primary and in the backlog at once: what a kill would double."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.mover.fake_namespace import FakeNamespace, FakeReceiver
from tests.support.mover.messages import backlog
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import EntityDisabled, MessageRefused, OperationTimeout, ServiceError
from twinbus.failover.backoff import Backoff
from twinbus.mover.in_flight_limit import InFlightLimit
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import ReceiptOutcome

QUEUES = [f"east/x-servicebus-transfer/{index}" for index in range(3)]


def options(**more: object) -> MoverOptions:
    given = {"backoff": Backoff(first_s=0.01, last_s=0.05), "poll_s": 0.05, **more}
    return MoverOptions(rules=DeliveryRules(primary_name="east"), **given)  # type: ignore[arg-type]


# -- the room alone ---------------------------------------------------------------------------


async def test_who_finds_no_room_waits_until_some_is_free() -> None:
    room = InFlightLimit(4)
    for path in ("orders", "orders", "orders", "news"):
        await room.acquire({path: 1})
    waiting = asyncio.create_task(room.acquire({"news": 1}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    room.release("orders", 1)
    assert await waiting == ["news"]
    assert room.count == 4


async def test_who_waits_is_served_in_turn() -> None:
    room, served = InFlightLimit(12), []

    async def one(name: str, count: int) -> None:
        await room.acquire({name: count})
        served.append(name)

    for path in ("orders", "orders", "orders", "news"):
        await room.acquire({path: 3})
    tasks = [asyncio.create_task(one("large", 3)), asyncio.create_task(one("small", 1))]
    await asyncio.sleep(0)
    room.release("orders", 2)
    await asyncio.sleep(0.01)
    # A small one does not pass: the large one would wait for ever
    assert served == []
    room.release("orders", 2)
    await asyncio.gather(*tasks)
    assert served == ["large", "small"]


async def test_a_piece_gets_its_room_as_a_whole() -> None:
    room = InFlightLimit(12)
    for path in ("a", "b", "c"):
        await room.acquire({path: 3})
    await room.acquire({"d": 1})
    waiting = asyncio.create_task(room.acquire({"a": 1, "e": 2}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    room.release("d", 1)
    assert await waiting == ["a", "e"]


async def test_no_destination_gets_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Y4: it may be a silent one; the rest of a piece goes without it."""
    monkeypatch.setattr("twinbus.mover.in_flight_limit.STUCK_S", 0.05)
    room = InFlightLimit(12)
    for _ in range(3):
        await room.acquire({"silent": 3})
    alone = asyncio.create_task(room.acquire({"silent": 3}))
    async with asyncio.timeout(5):
        assert await room.acquire({"silent": 1, "live": 2}) == ["live"]
    assert not alone.done()
    room.release("live", 2)
    room.release("silent", 3)
    assert await alone == ["silent"]


async def test_a_destination_that_answers_is_waited_for() -> None:
    """So that a piece is completed in one range."""
    room = InFlightLimit(12)
    for _ in range(3):
        await room.acquire({"busy": 3})
    waiting = asyncio.create_task(room.acquire({"busy": 1, "live": 2}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    room.release("busy", 1)
    assert await waiting == ["busy", "live"]


async def test_who_gives_up_waiting_stands_in_nobodys_way() -> None:
    room = InFlightLimit(8)
    for path in ("a", "b", "c"):
        await room.acquire({path: 2})
    await room.acquire({"d": 1})
    large = asyncio.create_task(room.acquire({"e": 2}))
    small = asyncio.create_task(room.acquire({"f": 1}))
    await asyncio.sleep(0)
    large.cancel()
    await small
    # Also when the room was given to it in the same moment
    waiting = asyncio.create_task(room.acquire({"a": 1}))
    await asyncio.sleep(0)
    room.release("a", 2)
    waiting.cancel()
    await asyncio.gather(large, waiting, return_exceptions=True)
    assert room.count == 6


# -- a mover in it ----------------------------------------------------------------------------


class Witness(FakeNamespace):
    """A primary that knows how many of its messages are in the backlog as well."""

    def __init__(self, secondary: FakeNamespace, *queues: str) -> None:
        super().__init__(*queues)
        self._secondary = secondary
        self.most = 0
        self.errors: list[ServiceError | None] = []

    def put(self, path: str, *messages: bytes) -> None:
        super().put(path, *messages)
        home = {name for queue in self.queues.values() for name in queue.ids()}
        away = {name for queue in self._secondary.queues.values() for name in queue.ids()}
        self.most = max(self.most, len(home & away))

    def refuse(self, encoded: Sequence[bytes]) -> ServiceError | None:
        return self.errors.pop() if encoded and self.errors else None


@given(
    in_flight_max=st.integers(1, 40),
    chunk_count=st.integers(1, 60),
    chunks_at_once=st.integers(1, 3),
    paths=st.lists(st.sampled_from(["orders", "news", "mail"]), min_size=1, max_size=120),
    errors=st.lists(
        st.sampled_from([None, None, EntityDisabled("off"), MessageRefused("no")]), max_size=8
    ),
)
@settings(max_examples=60, deadline=None)
def test_a_mover_ends_and_never_has_more_in_flight(
    in_flight_max: int,
    chunk_count: int,
    chunks_at_once: int,
    paths: list[str],
    errors: list[ServiceError | None],
) -> None:
    """Y1: whatever the sizes are, nobody waits for room that only it could free."""

    async def story() -> None:
        secondary = FakeNamespace(*QUEUES)
        secondary.patience_s = 0.001
        primary = Witness(secondary, "orders", "news", "mail")
        primary.errors = list(errors)
        for path in ("orders", "news", "mail"):
            primary.refusals[path] = primary.refuse
        for number, path in enumerate(paths):
            secondary.put(QUEUES[number % 3], backlog(f"m{number}", path))
        given = options(
            in_flight_max=in_flight_max, chunk_count=chunk_count, chunks_at_once=chunks_at_once
        )
        mover = Mover(secondary, primary, QUEUES, given)
        async with asyncio.timeout(20):
            await mover.run(once=True)
        assert primary.most <= in_flight_max
        room = mover.queues[0]._shared.in_flight
        assert room.count == 0
        home = Counter(name for queue in primary.queues.values() for name in queue.ids())
        assert max(home.values(), default=1) == 1
        left = sum(len(each.messages) + len(each.dead) for each in secondary.queues.values())
        assert len(home) + left == len(paths)

    asyncio.run(story())


async def test_a_killed_mover_has_doubled_no_more_than_was_in_flight() -> None:
    """Y1: at most one chunk for each kill, however many queues and chunks are under way."""
    secondary = FakeNamespace(*QUEUES)
    primary = Witness(secondary, "orders")
    primary.delay_s = 0.01
    for queue in QUEUES:
        secondary.put(queue, *(backlog(f"{queue}-{number}") for number in range(300)))
    for _kill in range(3):
        mover = Mover(secondary, primary, QUEUES, options(chunk_count=100, in_flight_max=100))
        task = asyncio.create_task(mover.run())
        await asyncio.sleep(0.04)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        secondary.expire_locks()
    await Mover(secondary, primary, QUEUES, options()).run(once=True)
    home = Counter(primary.queues["orders"].ids())
    assert len(home) == 900
    assert home.total() - 900 <= 3 * 100


async def test_a_piece_is_completed_as_soon_as_it_is_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others wait for its room."""
    monkeypatch.setattr("twinbus.mover.chunk_transfer.SETTLE_INTERVAL_S", 900.0)
    secondary, primary = FakeNamespace(*QUEUES), FakeNamespace("orders", "news")
    for number in range(50):
        secondary.put(QUEUES[0], backlog(f"m{number}"), backlog(f"n{number}", "news"))
    async with asyncio.timeout(20):
        await Mover(secondary, primary, QUEUES, options(in_flight_max=40)).run(once=True)
    assert len(primary.queues["orders"].messages) == 50
    # What lies together in the backlog is completed together
    assert secondary.log.count("complete 10") == 10


async def test_a_silent_destination_does_not_keep_all_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y4: it fell silent with its links open, and others have room left."""
    secondary, primary = FakeNamespace(*QUEUES), FakeNamespace("orders", "news")
    for number in range(40):
        secondary.put(QUEUES[0], backlog(f"s{number}", "news"), backlog(f"m{number}"))
    hung = asyncio.Event()

    async def send(self: object, parcels: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        path = self.path  # type: ignore[attr-defined]
        if path == "news":
            hung.set()
            await asyncio.sleep(timeout_s)
            raise OperationTimeout("no answer", path=path)
        primary.put(path, *(each.encoded for each in parcels))

    monkeypatch.setattr("tests.support.mover.fake_namespace.FakeSender.send", send)
    mover = Mover(
        secondary,
        primary,
        QUEUES,
        options(in_flight_max=10, chunk_count=20, send_timeout_s=3.0),
    )
    task = asyncio.create_task(mover.run())
    await hung.wait()
    await asyncio.sleep(1.0)
    # The two chunks under way are home as far as they can be
    assert len(primary.queues["orders"].messages) >= 10
    assert mover.report.receipt_counts.counts[ReceiptOutcome.AMBIGUOUS] == 0
    mover.stop()
    await task


async def test_what_the_backlog_does_not_let_go_of_frees_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secondary, primary = FakeNamespace(*QUEUES), FakeNamespace("orders")
    secondary.put(QUEUES[0], *(backlog(f"m{number}") for number in range(30)))

    async def complete(_: object, messages: Sequence[ReceivedMessage], **__: float) -> None:
        raise OperationTimeout("no answer")

    monkeypatch.setattr(FakeReceiver, "complete", complete)
    async with asyncio.timeout(20):
        mover = Mover(secondary, primary, QUEUES, options(in_flight_max=10))
        report = await mover.run(once=True)
    assert report.receipt_counts.counts[ReceiptOutcome.LOCK_LOST] == 30

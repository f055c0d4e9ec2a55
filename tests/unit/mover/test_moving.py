"""A chunk on its way home, over a namespace in memory."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from tests.support.mover.fake_namespace import FakeNamespace, FakeQueue, FakeReceiver
from tests.support.mover.messages import backlog, id_of, plain
from tests.support.moving import move_chunk
from twinbus.drivers.interface import Driver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    EntityDisabled,
    LinkDetached,
    MessageRefused,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)
from twinbus.failover.backoff import Backoff
from twinbus.mover.chunk_transfer import ChunkTransfer
from twinbus.mover.destination_senders import DestinationSenders
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_ledger import LedgerError
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.queue_mover import QueueMover

QUEUE = "east/x-servicebus-transfer/0"
RULES = DeliveryRules(primary_name="east")


def options(**more: object) -> MoverOptions:
    given = {"backoff": Backoff(first_s=0.01, last_s=0.02), **more}
    return MoverOptions(rules=RULES, **given)  # type: ignore[arg-type]


def outcomes(receipts: Sequence[Receipt]) -> Counter[str]:
    return Counter(each.outcome.value for each in receipts)


@pytest.fixture
def secondary() -> FakeNamespace:
    return FakeNamespace(QUEUE)


@pytest.fixture
def primary() -> FakeNamespace:
    return FakeNamespace("orders", "news")


async def moved_once(
    secondary: Driver, primary: Driver, settings: MoverOptions | None = None
) -> list[Receipt]:
    receipts: list[Receipt] = []
    mover = Mover(secondary, primary, [QUEUE], settings or options(), on_receipts=receipts.extend)
    await mover.run(once=True)
    return receipts


def queue_of(
    secondary: Driver, primary: Driver, settings: MoverOptions | None = None
) -> tuple[QueueMover, list[Receipt]]:
    """The mover of the one backlog queue, and where its receipts go."""
    receipts: list[Receipt] = []
    mover = Mover(secondary, primary, [QUEUE], settings or options(), on_receipts=receipts.extend)
    return mover.queues[0], receipts


async def test_a_chunk_comes_home_as_it_was_sent(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y1: every message to its destination, then completed in the backlog."""
    secondary.put(QUEUE, backlog("a"), backlog("b", "news"), backlog("c"))
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    stored = [each.encoded for each in primary.queues["orders"].messages.values()]
    assert stored == [plain("a"), plain("c")]
    assert primary.queues["news"].ids() == ["b"]
    assert secondary.queues[QUEUE].messages == {}
    assert sorted(
        (each.sequence_number, each.message_id, each.destination, each.outcome.value)
        for each in receipts
    ) == [(1, "a", "orders", "moved"), (2, "b", "news", "moved"), (3, "c", "orders", "moved")]


async def test_an_empty_queue_gives_no_receipts(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    assert await move_chunk(secondary, primary, QUEUE, options()) == []


async def test_a_queue_that_cannot_be_read_raises(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.receive_error = CommunicationError("nobody there")
    with pytest.raises(CommunicationError):
        await move_chunk(secondary, primary, QUEUE, options())


async def test_one_refused_message_does_not_block_its_batch(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: poison never blocks others, and its reason names destination and error."""

    def refuses_poison(encoded: Sequence[bytes]) -> ServiceError | None:
        is_bad = any(id_of(each) == "m37" for each in encoded)
        return MessageRefused("a session id is required") if is_bad else None

    primary.refusals["orders"] = refuses_poison
    secondary.put(QUEUE, *(backlog(f"m{number}") for number in range(100)))
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"moved": 99, "dead-lettered": 1}
    [(buried, reason, description)] = secondary.queues[QUEUE].dead
    assert (id_of(buried), reason) == ("m37", "message-refused")
    assert description == "orders: a session id is required. (MessageRefused)"
    # About two sends for each halving
    assert len([line for line in primary.log if line.startswith("send")]) <= 16


async def test_messages_without_a_usable_destination_are_dead_lettered(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4, Y6: no destination, a backlog queue as destination."""
    secondary.put(QUEUE, plain("lost"), backlog("circle", QUEUE), backlog("good"))
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"moved": 1, "dead-lettered": 2}
    reasons = {id_of(each): reason for each, reason, _ in secondary.queues[QUEUE].dead}
    assert reasons == {"lost": "no-destination", "circle": "destination-not-allowed"}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (EntityDisabled("it is disabled"), "deferred"),
        (ServerBusy("wait"), "deferred"),
        (OperationTimeout("no answer"), "ambiguous"),
        (LinkDetached("taken away"), "ambiguous"),
        (CommunicationError("lost", was_sent=True), "ambiguous"),
    ],
)
async def test_a_destination_that_takes_nothing_is_left_for_later(
    secondary: FakeNamespace, primary: FakeNamespace, error: ServiceError, outcome: str
) -> None:
    """Y4: its messages are set aside, they do not stand before others."""
    primary.refusals["orders"] = lambda encoded: error if encoded else None
    secondary.put(QUEUE, *(backlog(f"m{number}") for number in range(5)), backlog("live", "news"))
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {outcome: 5, "moved": 1}
    left = secondary.queues[QUEUE].messages.values()
    assert [each.is_deferred for each in left] == [True] * 5
    assert primary.queues["news"].ids() == ["live"]


async def test_what_was_set_aside_by_another_mover_is_found_and_moved(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y5: nothing that a mover knows is needed by the next one."""
    secondary.put(QUEUE, *(backlog(f"m{number}") for number in range(600)))
    for stored in secondary.queues[QUEUE].messages.values():
        stored.is_deferred = True
    receipts = await moved_once(secondary, primary)
    assert outcomes(receipts) == {"moved": 600}
    assert secondary.queues[QUEUE].messages == {}


async def test_a_deferred_message_that_another_mover_took_is_no_obstacle(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, *(backlog(f"m{number}") for number in range(5)))
    messages = secondary.queues[QUEUE].messages
    for stored in messages.values():
        stored.is_deferred = True
    queue, receipts = queue_of(secondary, primary)
    assert await queue.scan_deferred() is None
    assert len(queue.deferred) == 5
    del messages[2]
    await queue.retry_deferred()
    assert outcomes(receipts) == {"moved": 4}
    assert len(queue.deferred) == 0


async def test_what_somebody_else_holds_is_kept_in_mind(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, backlog("a"), backlog("b"))
    messages = secondary.queues[QUEUE].messages
    for stored in messages.values():
        stored.is_deferred = True
    queue, receipts = queue_of(secondary, primary)
    await queue.scan_deferred()
    messages[1].holder = b"somebody"
    await queue.retry_deferred()
    assert receipts == []
    messages[1].holder = b""
    await queue.retry_deferred()
    assert outcomes(receipts) == {"moved": 2}


async def test_a_destination_that_does_not_exist_has_a_grace_period(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: left for later at first, dead-lettered when it was gone for too long."""
    secondary.put(QUEUE, backlog("a", "gone"), backlog("b", "gone"))
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"deferred": 2}
    impatient = options(backoff=Backoff(gone_grace_s=0))
    receipts = await moved_once(secondary, primary, impatient)
    assert outcomes(receipts) == {"dead-lettered": 2}
    for _encoded, reason, description in secondary.queues[QUEUE].dead:
        assert reason == "destination-not-found"
        assert description.startswith("gone: ")


async def test_a_lost_lock_announces_a_second_copy(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y1: a message whose lock was lost is repeated, never lost."""
    secondary.put(QUEUE, backlog("a"))
    primary.refusals["orders"] = lambda encoded: secondary.expire_locks()
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"lock-lost": 1}
    assert receipts[0].outcome.may_repeat
    assert primary.queues["orders"].ids() == ["a"]
    assert secondary.queues[QUEUE].ids() == ["a"]


async def test_a_secondary_that_fails_after_the_send_announces_a_second_copy(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, backlog("a"))
    secondary.settle_error = CommunicationError("gone")
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"lock-lost": 1}
    assert "gone" in receipts[0].reason


async def test_messages_that_end_in_doubt_too_often_are_buried(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: MaxDeliveryCount of a backlog queue is without end, so the mover counts."""
    primary.refusals["orders"] = lambda encoded: OperationTimeout("no answer") if encoded else None
    secondary.put(QUEUE, backlog("killer"))
    secondary.queues[QUEUE].messages[1].delivery_count = 100
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"dead-lettered": 1}
    assert secondary.queues[QUEUE].dead[0][1] == "too-many-attempts"


async def test_a_probe_with_many_attempts_is_not_buried(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: a destination that is down makes no poison."""
    primary.refusals["orders"] = lambda encoded: OperationTimeout("no answer") if encoded else None
    secondary.put(QUEUE, backlog("a"))
    queue, receipts = queue_of(secondary, primary)
    await queue.move(await queue.receive(wait_s=0))
    secondary.queues[QUEUE].messages[1].delivery_count = 1_000
    while len(receipts) == 1:
        await asyncio.sleep(0.005)
        await queue.retry_deferred()
    assert outcomes(receipts) == {"ambiguous": 2}


async def test_completing_before_the_primary_accepted_is_caught(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y1: a mover that completes first is stopped by the ledger, and nothing is lost."""

    async def completes_first(
        self: ChunkTransfer, path: str, items: list[object], **_: bool
    ) -> None:
        await self._complete(items)  # type: ignore[arg-type]

    monkeypatch.setattr(ChunkTransfer, "_try", completes_first)
    secondary.put(QUEUE, backlog("a"))
    with pytest.raises(ExceptionGroup) as caught:
        await move_chunk(secondary, primary, QUEUE, options())
    assert caught.group_contains(LedgerError, match="before it was accepted")
    assert secondary.queues[QUEUE].ids() == ["a"]


async def test_a_slow_chunk_renews_its_locks(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.mover.queue_mover.LOCK_S_MAX", 0.02)
    monkeypatch.setattr("twinbus.mover.queue_mover.LOCK_S_MIN", 0.01)
    secondary.put(QUEUE, backlog("a"), backlog("b"))
    primary.delay_s = 0.1
    receipts = await move_chunk(secondary, primary, QUEUE, options())
    assert outcomes(receipts) == {"moved": 2}
    assert "renew 2" in secondary.log


async def test_a_chunk_out_of_time_gives_back_what_it_did_not_send(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, *(backlog(f"m{number}") for number in range(9)))
    receipts = await move_chunk(secondary, primary, QUEUE, options(chunk_s_max=1e-9))
    assert outcomes(receipts) == {"released": 9}
    assert not any(each.holder for each in secondary.queues[QUEUE].messages.values())


async def test_a_dry_run_looks_and_touches_nothing(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, backlog("a"), plain("lost"))
    queue, receipts = queue_of(secondary, primary)
    await queue.dry_run()
    assert outcomes(receipts) == {"would-move": 1, "would-dead-letter": 1}
    assert primary.log == []
    assert not any(each.holder for each in secondary.queues[QUEUE].messages.values())


async def test_large_messages_come_in_smaller_chunks(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    secondary.put(QUEUE, *(backlog(f"m{number}", body=bytes(10_000)) for number in range(210)))
    await moved_once(secondary, primary, options(chunk_bytes=100_000))
    asked = [line for line in secondary.log if line.startswith("receive ")]
    assert asked[0] == "receive 100"
    assert set(asked[1:]) <= {"receive 100", "receive 9"} and "receive 9" in asked


async def test_a_refusal_means_that_the_destination_is_alive(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    primary.refusals["orders"] = lambda encoded: MessageRefused("no") if encoded else None
    secondary.put(QUEUE, backlog("a"))
    receipts = await moved_once(secondary, primary)
    assert outcomes(receipts) == {"dead-lettered": 1}


def test_options_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(options())) == options()


def test_outcomes_that_announce_a_second_copy() -> None:
    assert {each for each in ReceiptOutcome if each.may_repeat} == {
        ReceiptOutcome.AMBIGUOUS,
        ReceiptOutcome.LOCK_LOST,
    }


async def test_many_silent_destinations_do_not_hold_up_a_live_one(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: a batch waits for others of its own destination only."""
    silent = [f"silent{number}" for number in range(30)]
    for path in silent:
        secondary.put(QUEUE, backlog(path, path))
        primary.queues[path] = FakeQueue()
    secondary.put(QUEUE, backlog("live"))
    mover = Mover(secondary, primary, [QUEUE], options(send_timeout_s=5))
    for path in silent:  # Links that were opened while all was well
        await mover._queue_group.senders.limit_bytes(path, timeout_s=1)
    primary.silent.update(silent)
    task = asyncio.create_task(mover.run(once=True))
    async with asyncio.timeout(4):
        while primary.queues["orders"].ids() != ["live"]:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_sender_in_use_is_not_closed_to_make_room(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk for more destinations than senders are kept comes home at the first attempt."""
    monkeypatch.setattr(
        "twinbus.mover.queue_group.DestinationSenders", partial(DestinationSenders, senders_max=3)
    )
    paths = [f"q{number}" for number in range(20)]
    for path in paths:
        primary.queues[path] = FakeQueue()
        secondary.put(QUEUE, backlog(path, path))
    receipts = await moved_once(secondary, primary)
    assert outcomes(receipts) == {"moved": 20}


async def test_what_was_set_aside_does_not_wait_for_silent_destinations(
    secondary: FakeNamespace, primary: FakeNamespace
) -> None:
    """Y4: the messages of silent destinations do not stand before others when they are tried."""
    silent = [f"silent{number}" for number in range(10)]
    for path in (*silent, "orders"):
        primary.queues[path] = FakeQueue()
        secondary.put(QUEUE, backlog(path, path))
    for stored in secondary.queues[QUEUE].messages.values():
        stored.is_deferred = True
    primary.silent.update(silent)
    mover = Mover(secondary, primary, [QUEUE], options(send_timeout_s=5))
    await mover.queues[0].scan_deferred()
    task = asyncio.create_task(mover.queues[0].retry_deferred())
    async with asyncio.timeout(4):
        while primary.queues["orders"].ids() != ["orders"]:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mover.queues[0].deferred.count("silent0") == 1


async def test_messages_that_cannot_be_read_are_buried_and_end_nothing(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y4: without a number they are told apart by their locks, and the others go home."""
    secondary.put(QUEUE, plain("a"), backlog("b"), plain("c"))
    locked = FakeReceiver._locked

    def unread(receiver: FakeReceiver, number: int) -> ReceivedMessage:
        delivered = locked(receiver, number)
        if number == 2:
            return delivered
        return delivered._replace(encoded=b"\x00\xff", sequence_number=0)

    def held(
        receiver: FakeReceiver, messages: Sequence[ReceivedMessage]
    ) -> tuple[list[int], list[ReceivedMessage]]:
        tokens = {each.lock_token for each in messages}
        stored = receiver._queue.messages.items()
        return [number for number, each in stored if each.holder in tokens], []

    monkeypatch.setattr(FakeReceiver, "_locked", unread)
    monkeypatch.setattr(FakeReceiver, "_held", held)
    receipts = await moved_once(secondary, primary)
    assert outcomes(receipts) == {"moved": 1, "dead-lettered": 2}


async def test_a_look_through_a_queue_ends_although_a_message_has_no_number(
    secondary: FakeNamespace, primary: FakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    secondary.put(QUEUE, backlog("a"), backlog("b"))
    shown = FakeReceiver._shown

    def unread(receiver: FakeReceiver, number: int) -> ReceivedMessage:
        return shown(receiver, number)._replace(sequence_number=0)

    monkeypatch.setattr(FakeReceiver, "_shown", unread)
    mover = Mover(secondary, primary, [QUEUE], options())
    async with asyncio.timeout(10):
        assert await mover.queues[0].scan_deferred() is None

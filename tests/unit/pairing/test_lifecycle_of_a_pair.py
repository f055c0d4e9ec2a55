"""Close and fault: every waiting call ends with a typed error, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.pairing.fake_namespace import HANG, FakeNamespace
from tests.support.pairing.pairs import FakePair, OpenFakePair, eventually
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.errors import CommunicationError, ConfigurationError, FactoryClosed, FactoryFaulted
from twinbus.mover.mover import Mover, MoverReport


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    """Rule 2 of pair.py, checked around every test here."""
    before = asyncio.all_tasks()
    yield
    await eventually(lambda: asyncio.all_tasks() <= before | {_current()}, "all tasks to end")


def _current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def divert(pair: FakePair) -> None:
    pair.home.answer("orders", CommunicationError("gone", was_sent=False))
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))


# --- close -------------------------------------------------------------------------------------


async def test_closing_the_primary_ends_the_pings_and_leaves_the_secondary(
    open_fake_pair: OpenFakePair,
) -> None:
    """L2: without the syphon each factory goes its own way."""
    pair = await open_fake_pair(ping_primary_interval=1)
    await divert(pair)
    await pair.primary.close()
    tried = len(pair.home.attempts)
    await asyncio.sleep(1.2)
    assert len(pair.home.attempts) == tried
    assert pair.home.is_closed and not pair.away.is_closed
    assert pair.secondary.is_open
    assert pair.names[-1] == "factory-closed"


async def test_a_close_waits_for_the_sends_under_way(fake_pair: FakePair) -> None:
    """L2: they finish, and new ones are refused meanwhile."""
    sender = fake_pair.primary.create_message_sender("orders")
    fake_pair.home.answer_once("orders", HANG)
    sending = asyncio.create_task(sender.send(BrokeredMessage(b"one"), timeout=1))
    await eventually(lambda: bool(fake_pair.home.attempts), "the attempt")
    closing = asyncio.create_task(fake_pair.primary.close())
    await asyncio.sleep(0)
    with pytest.raises(FactoryClosed):
        await sender.send(BrokeredMessage(b"two"))
    await closing
    assert sending.done()
    await sending
    assert len(fake_pair.backlog()) == 1


async def test_a_close_whose_caller_goes_away_is_finished_all_the_same(fake_pair: FakePair) -> None:
    """L2: pings, links and the driver do not stay because somebody was in a hurry."""
    await divert(fake_pair)
    fake_pair.away.answer("*", HANG)
    sending = asyncio.create_task(
        fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"two"), timeout=1)
    )
    await eventually(lambda: fake_pair.primary.health("orders").sends_under_way == 1, "the send")
    closing = asyncio.create_task(fake_pair.primary.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not fake_pair.home.is_closed
    await fake_pair.primary.close()  # Waits for the end that is under way.
    assert sending.done() and fake_pair.home.is_closed
    assert fake_pair.names.count("factory-closed") == 1
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_driver_that_does_not_close_well_keeps_nothing_else_open() -> None:
    """L1: whoever reads events is told of the end all the same."""

    class Stubborn(FakeNamespace):
        async def close(self) -> None:
            raise RuntimeError("not today")

    factory = MessagingFactory.from_driver(Stubborn())
    events = factory.events()
    with pytest.raises(RuntimeError, match="not today"):
        await factory.close()
    async with asyncio.timeout(5):
        assert [each async for each in events] == []


async def test_a_send_that_takes_too_long_ends_with_the_factory(
    fake_pair: FakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: bounded, and with a typed error."""
    monkeypatch.setattr("twinbus.pairing.client.factory.CLOSE_WAIT_S", 0.1)
    fake_pair.home.answer("orders", HANG)
    sending = asyncio.create_task(
        fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    )
    await eventually(lambda: bool(fake_pair.home.attempts), "the attempt")
    await fake_pair.primary.close()
    with pytest.raises(FactoryClosed) as caught:
        await sending
    assert caught.value.is_ambiguous, "its last attempt may have arrived"
    with pytest.raises(FactoryClosed) as caught:
        fake_pair.primary.create_message_sender("orders")
    assert not caught.value.is_ambiguous


async def test_receives_that_wait_end_at_once(fake_pair: FakePair) -> None:
    """L1: a long poll does not hold up a close."""
    client = fake_pair.primary.create_queue_client("orders")
    receiving = asyncio.create_task(client.receive(max_wait_time=600))
    await asyncio.sleep(0.01)
    await asyncio.wait_for(fake_pair.primary.close(), 5)
    with pytest.raises(FactoryClosed):
        await receiving


async def test_everything_is_refused_after_the_end(fake_pair: FakePair) -> None:
    """L1: with one typed error, from every door."""
    client = fake_pair.primary.create_queue_client("orders")
    await fake_pair.primary.close()
    await fake_pair.primary.close()
    for call in (
        client.send(BrokeredMessage(b"")),
        client.send_batch([BrokeredMessage(b"")]),
        client.schedule_message(BrokeredMessage(b"")),
        client.cancel_scheduled_message(1),
        client.receive(),
        client.peek(),
        fake_pair.primary.backlog(),
        fake_pair.primary.__aenter__(),
    ):
        with pytest.raises(FactoryClosed):
            await call
    with pytest.raises(FactoryClosed):
        fake_pair.primary.create_queue_client("bills")
    with pytest.raises(FactoryClosed):
        fake_pair.primary.force_failover("orders")


async def test_a_close_in_the_middle_of_pairing_ends_it(open_fake_pair: OpenFakePair) -> None:
    """L1: and whoever waited for the pair."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.answer("*", HANG)
    pairing = asyncio.create_task(pair.primary.pair_namespace(pair.options))
    await eventually(lambda: bool(pair.away.attached), "the first question")
    sending = asyncio.create_task(
        pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    )
    await asyncio.sleep(0.01)
    await asyncio.wait_for(pair.primary.close(), 15)
    with pytest.raises(FactoryClosed):
        await pairing
    assert sending.done() and not pair.secondary.is_secondary
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_caller_that_is_cancelled_stays_cancelled(fake_pair: FakePair) -> None:
    """L1: our own ends are errors; somebody else's cancellation is theirs."""
    fake_pair.home.answer("orders", HANG)
    sending = asyncio.create_task(
        fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    )
    await eventually(lambda: bool(fake_pair.home.attempts), "the attempt")
    sending.cancel()
    await fake_pair.primary.fault("a test says so")
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_links_are_let_go(fake_pair: FakePair) -> None:
    """L2: those to the backlog too, although the secondary stays open."""
    await divert(fake_pair)
    await fake_pair.until_told("ping-failed")
    await fake_pair.primary.close()
    assert fake_pair.home.links_open == fake_pair.away.links_open == 0


async def test_a_closed_sender_is_no_way_in() -> None:
    """P0: the factory goes on."""
    async with MessagingFactory.from_driver(FakeNamespace()) as factory:
        async with factory.create_message_sender("orders") as sender:
            await sender.send(BrokeredMessage(b"one"))
        with pytest.raises(ConfigurationError, match="closed"):
            await sender.send(BrokeredMessage(b"two"))
        await factory.create_message_sender("orders").send(BrokeredMessage(b"three"))


# --- fault -------------------------------------------------------------------------------------


async def test_a_fault_ends_every_call_at_once(fake_pair: FakePair) -> None:
    """L1: sends and receives alike, with the reason."""
    fake_pair.home.answer("orders", HANG)
    client = fake_pair.primary.create_queue_client("orders")
    calls = [
        asyncio.create_task(client.send(BrokeredMessage(b"one"))),
        asyncio.create_task(client.receive(max_wait_time=600)),
    ]
    await eventually(lambda: bool(fake_pair.home.attempts), "the attempt")
    await fake_pair.primary.fault("the building is on fire")
    for call in calls:
        with pytest.raises(FactoryFaulted, match="on fire"):
            await call
    assert fake_pair.primary.fault_reason == "the building is on fire"
    with pytest.raises(FactoryFaulted):
        await client.send(BrokeredMessage(b"two"))
    assert fake_pair.secondary.is_open, "nothing hosts the syphon here"


async def test_with_the_syphon_a_fault_of_one_is_a_fault_of_both(
    open_fake_pair: OpenFakePair,
) -> None:
    """L1: at once."""
    pair = await open_fake_pair(enable_syphon=True)
    await pair.secondary.fault("no more disk")
    assert pair.primary.fault_reason is not None and "no more disk" in pair.primary.fault_reason
    assert [each for each in pair.names if each == "factory-faulted"] == ["factory-faulted"] * 2
    assert pair.home.is_closed and pair.away.is_closed


async def test_with_the_syphon_closing_the_primary_closes_the_secondary(
    open_fake_pair: OpenFakePair,
) -> None:
    """L2: after the sends under way, which may need it."""
    pair = await open_fake_pair(enable_syphon=True)
    await divert(pair)
    await asyncio.wait_for(pair.primary.close(), 15)
    assert not pair.secondary.is_open and pair.secondary.fault_reason is None
    assert pair.away.is_closed


async def test_with_the_syphon_a_secondary_that_closes_alone_faults_the_primary(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: if it is not closed within the window, which has 5 s in real life."""
    monkeypatch.setattr("twinbus.failover.pair_lifecycle.CLOSE_WINDOW_S", 0.3)
    pair = await open_fake_pair(enable_syphon=True)
    await pair.secondary.close()
    assert pair.primary.is_open
    await eventually(lambda: pair.primary.fault_reason is not None, "the fault")
    with pytest.raises(FactoryFaulted):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await eventually(lambda: pair.home.is_closed, "the end")


async def test_with_the_syphon_both_may_be_closed_in_time(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: then nothing is faulted."""
    monkeypatch.setattr("twinbus.failover.pair_lifecycle.CLOSE_WINDOW_S", 0.2)
    pair = await open_fake_pair(enable_syphon=True)
    await pair.secondary.close()
    await pair.primary.close()
    await asyncio.sleep(0.3)
    assert pair.primary.fault_reason is None and pair.secondary.fault_reason is None


async def test_a_syphon_that_ends_by_itself_is_told_and_begins_again(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y7: sends do not need it, so they go on."""
    monkeypatch.setattr("twinbus.pairing.pair.SYPHON_PAUSE_S", 0.05)
    begun: list[int] = []

    sound = Mover.run

    async def broken_once(mover: Mover, *, once: bool = False) -> MoverReport:
        begun.append(1)
        if len(begun) == 1:
            raise RuntimeError("a mistake")
        return await sound(mover, once=once)

    monkeypatch.setattr(Mover, "run", broken_once)
    pair = await open_fake_pair(enable_syphon=True)
    await eventually(lambda: len(begun) == 2, "another one")
    assert "factory-faulted" in pair.names and "a mistake" in str(pair.told[0])
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert pair.primary.is_open and pair.secondary.is_open


async def test_with_the_syphon_a_secondary_that_does_not_close_in_time_is_faulted(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: also when it is the primary's close that closes it, and its own sends hold it up."""
    monkeypatch.setattr("twinbus.failover.pair_lifecycle.CLOSE_WINDOW_S", 0.2)
    monkeypatch.setattr("twinbus.pairing.pair.CLOSE_WINDOW_S", 0.2)
    pair = await open_fake_pair(enable_syphon=True)
    pair.away.answer("notes", HANG)
    sending = asyncio.create_task(
        pair.secondary.create_message_sender("notes").send(BrokeredMessage(b"one"))
    )
    await eventually(lambda: "notes" in pair.away.attempts, "the attempt")
    async with asyncio.timeout(9):
        await pair.primary.close()
    with pytest.raises(FactoryFaulted):
        await sending
    assert pair.secondary.fault_reason is not None and pair.primary.fault_reason is None
    assert pair.away.is_closed and pair.names[-2:] == ["factory-closed", "factory-faulted"]


async def test_a_syphon_that_moves_nothing_is_an_event(open_fake_pair: OpenFakePair) -> None:
    """Y7: messages wait and none moves."""
    pair = await open_fake_pair(enable_syphon=True)
    assert pair.primary._pair is not None
    pair.primary._pair.syphon_stalled("7 messages wait")
    assert pair.names == ["syphon-stalled"]
    assert pair.told[0].to_dict()["reason"] == "7 messages wait"

"""Sends on a caller's own thread: what they may decide, and what they leave to the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.pairing.pairs import FakePair, OpenFakePair, eventually
from twinbus.amqp.message.message import Message
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    CommunicationError,
    FactoryClosed,
    FactoryFaulted,
    LinkDetached,
    QuotaExceeded,
    SendInterrupted,
)
from twinbus.failover.send_decision import first_attempt_s
from twinbus.failover.state_machine import EntityFailover, Health
from twinbus.pairing import direct_sender
from twinbus.pairing.client import factory
from twinbus.pairing.direct_sender import BEGIN_AGAIN_S_MAX, BUSY_SENDS, DirectSender

MESSAGE = Message(body=b"one").encode()


class Link:
    """A link that answers as a test says."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answer: BaseException | None = None
        self.waits = False
        self.is_waiting = threading.Event()
        self.may_go_on = threading.Event()
        self.before_send: Callable[[], None] = lambda: None
        self.interrupts = 0
        self.is_closed = False

    def is_usable(self) -> bool:
        return not self.is_closed

    def send(self, message: bytes, timeout_s: float) -> None:
        self.before_send()
        if self.waits:
            self.is_waiting.set()
            assert self.may_go_on.wait(20)
        if self.answer is not None:
            raise self.answer
        if self.interrupts:
            self.is_closed = True
            raise SendInterrupted(was_sent=True)
        self.sent.append(message)

    def interrupt(self) -> None:
        self.interrupts += 1
        self.may_go_on.set()

    def close(self) -> None:
        self.is_closed = True


class Direct:
    """A direct sender beside a paired one, and its link."""

    def __init__(self, pair: FakePair) -> None:
        loop = asyncio.get_running_loop()
        self.link = Link()
        self.paired = pair.primary.create_paired_sender("orders")

        def run(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result(20)

        self.sender = DirectSender[bytes](
            self.paired,
            open_link=lambda: self.link,
            fits=lambda message, limit: len(message) <= limit,
            to_outgoing_messages=lambda message: [OutgoingMessage(message)],
            run=run,
        )

    async def get_busy(self) -> Direct:
        for _ in range(BUSY_SENDS):
            await self.paired.send_outgoing([OutgoingMessage(MESSAGE)])
            self.sender.sent_by_loop(MESSAGE)
        await eventually(lambda: self.sender._link is self.link)
        return self

    async def send(self, timeout_s: float | None = None) -> bool:
        return await asyncio.to_thread(self.sender.send, MESSAGE, timeout_s)


@pytest.fixture
async def direct(fake_pair: FakePair) -> Direct:
    return await Direct(fake_pair).get_busy()


async def test_a_healthy_send_uses_the_link(fake_pair: FakePair, direct: Direct) -> None:
    """P0: and its success counts as one (P22)."""
    failover = fake_pair.primary.routing.entity("orders").failover
    before = failover.success_mark
    assert await direct.send()
    assert direct.link.sent == [MESSAGE] and failover.success_mark != before
    assert fake_pair.home.attempts == ["orders"] * BUSY_SENDS


async def test_a_diverted_entity_is_the_loops(fake_pair: FakePair, direct: Direct) -> None:
    """P8: nothing but pings goes to the primary."""
    fake_pair.primary.force_failover("orders")
    assert not await direct.send() and direct.link.sent == []


async def test_a_failure_goes_on_at_the_loop(fake_pair: FakePair, direct: Direct) -> None:
    """P6, P10 and P16: it trips the failover, is rerouted, and may arrive twice."""
    direct.link.answer = LinkDetached("gone")
    fake_pair.home.answer("orders", CommunicationError("refused", was_sent=False))
    assert await direct.send()
    assert len(fake_pair.backlog()) == 1
    assert fake_pair.names[:2] == ["suspected", "diverted"]
    assert "possible-duplicate" in fake_pair.names


async def test_a_link_that_was_gone_before_anything_left_is_no_failure(
    fake_pair: FakePair, direct: Direct
) -> None:
    """P7: the loop sends the message; if that fails, too, it counts."""
    direct.link.answer = CommunicationError("gone", was_sent=False)
    assert not await direct.send()
    assert fake_pair.names == [] and fake_pair.backlog() == []


async def test_an_error_of_the_caller_is_raised(fake_pair: FakePair, direct: Direct) -> None:
    """P7: and diverts nothing."""
    direct.link.answer = QuotaExceeded("full")
    with pytest.raises(QuotaExceeded):
        await direct.send()
    assert fake_pair.primary.health("orders").state is Health.HEALTHY


async def test_a_diversion_interrupts_the_thread(fake_pair: FakePair, direct: Direct) -> None:
    """P22: a send that waits for the primary goes on to the backlog."""
    direct.link.waits = True
    sending = asyncio.create_task(direct.send())
    await asyncio.to_thread(direct.link.is_waiting.wait, 20)
    assert fake_pair.primary.health("orders").sends_under_way == 1
    fake_pair.primary.force_failover("orders")
    assert await sending
    assert len(fake_pair.backlog()) == 1 and "possible-duplicate" in fake_pair.names


async def test_a_diversion_between_the_question_and_the_send_interrupts_it(
    fake_pair: FakePair, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P22: a thread announces itself before it asks whether the entity is healthy."""
    loop = asyncio.get_running_loop()

    def asked(failover: EntityFailover, timeout_s: float) -> float | None:
        answer, forced = first_attempt_s(failover, timeout_s), threading.Event()

        def force() -> None:
            fake_pair.primary.force_failover("orders")
            forced.set()

        loop.call_soon_threadsafe(force)
        assert forced.wait(20)
        return answer

    monkeypatch.setattr(direct_sender, "first_attempt_s", asked)
    assert await direct.send()
    assert direct.link.interrupts == 1
    assert direct.link.sent == [] and len(fake_pair.backlog()) == 1


async def test_a_thread_that_finds_the_link_taken_uses_the_loop(direct: Direct) -> None:
    """P0: nobody waits behind a send that may hang."""
    direct.link.waits = True
    first = asyncio.create_task(direct.send())
    await asyncio.to_thread(direct.link.is_waiting.wait, 20)
    assert not await direct.send()
    direct.link.may_go_on.set()
    assert await first


async def test_a_close_waits_for_the_thread(fake_pair: FakePair, direct: Direct) -> None:
    """L2: sends that are under way finish, new ones are refused."""
    direct.link.waits = True
    sending = asyncio.create_task(direct.send())
    await asyncio.to_thread(direct.link.is_waiting.wait, 20)
    closing = asyncio.create_task(fake_pair.primary.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    direct.link.may_go_on.set()
    assert await sending
    await closing
    assert direct.link.interrupts == 0
    assert not await direct.send()
    with pytest.raises(FactoryClosed):
        await direct.paired.send_outgoing([OutgoingMessage(MESSAGE)])


async def test_a_close_that_has_waited_long_enough_ends_the_thread(
    fake_pair: FakePair, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: the send is not tried again by a factory that is gone."""
    monkeypatch.setattr(factory, "CLOSE_WAIT_S", 0.05)
    direct.link.waits = True
    sending = asyncio.create_task(direct.send())
    await asyncio.to_thread(direct.link.is_waiting.wait, 20)
    await fake_pair.primary.close()
    with pytest.raises(FactoryClosed) as caught:
        await sending
    assert caught.value.is_ambiguous and direct.link.interrupts == 1


async def test_a_fault_ends_the_thread_at_once(fake_pair: FakePair, direct: Direct) -> None:
    """L1: with an error that says that the message may have arrived."""
    direct.link.waits = True
    sending = asyncio.create_task(direct.send())
    await asyncio.to_thread(direct.link.is_waiting.wait, 20)
    await fake_pair.primary.fault("its partner is gone")
    with pytest.raises(FactoryFaulted) as caught:
        await sending
    assert caught.value.is_ambiguous


async def test_a_caller_that_leaves_after_a_long_silence_counts(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P22: Ctrl-C after a second without an answer is a failure of the entity."""
    pair = await open_fake_pair(failover_interval=60)
    direct = await Direct(pair).get_busy()
    direct.link.answer = KeyboardInterrupt()
    direct.link.before_send = lambda: time.sleep(1.0)

    def interrupted() -> str:
        try:
            direct.sender.send(MESSAGE, None)
        except KeyboardInterrupt:
            return "interrupted"
        return "sent"

    assert await asyncio.to_thread(interrupted) == "interrupted"
    assert pair.names == ["suspected"]
    assert direct.link.is_closed and direct.sender._link is None


async def test_a_link_that_cannot_be_opened_is_tried_later(fake_pair: FakePair) -> None:
    """P0: not with every send."""
    direct, tries = Direct(fake_pair), []

    def refused() -> Link:
        tries.append(time.monotonic())
        raise CommunicationError("refused")

    direct.sender._open_link = refused
    await direct.paired.send_outgoing([OutgoingMessage(MESSAGE)])
    for _ in range(3 * BUSY_SENDS):
        direct.sender.sent_by_loop(MESSAGE)
        await asyncio.sleep(0)
    await eventually(lambda: not direct.sender._opening.locked())
    direct.sender.sent_by_loop(MESSAGE)
    assert len(tries) == 1


async def test_no_link_is_opened_that_could_not_be_used(fake_pair: FakePair) -> None:
    """P8: nothing but pings goes to a diverted entity, and what does not fit goes by the loop."""
    direct, opened = Direct(fake_pair), []

    def open_link() -> Link:
        opened.append("link")
        return direct.link

    direct.sender._open_link = open_link
    for _ in range(2 * BUSY_SENDS):
        direct.sender.sent_by_loop(MESSAGE)  # The entity is not known yet.
    await direct.paired.send_outgoing([OutgoingMessage(MESSAGE)])
    for _ in range(2 * BUSY_SENDS):
        direct.sender.sent_by_loop(bytes(1 << 24))
    fake_pair.primary.force_failover("orders")
    for _ in range(2 * BUSY_SENDS):
        direct.sender.sent_by_loop(MESSAGE)
    await asyncio.sleep(0.05)
    assert opened == []


async def test_a_refusal_that_comes_late_keeps_the_deadline(
    fake_pair: FakePair, direct: Direct
) -> None:
    """F6: the send does not begin anew with all of its time."""
    now_s = fake_pair.primary.routing.now_s()
    clock = iter([now_s, now_s + 2 * BEGIN_AGAIN_S_MAX])
    registry = direct.paired.registry
    before = registry.now_s
    registry.now_s = lambda: next(clock, before())
    direct.link.answer = CommunicationError("refused", was_sent=False)
    assert await direct.send()
    assert direct.link.sent == []

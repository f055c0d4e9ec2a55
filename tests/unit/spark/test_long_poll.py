"""Long polls of a namespace in memory: which messages are returned, and which are abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.support.mover.fake_namespace import FakeNamespace, FakeReceiver
from tests.support.mover.messages import backlog, id_of
from twinbus.common.clock import AdjustableClock
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import CommunicationError, OperationTimeout, ServiceError
from twinbus.failover.backoff import Backoff
from twinbus.spark.long_poll import GATHER_S, LOCK_LEFT_S_MIN, LongPollWatcher

LOCK_S = 60.0
WAIT_S = 5.0


class Locking(FakeNamespace):
    """Its receivers say until when a message is locked, by a clock that a test moves."""

    def __init__(self, *queues: str) -> None:
        super().__init__(*queues)
        self.clock = AdjustableClock(is_manual=True)
        self.patience_s = 30.0
        self.abandoned: list[str] = []
        self.closed: list[str] = []

    def receiver(self, path: str, **_options: object) -> FakeReceiver:  # type: ignore[override]
        return LockingReceiver(self, path)

    def receives(self) -> int:
        return sum(line.startswith("receive") for line in self.log)


class LockingReceiver(FakeReceiver):
    _namespace: Locking

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        until_ms = self._namespace.clock.now().wall_ms + int(LOCK_S * 1000)
        found = await super().receive(count_max, wait_s=wait_s)
        return [each._replace(locked_until_ms=until_ms) for each in found]

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        await asyncio.sleep(self._namespace.delay_s)
        self._namespace.abandoned += [id_of(each.encoded) for each in messages]
        return await super().abandon(messages, timeout_s=timeout_s)

    async def close(self) -> None:
        self._namespace.closed.append(self.path)


@asynccontextmanager
async def watching(
    namespace: Locking,
    *paths: str,
    on_fault: Callable[[str, ServiceError | None], object] | None = None,
) -> AsyncIterator[LongPollWatcher]:
    watcher = LongPollWatcher(
        namespace,
        paths or list(namespace.queues),
        backoff=Backoff(first_s=0.01, last_s=0.02),
        on_fault=on_fault,
        clock=namespace.clock,
    )
    try:
        yield watcher
    finally:
        await watcher.close()


Told = list[tuple[str, ServiceError | None]]


@asynccontextmanager
async def in_trouble() -> AsyncIterator[tuple[Locking, LongPollWatcher, Told]]:
    """A watcher whose only queue could not be read for 0.1 s, and what it told of that."""
    namespace, told = Locking("a"), Told()
    namespace.receive_error = OperationTimeout("no answer")
    async with watching(namespace, on_fault=lambda *facts: told.append(facts)) as watcher:
        watcher.start_polling()
        assert await watcher.ready(0.1) == {}
        yield namespace, watcher, told


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_queue_rings_with_the_message_that_rang_it() -> None:
    """Y3: what ended the long poll is locked and handed on; no second receive is needed for it."""
    namespace = Locking("a", "b")
    namespace.put("a", backlog("first"), backlog("second"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        ready = await watcher.ready(WAIT_S)

        assert list(ready) == ["a"]
        message = ready["a"]
        assert message is not None and id_of(message.encoded) == "first"
        assert namespace.queues["a"].messages[1].holder == message.lock_token
        assert not namespace.queues["a"].messages[2].holder


async def test_a_queue_that_rang_is_silent_until_it_is_armed_again() -> None:
    namespace = Locking("a")
    namespace.put("a", backlog("first"), backlog("second"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        assert await watcher.ready(WAIT_S)
        assert await watcher.ready(0.05) == {}
        assert namespace.receives() == 1

        watcher.start_polling(["a"])
        ready = await watcher.ready(WAIT_S)
        assert ready["a"] is not None and id_of(ready["a"].encoded) == "second"


async def test_arming_what_waits_or_has_rung_changes_nothing() -> None:
    """Y3: batches that concern other queues cost an idle queue no receive."""
    namespace = Locking("idle", "busy")
    namespace.put("busy", backlog("one"))
    async with watching(namespace) as watcher:
        for _ in range(20):
            watcher.start_polling()
            await turns()
        assert namespace.receives() == 2

        assert list(await watcher.ready(WAIT_S)) == ["busy"]
        watcher.start_polling(["busy"])
        await turns()
        assert namespace.receives() == 3


async def test_nothing_rings_when_nothing_comes() -> None:
    async with watching(Locking("a")) as watcher:
        watcher.start_polling()
        assert await watcher.ready(0.02) == {}
        assert await watcher.ready(0) == {}


async def test_a_queue_that_rings_a_moment_later_joins_the_batch() -> None:
    namespace = Locking("a", "b", "c")
    namespace.patience_s = 0.002
    async with watching(namespace) as watcher:
        watcher.start_polling()
        namespace.put("a", backlog("a"))
        batch = asyncio.create_task(watcher.ready(WAIT_S))
        await asyncio.sleep(GATHER_S / 4)
        namespace.put("b", backlog("b"))
        assert sorted(await batch) == ["a", "b"]


async def test_a_message_with_an_old_lock_is_given_back() -> None:
    """The queue rings all the same: the task receives the message by itself."""
    namespace = Locking("a", "b")
    namespace.put("a", backlog("old"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        await turns()
        namespace.clock.advance(LOCK_S - LOCK_LEFT_S_MIN + 0.5)
        assert await watcher.ready(WAIT_S) == {"a": None}
        assert namespace.abandoned == ["old"]
        assert not namespace.queues["a"].messages[1].holder


async def test_a_message_with_just_enough_time_is_handed_on() -> None:
    namespace = Locking("a")
    namespace.put("a", backlog("young"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        await turns()
        namespace.clock.advance(LOCK_S - LOCK_LEFT_S_MIN)
        assert (await watcher.ready(WAIT_S))["a"] is not None
        assert namespace.abandoned == []


async def test_giving_back_may_fail() -> None:
    """Its lock ends by itself."""
    namespace = Locking("a")
    namespace.put("a", backlog("old"))
    namespace.settle_error = CommunicationError("gone")
    async with watching(namespace) as watcher:
        watcher.start_polling()
        await turns()
        namespace.clock.advance(LOCK_S)
        assert await watcher.ready(WAIT_S) == {"a": None}


@pytest.mark.parametrize("is_old", [False, True])
async def test_what_a_cancelled_caller_was_about_to_get_rings_again(is_old: bool) -> None:
    namespace = Locking("a", "b")
    namespace.put("a", backlog("one"))
    namespace.delay_s = 0.05
    async with watching(namespace) as watcher:
        watcher.start_polling()
        await turns()
        namespace.clock.advance(LOCK_S if is_old else 0)
        caller = asyncio.create_task(watcher.ready(WAIT_S))
        await asyncio.sleep(GATHER_S + 0.02 if is_old else 0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        ready = await watcher.ready(WAIT_S)
        assert list(ready) == ["a"] and (ready["a"] is None) == is_old


async def test_closing_gives_back_what_nobody_was_handed() -> None:
    namespace = Locking("a", "b")
    namespace.put("a", backlog("one"), backlog("two"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        await turns()
        await watcher.close()
        await watcher.close()
    assert namespace.abandoned == ["one"]
    assert all(not each.holder for each in namespace.queues["a"].messages.values())
    assert set(namespace.closed) == {"a", "b"}


async def test_a_queue_that_cannot_be_read_is_told_and_tried_again_with_pauses() -> None:
    async with in_trouble() as (namespace, watcher, told):
        # 0.1 s hold at least four pauses of 0.02 s, a fifth longer, and at most twelve.
        assert 2 <= namespace.receives() <= 13
        assert {facts[0] for facts in told} == {"a"}
        assert all(isinstance(error, OperationTimeout) for _, error in told)

        namespace.receive_error = None
        namespace.put("a", backlog("one"))
        assert list(await watcher.ready(WAIT_S)) == ["a"]
    assert told[-1] == ("a", None)


async def test_a_queue_that_can_be_read_again_is_told_without_a_message() -> None:
    """Y7: not after a poll of a quarter of an hour, when somebody was paged long ago."""
    async with in_trouble() as (namespace, watcher, told):
        namespace.receive_error = None
        assert await watcher.ready(2.5) == {}
        assert told[-1] == ("a", None)
        # And then the long polls go on
        before = namespace.receives()
        assert await watcher.ready(2.5) == {}
        assert namespace.receives() == before


async def test_one_queue_that_cannot_be_read_does_not_silence_the_others() -> None:
    class Half(Locking):
        def receiver(self, path: str, **options: object) -> FakeReceiver:
            receiver = super().receiver(path, **options)
            if path == "broken":
                receiver.receive = self.refuse  # type: ignore[method-assign]
            return receiver

        async def refuse(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
            raise CommunicationError("cannot be read")

    namespace = Half("broken", "sound")
    namespace.put("sound", backlog("one"))
    async with watching(namespace) as watcher:
        watcher.start_polling()
        assert list(await watcher.ready(WAIT_S)) == ["sound"]


async def test_a_defect_in_a_poll_is_told_and_not_swallowed() -> None:
    """A queue that nobody waits for any more would look like one that is empty."""

    class Defect(Locking):
        def receiver(self, path: str, **options: object) -> FakeReceiver:
            receiver = super().receiver(path, **options)
            receiver.receive = self.stumble  # type: ignore[method-assign]
            return receiver

        async def stumble(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
            raise ZeroDivisionError

    async with watching(Defect("a")) as watcher:
        watcher.start_polling()
        with pytest.raises(ZeroDivisionError):
            await watcher.ready(WAIT_S)


async def test_a_service_that_does_not_answer_is_waited_for_once_when_closing() -> None:
    class Slow(Locking):
        def receiver(self, path: str, **options: object) -> FakeReceiver:
            receiver = super().receiver(path, **options)
            receiver.abandon = self.doze  # type: ignore[method-assign]
            return receiver

        async def doze(
            self, messages: Sequence[ReceivedMessage], *, timeout_s: float
        ) -> list[ReceivedMessage]:
            await asyncio.sleep(0.2)
            raise OperationTimeout("no answer")

    namespace = Slow(*"abcdefghij")
    for path in namespace.queues:
        namespace.put(path, backlog(path))
    watcher = LongPollWatcher(namespace, list(namespace.queues), clock=namespace.clock)
    watcher.start_polling()
    await turns()
    began_s = asyncio.get_running_loop().time()
    await watcher.close()
    assert asyncio.get_running_loop().time() - began_s < 1.0

"""How full the backlog is, how old, and what is told about it."""

from __future__ import annotations

import asyncio

import pytest

from tests.pairing.conftest import FakePair, OpenPair, eventually
from tests.pairing.fake_namespace import FakeNamespace
from twinbus.aio import BrokeredMessage
from twinbus.core.cost_estimate import Plan
from twinbus.core.retry import RetryPolicy
from twinbus.core.sending import CredentialMemory
from twinbus.core.watermarks import Thresholds
from twinbus.drivers.management import MessageCounts, QueueProperties
from twinbus.pairing.hub import EventHub
from twinbus.pairing.occurrence import Occurrence
from twinbus.pairing.routing import Routing
from twinbus.pairing.watch import WATCH_INTERVAL_S, BacklogReader, BacklogWatch
from twinbus.service_errors import AccessRefused
from twinbus.testing import BusPair

QUEUE = "contoso/x-servicebus-transfer/0"


class FakeManager:
    """Counts what a fake namespace holds."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self._namespace = namespace
        self.asked = 0

    async def get_queue(self, path: str) -> QueueProperties:
        self.asked += 1
        held = self._namespace.messages(path)
        return QueueProperties(
            path=path,
            counts=MessageCounts(active=len(held)),
            size_bytes=sum(map(len, held)),
            max_size_in_megabytes=1,
        )


class Watched:
    """A watch over one queue of a fake, that looks every few milliseconds."""

    def __init__(self, thresholds: Thresholds | None = None, interval_s: float = 0.005) -> None:
        self.namespace = FakeNamespace("fabrikam")
        self.manager = FakeManager(self.namespace)
        hub = EventHub("contoso")
        self.told: list[Occurrence] = []
        hub.listen(self.told.append)
        self.routing = Routing.unpaired(hub, RetryPolicy(), CredentialMemory())
        reader = BacklogReader(self.namespace, self.manager, [QUEUE])  # type: ignore[arg-type]
        self.watch = BacklogWatch(self.routing, reader, thresholds or Thresholds(), interval_s)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.told]


async def test_a_backlog_that_is_empty_is_not_asked_again() -> None:
    """P16: a pair that is well costs no operations."""
    watched = Watched()
    watched.watch.start()
    await eventually(lambda: watched.manager.asked == 1, "the first look")
    await asyncio.sleep(0.05)
    assert watched.manager.asked == 1
    await watched.watch.stop()
    await watched.watch.stop()


async def test_a_backlog_is_watched_while_something_is_diverted_and_until_it_is_drained() -> None:
    """P16: levels on the way, and one event at the end."""
    watched = Watched(Thresholds(percent_full=(50,), messages=(2,)))
    watched.watch.start()
    failover = watched.routing.entity("orders").failover
    watched.routing.tell(failover.force(1.0))
    await eventually(lambda: watched.manager.asked > 3, "several looks")
    watched.namespace.messages(QUEUE).extend([bytes(300_000), bytes(300_000)])
    await eventually(lambda: watched.names.count("backlog-level") == 2, f"{watched.names}")
    watched.routing.tell(failover.mark_healthy(2.0))
    watched.namespace.messages(QUEUE).clear()
    await eventually(lambda: "drained" in watched.names, "the end")
    asked = watched.manager.asked
    await asyncio.sleep(0.05)
    assert watched.manager.asked == asked
    await watched.watch.stop()


@pytest.mark.parametrize("diverted_s", [1, 60, 61, 2_640])
async def test_a_diversion_takes_as_many_looks_as_are_estimated(
    monkeypatch: pytest.MonkeyPatch, diverted_s: int
) -> None:
    """C2: one at once, one an interval, and one when it is over."""
    watched = Watched(interval_s=WATCH_INTERVAL_S)
    failover = watched.routing.entity("orders").failover
    really_sleep, passed_s = asyncio.sleep, 0.0

    async def sleep(time_s: float) -> None:
        nonlocal passed_s
        passed_s += time_s
        if passed_s >= diverted_s:
            watched.routing.tell(failover.mark_healthy(2.0))
        await really_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    # The first look is the pairing's, and here it is that of the diversion, too.
    watched.routing.tell(failover.force(1.0))
    watched.watch.start()
    for _ in range(2_000):
        await really_sleep(0)
    await watched.watch.stop()
    plan = Plan(
        outage_ms=(60 + diverted_s) * 1000,
        ping_ms=diverted_s * 1000,
        failover_ms=60_000,
        watch_ms=round(WATCH_INTERVAL_S * 1000),
    )
    assert watched.manager.asked == plan.looks


async def test_a_backlog_that_nobody_empties_is_an_event() -> None:
    """Y7: is a syphon running?"""
    watched = Watched(Thresholds(unattended_s=0.05))
    watched.namespace.messages(QUEUE).append(b"one")
    watched.watch.start()
    await eventually(lambda: "backlog-unattended" in watched.names, f"{watched.names}")
    await watched.watch.stop()


async def test_a_question_that_fails_stops_nothing() -> None:
    """P16: the next one may succeed."""
    watched = Watched()
    watched.namespace.messages(QUEUE).append(b"one")
    watched.namespace.answer("*", RuntimeError("a broken driver"))
    watched.routing.tell(watched.routing.entity("orders").failover.force(1.0))
    watched.watch.start()
    await eventually(lambda: watched.manager.asked > 2, "several looks")
    watched.namespace.answer("*", None)
    watched.namespace.messages(QUEUE).clear()
    asked = watched.manager.asked
    await eventually(lambda: watched.manager.asked > asked + 1, "more looks")
    await watched.watch.stop()


async def test_what_may_not_be_asked_is_said(fake_pair: FakePair) -> None:
    """P5: counts need Manage, the age needs Listen."""
    fake_pair.primary.force_failover("orders")
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    fake_pair.away.answer("*", AccessRefused("the claim Listen is missing"))
    for queue in await fake_pair.primary.backlog():
        assert queue.messages is queue.percent_full is queue.oldest_age_s is None
        assert len(queue.unknown) == 2
        assert "Manage" in queue.unknown[0] and "Listen" in queue.unknown[1]


async def test_the_backlog_of_real_namespaces(
    open_pair: OpenPair, servicebus_pair: BusPair
) -> None:
    """P16: depth, age and percent full of every queue."""
    servicebus_pair.primary.queue("orders")
    pair = await open_pair(backlog_queue_count=1)
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    for _ in range(3):
        await sender.send(BrokeredMessage(bytes(1_000)))
    [found] = await pair.primary.backlog()
    assert (found.messages, found.dead_letters, found.unknown) == (3, 0, ())
    assert found.oldest_age_s is not None and 0 <= found.oldest_age_s < 60
    assert found.percent_full is not None and 0 < found.percent_full < 1

"""What is told about the backlog, and how often it is looked at."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest

from tests.support.pairing.fake_namespace import FakeNamespace
from tests.support.pairing.pairs import eventually
from tests.support.pairing.passing_time import PassingTime
from twinbus.cost.estimate import EstimateInput
from twinbus.drivers.administration import MessageCounts, QueueProperties
from twinbus.failover.backlog_alerts import BacklogThresholds, PollingPace
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.send_decision import CredentialHistory
from twinbus.pairing.backlog_monitor import BacklogMonitor, BacklogReader
from twinbus.pairing.events import EventHub, EventRecord
from twinbus.pairing.routing import SendRouter

QUEUE = "contoso/x-servicebus-transfer/0"


class FakeManager:
    """Counts what a fake namespace holds."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self._namespace = namespace
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get_queue(self, path: str) -> QueueProperties:
        self.asked += 1
        await self.may_answer.wait()
        held = self._namespace.messages(path)
        return QueueProperties(
            path=path,
            counts=MessageCounts(active=len(held)),
            size_bytes=sum(map(len, held)),
            max_size_in_megabytes=1,
        )


class Watched:
    """A watch over one queue of a fake, that looks every few milliseconds unless told."""

    def __init__(
        self, thresholds: BacklogThresholds | None = None, pace: PollingPace | None = None
    ) -> None:
        self.namespace = FakeNamespace("fabrikam")
        self.manager = FakeManager(self.namespace)
        hub = EventHub("contoso")
        self.told: list[EventRecord] = []
        hub.subscribe(self.told.append)
        self.routing = SendRouter.unpaired(hub, RetryPolicy(), CredentialHistory())
        reader = BacklogReader(self.namespace, self.manager, [QUEUE])  # type: ignore[arg-type]
        self.watch = BacklogMonitor(
            self.routing,
            reader,
            thresholds or BacklogThresholds(),
            pace or PollingPace(0.005, 0.005),
        )

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
    watched = Watched(BacklogThresholds(percent_full=(50,), messages=(2,)))
    watched.watch.start()
    failover = watched.routing.entity("orders").failover
    watched.routing.publish(failover.force(1.0))
    await eventually(lambda: watched.manager.asked > 3, "several looks")
    watched.namespace.messages(QUEUE).extend([bytes(300_000), bytes(300_000)])
    await eventually(
        lambda: watched.names.count("backlog-threshold-crossed") == 2, f"{watched.names}"
    )
    watched.routing.publish(failover.mark_healthy(2.0))
    watched.namespace.messages(QUEUE).clear()
    await eventually(lambda: "backlog-drained" in watched.names, "the end")
    asked = watched.manager.asked
    await asyncio.sleep(0.05)
    assert watched.manager.asked == asked
    await watched.watch.stop()


@pytest.mark.parametrize("diverted_s", [1, 60, 61, 2_640, 3_602, 7_200])
@pytest.mark.parametrize("messages", [0, 1])
async def test_a_diversion_takes_as_many_looks_as_are_estimated(
    diverted_s: int, messages: int
) -> None:
    """C2: one at once, then seldom and more seldom, and one when it is over."""
    watched = Watched(pace=PollingPace())
    failover = watched.routing.entity("orders").failover
    time = PassingTime(watched.routing)
    watched.namespace.age_s = time.now_s
    watched.namespace.messages(QUEUE).extend([b"one"] * messages)
    # The first look is the pairing's, and here it is that of the diversion, too.
    watched.routing.publish(failover.force(0.0))
    watched.watch.start()
    await time.passes(diverted_s)
    watched.routing.publish(failover.mark_healthy(diverted_s))
    watched.namespace.messages(QUEUE).clear()
    await time.passes(3_600)
    await watched.watch.stop()
    plan = EstimateInput(
        rate_per_s=Fraction(messages),
        outage_ms=(60 + diverted_s) * 1000,
        ping_ms=diverted_s * 1000,
        failover_ms=60_000,
    )
    assert watched.manager.asked == plan.looks
    levels = [each for each in watched.told if each.name == "backlog-threshold-crossed"]
    assert len(levels) == (messages if diverted_s > 3_600 else 0)


async def test_the_end_of_a_diversion_is_looked_at_soon() -> None:
    """P16: a watch that has slowed down is quick again, and sees that all is home."""
    watched = Watched(pace=PollingPace())
    time = PassingTime(watched.routing)
    failover = watched.routing.entity("orders").failover
    watched.namespace.messages(QUEUE).extend([b"one"] * 100)
    watched.routing.publish(failover.force(0.0))
    watched.watch.start()
    await time.passes(2_000)
    watched.routing.publish(failover.mark_healthy(2_000))
    asked = watched.manager.asked
    await time.passes(14)
    assert watched.manager.asked == asked
    await time.passes(2)
    assert watched.manager.asked == asked + 1 and "backlog-drained" not in watched.names
    # A syphon takes half a minute for it: the look that finds nothing comes when it is expected,
    # and not half a minute after the last one.
    del watched.namespace.messages(QUEUE)[50:]
    await time.passes(20)
    watched.namespace.messages(QUEUE).clear()
    await time.passes(12)
    assert "backlog-drained" in watched.names
    await watched.watch.stop()


async def test_changes_in_a_row_delay_no_look() -> None:
    """P16: an entity that comes and goes every few seconds."""
    watched = Watched(pace=PollingPace())
    time = PassingTime(watched.routing)
    failover = watched.routing.entity("orders").failover
    watched.watch.start()
    for now_s in range(0, 600, 10):
        watched.routing.publish(failover.force(now_s))
        await time.passes(5)
        watched.routing.publish(failover.mark_healthy(now_s + 5))
        await time.passes(5)
    assert 600 / 15 - 5 <= watched.manager.asked <= 2 * 600 / 15
    await watched.watch.stop()


async def test_a_diversion_during_a_look_is_not_missed() -> None:
    """P16: it began after the look had, and nothing else happens."""
    watched = Watched()
    watched.manager.may_answer.clear()
    watched.watch.start()
    await eventually(lambda: watched.manager.asked == 1, "the first look")
    watched.routing.publish(watched.routing.entity("orders").failover.force(1.0))
    watched.manager.may_answer.set()
    await eventually(lambda: watched.manager.asked > 2, "several looks")
    await watched.watch.stop()


async def test_a_backlog_that_nobody_empties_is_an_event() -> None:
    """Y7: is a syphon running?"""
    watched = Watched(BacklogThresholds(unattended_s=0.05))
    watched.namespace.messages(QUEUE).append(b"one")
    watched.watch.start()
    await eventually(lambda: "backlog-unattended" in watched.names, f"{watched.names}")
    await watched.watch.stop()


async def test_a_question_that_fails_stops_nothing() -> None:
    """P16: the next one may succeed."""
    watched = Watched()
    watched.namespace.messages(QUEUE).append(b"one")
    watched.namespace.answer("*", RuntimeError("a broken driver"))
    watched.routing.publish(watched.routing.entity("orders").failover.force(1.0))
    watched.watch.start()
    await eventually(lambda: watched.manager.asked > 2, "several looks")
    watched.namespace.answer("*", None)
    watched.namespace.messages(QUEUE).clear()
    asked = watched.manager.asked
    await eventually(lambda: watched.manager.asked > asked + 1, "more looks")
    await watched.watch.stop()

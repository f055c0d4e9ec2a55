"""What `twinbus cost estimate` says of a pair is what a broker counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.books import by_broker
from tests.support.pairing.pairs import OpenPair, Paired, eventually
from tests.support.pairing.passing_time import PassingTime
from twinbus.aio import BrokeredMessage
from twinbus.cost.estimate import CostKind, EstimateInput, estimate
from twinbus.cost.price_sheets import load_prices
from twinbus.failover.backlog_alerts import BacklogThresholds
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.send_decision import CredentialHistory
from twinbus.pairing.backlog_monitor import BacklogMonitor, BacklogReader
from twinbus.pairing.events import EventHub
from twinbus.pairing.routing import SendRouter
from twinbus.testing import NamespaceFixture, NamespacePairFixture

QUEUES = 10
PLAN = EstimateInput(backlog_queues=QUEUES, rate_per_s=Fraction(1), outage_ms=45 * 60_000)


def counted(bus: NamespaceFixture) -> Counter[str]:
    """Units by operation."""
    units: Counter[str] = Counter()
    for (_, operation), total in by_broker(bus).items():
        units[operation] += total.units
    return units


def estimated(plan: EstimateInput) -> dict[CostKind, int]:
    return {line.kind: line.units for line in estimate(plan, load_prices("basic")).outage.lines}


async def test_pairing_costs_what_is_estimated(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """C3: the first sender makes the queues, each one asks for them and looks at them once."""
    away = servicebus_pair.secondary
    for senders in (1, 2, 3):
        expected = estimated(replace(PLAN, senders=senders))
        await open_pair(backlog_queue_count=QUEUES)
        paid = {"administration": expected[CostKind.PAIRING]}
        await eventually(lambda paid=paid: counted(away) >= Counter(paid), "the first look")
        await asyncio.sleep(0.1)
        assert counted(away) == paid


async def paired(open_pair: OpenPair, away: NamespaceFixture) -> Paired:
    """A pair whose own watch has looked once, and waits now."""
    pair = await open_pair(backlog_queue_count=QUEUES)
    once = {"administration": estimated(PLAN)[CostKind.PAIRING]}
    await eventually(lambda: counted(away) == once, "the first look")
    return pair


@pytest.mark.parametrize("outage_s", [61, 45 * 60, 2 * 3_600])
async def test_the_watch_over_an_outage_costs_what_is_estimated(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, outage_s: int
) -> None:
    """C3: a watch over a real broker, whose time alone is not real, from beginning to end."""
    away, primary = servicebus_pair.secondary, servicebus_pair.primary.name
    pair = await paired(open_pair, away)
    queues = [f"{primary}/x-servicebus-transfer/{index}" for index in range(QUEUES)]
    for queue in queues:
        await pair.secondary.create_message_sender(queue).send(BrokeredMessage(b"one"))
    hub = EventHub("contoso")
    told: list[str] = []
    hub.subscribe(lambda occurrence: told.append(occurrence.name))
    routing = SendRouter.unpaired(hub, RetryPolicy(), CredentialHistory())
    time = PassingTime(routing)
    manager = pair.options.secondary_namespace_manager
    reader = BacklogReader(pair.secondary.driver, manager, queues)
    # How old a message is says the broker, whose hours are real ones.
    watch = BacklogMonitor(routing, reader, BacklogThresholds(age_s=(10**6,)))
    before = counted(away)
    failover = routing.entity("orders").failover
    routing.publish(failover.force(0.0))
    watch.start()
    plan = replace(PLAN, outage_ms=outage_s * 1000)
    await time.passes((plan.diverted_until_ms - plan.failover_ms) / 1000)
    routing.publish(failover.mark_healthy(time.now_s()))
    await time.passes(15)
    await watch.stop()
    paid, expected = counted(away) - before, estimated(plan)
    assert paid == {
        "administration": expected[CostKind.WATCH],
        "peek": expected[CostKind.WATCH_PEEKS],
    }
    assert paid.total() == (QUEUES + 1) * plan.backlog_readings


async def test_a_look_at_an_empty_backlog_is_one_operation(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """C3: one listing for ten queues; a message in one of them is one peek more."""
    away = servicebus_pair.secondary
    servicebus_pair.primary.queue("orders")
    pair = await paired(open_pair, away)
    before = counted(away)
    await pair.primary.backlog()
    assert counted(away) - before == {"administration": 1}
    pair.primary.force_failover("orders")
    pair.primary.hold("orders")
    await eventually(lambda: counted(away)["administration"] == before["administration"] + 2)
    await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"one"))
    before = counted(away)
    await pair.primary.backlog()
    assert counted(away) - before == {"administration": 1, "peek": 1}

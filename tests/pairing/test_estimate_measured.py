"""What `twinbus cost estimate` says of a pair is what a broker counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from fractions import Fraction

from tests.pairing.conftest import OpenPair, eventually
from tests.support.books import by_broker
from twinbus.aio import BrokeredMessage
from twinbus.core.cost_estimate import Kind, Plan, estimate
from twinbus.prices import load_prices
from twinbus.testing import Bus, BusPair

QUEUES = 10
PLAN = Plan(backlog_queues=QUEUES, rate_per_s=Fraction(1), outage_ms=45 * 60_000, watch_ms=15_000)


def counted(bus: Bus) -> Counter[str]:
    """Units by operation."""
    units: Counter[str] = Counter()
    for (_, operation), total in by_broker(bus).items():
        units[operation] += total.units
    return units


def estimated(plan: Plan) -> dict[Kind, int]:
    return {line.kind: line.units for line in estimate(plan, load_prices("basic")).outage.lines}


async def test_pairing_costs_what_is_estimated(
    open_pair: OpenPair, servicebus_pair: BusPair
) -> None:
    """C3: the first sender makes the queues, each one asks for them and looks at them once."""
    away = servicebus_pair.secondary
    for senders in (1, 2, 3):
        expected = estimated(replace(PLAN, senders=senders))
        await open_pair(backlog_queue_count=QUEUES)
        paid = {
            "administration": expected[Kind.PAIRING],
            "peek": expected[Kind.PAIRING_PEEKS],
        }
        await eventually(lambda paid=paid: counted(away) >= Counter(paid), "the first look")
        await asyncio.sleep(0.1)
        assert counted(away) == paid


async def test_a_look_costs_what_is_estimated(
    open_pair: OpenPair, servicebus_pair: BusPair
) -> None:
    """C3: each queue is asked for its counts and its oldest message, in an outage as well."""
    away = servicebus_pair.secondary
    servicebus_pair.primary.queue("orders")
    pair = await open_pair(backlog_queue_count=QUEUES)
    # The watch has looked once, and sleeps now.
    once = {"administration": 3 * QUEUES, "peek": QUEUES}
    await eventually(lambda: counted(away) == once, "the first look")
    pair.primary.force_failover("orders")
    pair.primary.hold("orders")
    await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"one"))
    before = counted(away)
    await pair.primary.backlog()
    expected = estimated(PLAN)
    assert counted(away) - before == {
        "administration": expected[Kind.WATCH] // PLAN.looks,
        "peek": expected[Kind.WATCH_PEEKS] // PLAN.looks,
    }

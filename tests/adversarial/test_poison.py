"""Messages that their destination never takes, among others that it does (case 115).

The backlog's MaxDeliveryCount is the largest there is, so that an outage dead-letters nothing:
it is the syphon that counts and gives up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

import psutil
import pytest

from tests.adversarial.backlog import Backlog
from tests.support.mover.brokers import TIMEOUT_S, Pair
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import OutgoingMessage
from twinbus.failover.backoff import Backoff
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.receipts import ReceiptOutcome

GOOD_COUNT = 4_000
POISON_EVERY = 100
RATE_SHARE_MIN = 0.7
# A machine that is busy with other things is not the poison's doing.
TRIES_MAX = 9
SMALL_BYTES_MAX = 2_048


def detoured(name: str, path: str, *, session: str | None = None, size: int = 200) -> bytes:
    properties = Properties(message_id=name, group_id=session)
    return alias(Message(properties=properties, body=b"x" * size).encode(), path)


async def fill(backlog: Backlog, messages: list[bytes]) -> None:
    driver = backlog.driver(backlog.pair.secondary)
    for index, queue in enumerate(backlog.queues):
        mine = messages[index :: len(backlog.queues)]
        sender = driver.sender(queue)
        for start in range(0, len(mine), 500):
            parcels = [OutgoingMessage(each) for each in mine[start : start + 500]]
            await sender.send(parcels, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("engine", ["mover", "shift"])
async def test_case_115_poison_of_every_kind_ends_in_dead_letters(
    backlog: Backlog, engine: str
) -> None:
    """Y4: each with its reason, destination and error; after a bounded number of sends."""
    primary = backlog.pair.primary
    orders = backlog.destination(requires_duplicate_detection=True)
    sessions = backlog.destination(requires_session=True)
    small = backlog.destination(max_message_size_bytes=SMALL_BYTES_MAX)
    deleted, disabled = backlog.destination(), backlog.destination(status="SendDisabled")
    primary.delete_queue(deleted)
    topic = primary.fresh_topic("audit")
    subscription = f"{topic}/subscriptions/audit"
    await fill(
        backlog,
        [
            detoured("a", orders),
            detoured("no-session", sessions),
            detoured("in-session", sessions, session="s"),
            detoured("too-large", small, size=3 * SMALL_BYTES_MAX),
            detoured("fits", small),
            detoured("deleted", deleted),
            detoured("disabled", disabled),
            detoured("subscription", subscription),
            detoured("b", orders),
            detoured("a", orders),
        ],
    )
    await backlog.syphon(engine, backoff=Backoff(first_s=0.2, last_s=1.0, gone_grace_s=0))

    buried = await backlog.buried(4)
    assert {name: each.reason for name, each in buried.items()} == {
        "no-session": "message-refused",
        "too-large": "message-too-large",
        "deleted": "destination-not-found",
        "subscription": "message-refused",
    }
    for name, path in (
        ("no-session", sessions),
        ("too-large", small),
        ("deleted", deleted),
        ("subscription", subscription),
    ):
        assert path in buried[name].description, buried[name]
    assert backlog.outcomes()[ReceiptOutcome.MOVED] == 5
    assert await backlog.arrived(orders) == Counter(["a", "b"])
    # One that is disabled is no poison: it waits, and was tried a few times only.
    assert backlog.left() == 1
    assert backlog.outcomes()[ReceiptOutcome.DEFERRED] <= 6


@pytest.mark.parametrize("kind", ["beside-others", "among-others"])
async def test_case_115_poison_leaves_others_most_of_their_rate(
    standing_pair: Pair, kind: str
) -> None:
    """Y4: one message of a hundred, for bad destinations or for the one of all the others.

    The rate is by the processor time of the mover and both brokers: by the clock on the wall two
    equal runs differ by half on a machine that is busy with tests. Nine tenths are promised for
    one in a thousand, and measured in peace by the benchmark syphon_poison; this guards the same
    with room for noise. Found one by one among the good, poison would leave them a quarter.
    """
    shares: list[float] = []
    for _ in range(TRIES_MAX):
        clean = await rate(standing_pair, kind, has_poison=False)
        shares.append(await rate(standing_pair, kind, has_poison=True) / clean)
        if median(shares) >= RATE_SHARE_MIN:
            return
    raise AssertionError(f"good messages kept {median(shares):.0%} of their rate: {shares}")


async def rate(pair: Pair, kind: str, *, has_poison: bool) -> float:
    """Good messages that came home in a second of processor time."""
    backlog = Backlog(pair, queue_count=2)
    orders = backlog.destination(requires_session=True)
    poison = bad_ones(backlog, orders, kind)
    messages = []
    for number in range(GOOD_COUNT):
        messages.append(detoured(f"good-{number}", orders, session="s"))
        if has_poison and number % POISON_EVERY == POISON_EVERY // 2:
            messages.append(poison(number // POISON_EVERY))
    await fill(backlog, messages)
    mover = Mover(
        backlog.driver(pair.secondary),
        backlog.driver(pair.primary),
        backlog.queues,
        MoverOptions(rules=backlog.rules()),
    )
    began_s = processor_s(pair)
    running = asyncio.create_task(mover.run())
    try:
        async with asyncio.timeout(60):
            while mover.report.receipt_counts.counts[ReceiptOutcome.MOVED] < GOOD_COUNT:
                await asyncio.sleep(0.01)
        return GOOD_COUNT / (processor_s(pair) - began_s)
    finally:
        mover.stop()
        await running
        await backlog.close()
        pair.primary.delete_queue(orders)


def processor_s(pair: Pair) -> float:
    """What this thread and both brokers have used so far."""
    used_s = time.thread_time()
    for broker in (pair.primary, pair.secondary):
        times = psutil.Process(broker.pid).cpu_times()
        used_s += times.user + times.system
    return used_s


def bad_ones(backlog: Backlog, orders: str, kind: str) -> Callable[[int], bytes]:
    if kind == "among-others":
        return lambda number: detoured(f"bad-{number}", orders)
    small = backlog.destination(max_message_size_bytes=SMALL_BYTES_MAX)
    paths = [
        f"gone-{backlog.name}",
        backlog.destination(status="SendDisabled"),
        backlog.destination(requires_session=True),
        small,
        "$management",
        "east/x-servicebus-transfer/0",
    ]

    def bad_one(number: int) -> bytes:
        path = paths[number % len(paths)]
        return detoured(f"bad-{number}", path, size=3 * SMALL_BYTES_MAX if path == small else 200)

    return bad_one

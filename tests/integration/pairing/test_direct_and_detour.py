"""Any message that went round by the backlog equals the same message sent directly, over real
sockets: sender, secondary, mover, primary, receiver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.roundtrip import essence, messages
from twinbus.aio import (
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.server.ingest import BROKER_ANNOTATIONS
from twinbus.encoding.envelope import size_if_aliased
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import TooLargeForBacklog
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import NamespacePairFixture

LIMIT_BYTES = 262_144
TTL_MS_MIN = 600_000
BATCHES = 6
NUMBERS = count()


def long_lived(encoded: bytes) -> bytes:
    """The same, but not expired before it can be compared."""
    message = Message.decode(encoded)
    if message.header is not None and message.header.ttl_ms is not None:
        message.header.ttl_ms = max(message.header.ttl_ms, TTL_MS_MIN)
        if message.properties is not None:
            message.properties.absolute_expiry_time = None
    return message.encode()


def as_sent(delivered: ReceivedMessage) -> Any:
    """What a receiver sees of the sender's message."""
    message = Message.decode(delivered.encoded)
    for section in (message.message_annotations or {}, message.delivery_annotations or {}):
        for name in BROKER_ANNOTATIONS & set(section):
            del section[name]
    return essence(message.encode())


class Ways:
    """Two queues of the primary: one is sent to directly, the other is diverted."""

    def __init__(self, pair: NamespacePairFixture, driver: DriverName) -> None:
        number = next(NUMBERS)
        self._pair, self._driver = pair, driver
        self.direct = pair.primary.queue(f"direct-{number}")
        self.detour = pair.primary.queue(f"detour-{number}")

    async def __aenter__(self) -> Ways:
        home, away = self._pair.primary.connection_string, self._pair.secondary.connection_string
        self.primary = MessagingFactory.from_connection_string(home, driver=self._driver)
        self.secondary = MessagingFactory.from_connection_string(away, driver=self._driver)
        manager = NamespaceManager.from_connection_string(away)
        options = SendAvailabilityPairedNamespaceOptions(manager, self.secondary, 1)
        await self.primary.pair_namespace(options)
        self.primary.force_failover(self.detour)
        self.primary.hold(self.detour)
        # The SDK cannot decode every AMQP value, so it is not the one to look or to move.
        self.home, self.away = self.primary.mover_driver(), self.secondary.mover_driver()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.primary.close()
        await self.secondary.close()

    async def send(self, batch: Sequence[bytes]) -> None:
        """One by one, then all at once; both ways."""
        for path in (self.direct, self.detour):
            sender = self.primary.create_paired_sender(path)
            for each in batch:
                await sender.send_outgoing([OutgoingMessage(each)])
            await sender.send_outgoing([OutgoingMessage(each) for each in batch])

    async def bring_home(self) -> None:
        name = self._pair.primary.name
        mover = Mover(
            self.away,
            self.home,
            [f"{name}/x-servicebus-transfer/0"],
            MoverOptions(rules=DeliveryRules(primary_name=name)),
        )
        report = await mover.run(once=True)
        assert not report.faults

    async def seen(self, path: str, count: int) -> list[Any]:
        receiver = self.home.receiver(path)
        found: list[ReceivedMessage] = []
        while len(found) < count:
            start = found[-1].sequence_number + 1 if found else 1
            more = await receiver.peek(count, from_sequence=start, timeout_s=20)
            assert more, f"{len(found)} of {count} in {path}"
            found += more
        await receiver.close()
        return sorted(map(as_sent, found), key=repr)


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_any_message_is_the_same_on_both_ways(
    servicebus_pair: NamespacePairFixture, driver: DriverName
) -> None:
    """P12, Y1: every AMQP type, unicode, empty bodies, annotations, singles and batches."""
    batches: list[list[bytes]] = []

    # All of them travel together: to make a pair for each would take most of the time.
    @settings(max_examples=BATCHES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(messages().map(long_lived), min_size=1, max_size=25))
    def draw(batch: list[bytes]) -> None:
        batches.append(batch)

    draw()
    assert len(batches) >= BATCHES
    async with Ways(servicebus_pair, driver) as ways:
        for batch in batches:
            await ways.send(batch)
        await ways.bring_home()
        count = 2 * sum(map(len, batches))
        direct = await ways.seen(ways.direct, count)
        assert direct == await ways.seen(ways.detour, count)


def of_size(size_bytes: int) -> bytes:
    made = Message(properties=Properties(message_id="m"), body=bytes(size_bytes - 100)).encode()
    return Message(
        properties=Properties(message_id="m"), body=bytes(size_bytes - 100 + size_bytes - len(made))
    ).encode()


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
@pytest.mark.parametrize("less", [0, 1, 26, 332, 333])
async def test_a_message_near_the_limit_is_refused_always_or_never(
    servicebus_pair: NamespacePairFixture, driver: DriverName, less: int
) -> None:
    """P13: at the limit minus 0, 1, 26, 332 and 333 bytes, in both states alike."""
    message = of_size(LIMIT_BYTES - less)
    assert len(message) == LIMIT_BYTES - less
    async with Ways(servicebus_pair, driver) as ways:
        if size_if_aliased(message, ways.detour) <= LIMIT_BYTES:
            await ways.send([message])
            await ways.bring_home()
            direct = await ways.seen(ways.direct, 2)
            assert direct == await ways.seen(ways.detour, 2)
            return
        for path in (ways.direct, ways.detour):
            with pytest.raises(TooLargeForBacklog) as caught:
                await ways.primary.create_paired_sender(path).send_outgoing(
                    [OutgoingMessage(message)]
                )
            assert caught.value.limit_bytes == LIMIT_BYTES
            assert caught.value.size_bytes == len(message)

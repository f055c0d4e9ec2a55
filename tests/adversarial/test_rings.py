"""Backlogs that lead into backlogs (case 113): every way round comes to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.adversarial.backlog import Backlog, forged
from tests.support.mover.brokers import TIMEOUT_S, Pair
from tests.support.mover.messages import backlog as backlog_message
from tests.support.moving import move_chunk
from twinbus.amqp.message.message import Message
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import ReceiveMode
from twinbus.encoding.envelope.fields import HOPS_MAX
from twinbus.encoding.transit import OutgoingMessage
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome

TRIPS_MAX = 20


@pytest.mark.parametrize("engine", ["mover", "shift"])
async def test_case_113_a_backlog_queue_is_no_destination(backlog: Backlog, engine: str) -> None:
    """Y6: this pair's own, another pair's, and one that exists on the primary."""
    orders = backlog.destination()
    opposite = f"west-{backlog.name}/x-servicebus-transfer/0"
    backlog.pair.primary.create_queue(opposite)
    paths = [
        *(backlog.queues[0], backlog.queues[0].upper(), opposite),
        *("north/x-servicebus-transfer/7", "a/x-servicebus-transfer/0/b", "x-servicebus-transfer"),
    ]
    good = backlog.surround(orders, *(forged(each, x_ms_path=each) for each in paths))
    await backlog.syphon(engine)

    buried = await backlog.buried(len(paths))
    reasons = {name: each.reason for name, each in buried.items()}
    assert reasons == dict.fromkeys(paths, "destination-not-allowed")
    assert all("backlog queue" in each.description for each in buried.values())
    assert backlog.sent_home() == {orders: len(good)}
    assert backlog.pair.primary.queue(opposite)["active_message_count"] == 0


async def test_case_113_what_comes_to_a_backlog_a_second_time_has_no_destination(
    standing_pair: Pair,
) -> None:
    """Y6: two namespaces that are each other's secondary, and a queue that forwards there."""
    ring = Ring(standing_pair)
    standing_pair.primary.create_queue(ring.home, forward_to=ring.back)
    ring.away_backlog.forge(backlog_message("m", ring.home))
    trips = await ring.round_trips()

    assert trips == 2
    assert [(each.outcome, each.reason) for each in ring.receipts] == [
        (ReceiptOutcome.MOVED, ""),
        (ReceiptOutcome.DEAD_LETTERED, "no-destination"),
    ]
    await ring.close()


async def test_case_113_a_ring_of_pairs_ends_after_eight_hops(standing_pair: Pair) -> None:
    """Y6: on both sides somebody writes the destination again and has it forwarded.

    Our broker refuses rules whose action writes ``x-ms-path``. Others take them; the ring's
    routers do here what such a rule does there.
    """
    ring = Ring(standing_pair)
    ring.close_with_routers()
    ring.away_backlog.forge(backlog_message("m", ring.home))
    trips = await ring.round_trips()

    # The first time it was sent to the backlog, and eight times it was forwarded
    assert trips == HOPS_MAX + 2
    told = Counter((each.outcome, each.reason) for each in ring.receipts)
    assert told == {
        (ReceiptOutcome.MOVED, ""): HOPS_MAX + 1,
        (ReceiptOutcome.DEAD_LETTERED, "too-many-hops"): 1,
    }
    last = ring.receipts[-1]
    assert last.destination in (ring.home, ring.away)
    await ring.close()


class Ring:
    """East's backlog is on west and west's on east; a syphon for each."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.away_backlog = Backlog(pair)
        name = self.away_backlog.name
        self.home, self.away = f"home-{name}", f"away-{name}"
        self.back = f"west-{name}/x-servicebus-transfer/0"
        pair.primary.create_queue(self.back, max_delivery_count=2_147_483_647)
        self.receipts: list[Receipt] = []
        self._routers: dict[str, Router] = {}

    def close_with_routers(self) -> None:
        """A queue on each side whose messages are sent back, through one that forwards."""
        for broker, entity, target, onwards in (
            (self.pair.primary, self.home, self.back, self.away),
            (self.pair.secondary, self.away, self.away_backlog.queues[0], self.home),
        ):
            broker.create_queue(entity)
            broker.create_queue(f"{entity}-gate", forward_to=target)
            self._routers[broker.namespace] = Router(
                self.away_backlog.driver(broker), entity, f"{entity}-gate", onwards
            )

    async def round_trips(self) -> int:
        """Let both syphons work in turn until neither finds anything; how many trips there were."""
        east, west = self.pair.primary, self.pair.secondary
        for trip in range(TRIPS_MAX):
            queue, source, target = (
                (self.back, east, west) if trip % 2 else (self.away_backlog.queues[0], west, east)
            )
            receipts = await move_chunk(
                self.away_backlog.driver(source),
                self.away_backlog.driver(target),
                queue,
                self.away_backlog.options(),
            )
            self.receipts += receipts
            if target.namespace in self._routers:
                await self._routers[target.namespace].send_on()
            if not receipts:
                return trip
        return TRIPS_MAX

    async def close(self) -> None:
        await self.away_backlog.close()


class Router:
    """Gives every message of an entity another destination, and keeps all else that it has."""

    def __init__(self, driver: AmqpDriver, entity: str, gate: str, onwards: str) -> None:
        self._receiver = driver.receiver(entity, mode=ReceiveMode.RECEIVE_AND_DELETE)
        self._sender = driver.sender(gate)
        self._onwards = onwards

    async def send_on(self) -> None:
        for delivered in await self._receiver.receive(10, wait_s=0.3):
            message = Message.decode(delivered.encoded)
            properties = {**(message.application_properties or {}), "x-ms-path": self._onwards}
            parcel = OutgoingMessage(replace(message, application_properties=properties).encode())
            await self._sender.send([parcel], timeout_s=TIMEOUT_S)

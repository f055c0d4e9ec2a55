"""Two brokers in their own processes: a backlog on one, its destinations on the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from uuid import uuid4

from tests.support.broker_process import BrokerProcess
from tests.support.mover.messages import id_of, plain
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.interface import Driver, ReceiveMode
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import OutgoingMessage
from twinbus.failover.backoff import Backoff
from twinbus.mover.mover import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import Receipt

TIMEOUT_S = 30.0
DRIVERS: dict[str, Callable[[str], Driver]] = {
    "amqp": AmqpDriver.from_connection_string,
    "servicebus": ServiceBusDriver.from_connection_string,
}


class Pair:
    """A primary, a secondary, and a name that no other test uses."""

    def __init__(self, directory: Path) -> None:
        self.primary = BrokerProcess(directory / "primary", namespace="east")
        self.secondary = BrokerProcess(directory / "secondary", namespace="west")

    def start(self) -> Self:
        self.primary.start()
        self.secondary.start()
        return self

    def close(self) -> None:
        self.primary.close()
        self.secondary.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a program finds both by."""
        return {
            "SERVICEBUS_CONNECTION_STRING": self.primary.connection_string,
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": self.secondary.connection_string,
        }


class Scene:
    """One test's queues in a pair of brokers."""

    def __init__(
        self,
        pair: Pair,
        *,
        queue_count: int = 2,
        driver_name: str = "amqp",
        **backlog_properties: object,
    ) -> None:
        """``driver_name`` is the library of the drivers that a mover is given."""
        self.pair = pair
        self._make_driver = DRIVERS[driver_name]
        self.name = f"east-{uuid4().hex[:8]}"
        self.queues = [f"{self.name}/x-servicebus-transfer/{i}" for i in range(queue_count)]
        for queue in self.queues:
            pair.secondary.create_queue(
                queue, **{"max_delivery_count": 2_147_483_647, **backlog_properties}
            )
        self._drivers: list[Driver] = []

    def destination(self, **properties: object) -> str:
        return self.pair.primary.fresh_queue(**properties)

    def enable(self, destination: str) -> None:
        """A destination that was disabled takes messages again."""
        where = f"/namespaces/east/queues/{destination}"
        self.pair.primary.admin("PATCH", where, {"status": "Active"})

    @contextmanager
    def fault(self, kind: str, entity: str, **options: object) -> Iterator[None]:
        """A failure of one destination on the primary."""
        where = "/namespaces/east/faults"
        wanted = {"kind": kind, "scope": {"entity": entity}, **options}
        made = self.pair.primary.admin("POST", where, wanted)
        try:
            yield
        finally:
            self.pair.primary.admin("DELETE", f"{where}/{made['id']}")

    def driver(self, broker: BrokerProcess) -> Driver:
        driver = self._make_driver(broker.connection_string)
        self._drivers.append(driver)
        return driver

    def options(self, **more: object) -> MoverOptions:
        given = {"backoff": Backoff(first_s=0.2, last_s=1.0), "poll_s": 2.0, **more}
        return MoverOptions(rules=DeliveryRules(primary_name=self.name), **given)  # type: ignore[arg-type]

    async def fill(
        self, destination: str, ids: Iterable[str], body: bytes = b"hello", *, owner: str = ""
    ) -> None:
        """Messages for ``destination``, spread over the backlog queues in order."""
        driver = AmqpDriver.from_connection_string(self.pair.secondary.connection_string)
        parcels = [OutgoingMessage(alias(plain(each, body), destination, owner)) for each in ids]
        share = -(-len(parcels) // len(self.queues))
        for index, queue in enumerate(self.queues):
            sender = driver.sender(queue)
            mine = parcels[index * share : (index + 1) * share]
            for start in range(0, len(mine), 250):
                await sender.send(mine[start : start + 250], timeout_s=TIMEOUT_S)
        await driver.close()

    async def arrived(self, destination: str) -> Counter[str]:
        """How often each message is in a destination now; empties it."""
        driver = AmqpDriver.from_connection_string(self.pair.primary.connection_string)
        receiver = driver.receiver(destination, mode=ReceiveMode.RECEIVE_AND_DELETE)
        found: Counter[str] = Counter()
        while self.home(destination):
            messages = await receiver.receive(1_000, wait_s=1)
            found.update(id_of(each.encoded) for each in messages)
        await driver.close()
        return found

    def left(self) -> int:
        """Messages that are still in the backlog, set aside or not; dead letters not counted."""
        found = [self.pair.secondary.queue(each) for each in self.queues]
        return sum(each["active_message_count"] + each["deferred_message_count"] for each in found)

    def locked(self) -> int:
        """Messages that a mover holds, or held when it was killed."""
        found = [self.pair.secondary.queue(each) for each in self.queues]
        return sum(each["locked_message_count"] for each in found)

    def home(self, destination: str) -> int:
        count: int = self.pair.primary.queue(destination)["active_message_count"]
        return count

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()


def announced(receipts: Sequence[Receipt]) -> set[str]:
    """Ids of messages of which a second copy was announced."""
    return {str(each.message_id) for each in receipts if each.outcome.may_repeat}


async def until(happened: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not happened():
            await asyncio.sleep(0.05)

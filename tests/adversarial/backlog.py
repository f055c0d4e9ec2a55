"""A backlog that somebody else can write to, and what a syphon makes of it.

The stranger has the least that a sender needs: Send on a backlog queue of the secondary. What it
must never get is the syphon's right to send to the primary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.broker_process import BrokerProcess
from tests.support.mover.brokers import Pair, Scene
from tests.support.mover.messages import backlog, id_of
from tests.support.wire_client import connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.planning.work_order import WorkOrder
from twinbus.mover.work_order_runner import run_work_order

SEND_ONLY = ("stranger", "s" * 44)


class Buried(NamedTuple):
    """A message in the dead-letter queue of its backlog queue."""

    reason: str
    description: str
    properties: Mapping[Any, Any]
    """Its other application properties."""


def forged(name: str, **properties: Any) -> bytes:
    """A backlog message as nobody's library would write it: ``x_ms_path`` stands for x-ms-path."""
    return with_properties(name, {key.replace("_", "-"): each for key, each in properties.items()})


def with_properties(name: str, properties: Mapping[Any, Any], body: bytes = b"forged") -> bytes:
    return Message(
        properties=Properties(message_id=name),
        application_properties=dict(properties) or None,
        body=body,
    ).encode()


class Backlog(Scene):
    """One test's backlog queues, with a stranger who may send to them."""

    def __init__(self, pair: Pair, *, queue_count: int = 1) -> None:
        name, key = SEND_ONLY
        rule = {"name": name, "claims": ["Send"], "primary_key": key, "secondary_key": key * 2}
        super().__init__(pair, queue_count=queue_count, authorization_rules=[rule])
        self.receipts: list[Receipt] = []
        self._before = sends_of(pair.primary)

    def forge(self, *messages: bytes) -> None:
        """What the stranger writes into the first backlog queue."""
        secondary, queue = self.pair.secondary, self.queues[0]
        with connected(secondary.port, secondary.token(path=queue, rule=SEND_ONLY)) as client:
            sender = client.attach_sender(queue)
            for message in messages:
                state = client.send(sender, message)
                assert state == Accepted(), state

    def surround(self, destination: str, *messages: bytes) -> list[str]:
        """The same, between good messages for ``destination``: the names of those."""
        good = [f"good-{number}" for number in range(len(messages) + 1)]
        around = [backlog(each, destination) for each in good]
        mixed = [part for pair in zip(around, messages, strict=False) for part in pair]
        self.forge(*mixed, around[-1])
        return good

    def rules(self, **rules: Any) -> DeliveryRules:
        return DeliveryRules(primary_name=self.name, **rules)

    async def syphon(
        self, engine: str = "mover", rules: DeliveryRules | None = None, **options: Any
    ) -> None:
        """Bring home what there is, by the mover or by a task of the Spark query."""
        chosen = self.options(**options)
        if rules is not None:
            chosen = MoverOptions(rules=rules, backoff=chosen.backoff, poll_s=chosen.poll_s)
        secondary, primary = self.driver(self.pair.secondary), self.driver(self.pair.primary)
        take = self.receipts.extend
        if engine == "mover":
            mover = Mover(secondary, primary, self.queues, chosen, on_receipts=take)
            assert (await mover.run(once=True)).faults == {}
        else:
            order = WorkOrder(queues=tuple(self.queues))
            report = await run_work_order(secondary, primary, order, chosen, on_receipts=take)
            assert report.faults == {}

    def outcomes(self) -> Counter[ReceiptOutcome]:
        return Counter(each.outcome for each in self.receipts)

    def sent_home(self) -> dict[str, int]:
        """What the primary was sent since the test began, by entity: its own count."""
        return dict(sends_of(self.pair.primary) - self._before)

    async def buried(self, count: int) -> dict[str, Buried]:
        """The dead letters of the first backlog queue, by message id."""
        found: dict[str, Buried] = {}
        receiver = self.driver(self.pair.secondary).receiver(f"{self.queues[0]}/$DeadLetterQueue")
        for delivered in await receiver.receive(count, wait_s=5):
            told = dict(Message.decode(delivered.encoded).application_properties or {})
            reason = str(told.pop("DeadLetterReason"))
            description = str(told.pop("DeadLetterErrorDescription"))
            found[id_of(delivered.encoded)] = Buried(reason, description, told)
        await receiver.close()
        return found

    def dead_letters(self) -> int:
        found = [self.pair.secondary.queue(each) for each in self.queues]
        return sum(each["dead_letter_message_count"] for each in found)


def sends_of(broker: BrokerProcess) -> Counter[str]:
    """Messages that were sent to each entity, pings too, by the broker's meter."""
    told = broker.admin("GET", f"/namespaces/{broker.namespace}/operations")
    sent: Counter[str] = Counter()
    for each in told["totals"]:
        if each["operation"] in ("send", "ping"):
            sent[each["entity"]] += each["messages"]
    return sent

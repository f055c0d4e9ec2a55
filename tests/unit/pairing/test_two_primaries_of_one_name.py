"""Two primaries of one name share backlog queues, and none gets messages of the other (P21)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.mover.fake_namespace import FakeNamespace
from tests.support.mover.messages import backlog, plain
from tests.support.pairing.pairs import Paired, eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Header
from twinbus.encoding import pair_mark as pair_marks
from twinbus.encoding.envelope import alias
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.encoding.transit import ReceivedMessage
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules, plan_chunk
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.pairing.backlog_queues import owner_mark
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import BackgroundBroker, NamespaceFixture, NamespacePairFixture

DRIVERS: list[DriverName] = ["amqp", "servicebus"]
QUEUE = "east/x-servicebus-transfer/0"
OWN, OTHER = "0123456789ab own.example", "ba9876543210 other.example"


# -- over brokers -------------------------------------------------------------------------------


@pytest.fixture
def twin(servicebus_broker: BackgroundBroker) -> Iterator[NamespaceFixture]:
    """Another primary, on the same machine; a test gives both one name."""
    bus = servicebus_broker.open_bus()
    yield bus
    bus.close()


async def paired(
    bus: NamespaceFixture, away: NamespaceFixture, driver: DriverName = "amqp", **chosen: object
) -> Paired:
    home = MessagingFactory.from_connection_string(bus.connection_string, driver=driver)
    far = MessagingFactory.from_connection_string(away.connection_string, driver=driver)
    manager = NamespaceManager.from_connection_string(away.connection_string)
    options = SendAvailabilityPairedNamespaceOptions(
        manager,
        far,
        1,
        0,
        syphon=SyphonHosting("local"),
        namespace_name="contoso",
        **chosen,  # type: ignore[arg-type]
    )
    pair = Paired(home, far, options)
    await home.pair_namespace(options)
    return pair


async def divert(pair: Paired, *texts: bytes) -> None:
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    for text in texts:
        await sender.send(BrokeredMessage(text))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_syphon_leaves_the_messages_of_the_other_primary_alone(
    servicebus_pair: NamespacePairFixture, twin: NamespaceFixture, driver: DriverName
) -> None:
    """P21, Y1: they stand in nobody's way, and come home to their own primary."""
    orders = [bus.queue("orders") for bus in (servicebus_pair.primary, twin)]
    away = servicebus_pair.secondary
    first = await paired(servicebus_pair.primary, away, driver)
    second = await paired(twin, away, driver, enable_syphon=True)
    try:
        await divert(first, b"a1", b"a2")
        await divert(second, b"b1")
        await divert(first, b"a3")
        await eventually(lambda: orders[1].active_message_count == 1, "the second's own")
        await second.until_told("foreign-messages")
        await eventually(lambda: away.machine(CONTOSO).deferred_count == 3, "deferred")
        assert orders[1].active_message_count == 1 and orders[0].active_message_count == 0
        told = [each.to_dict() for each in second.told if each.name == "foreign-messages"]
        assert len(told) == 1, "once for each other primary"
        assert told[0]["owner"] == owner_mark(first.primary.address, "contoso")
    finally:
        await second.primary.close()
        await first.primary.close()
        await first.secondary.close()
    third = await paired(servicebus_pair.primary, away, driver, enable_syphon=True)
    try:
        await eventually(lambda: orders[0].active_message_count == 3, "the first's own")
    finally:
        await third.primary.close()
    assert orders[1].active_message_count == 1


CONTOSO = "contoso/x-servicebus-transfer/0"


async def test_a_primary_that_changed_its_address_accepts_its_old_one(
    servicebus_pair: NamespacePairFixture, twin: NamespaceFixture
) -> None:
    """P21: its own messages are not foreign for ever."""
    servicebus_pair.primary.queue("orders")
    orders = twin.queue("orders")
    away = servicebus_pair.secondary
    first = await paired(servicebus_pair.primary, away)
    await divert(first, b"a1")
    old = pair_marks.address_in(owner_mark(first.primary.address, "contoso"))
    await first.primary.close()
    await first.secondary.close()
    second = await paired(twin, away, enable_syphon=True, accept_owners=(old,))
    await eventually(lambda: orders.active_message_count == 1, "its old message")
    await second.primary.close()
    assert "foreign-messages" not in second.names


async def test_a_queue_that_another_primary_made_is_told_when_a_pair_is_made(
    servicebus_pair: NamespacePairFixture, twin: NamespaceFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """P21: and it is used, because each message has its own mark."""
    away = servicebus_pair.secondary
    first = await paired(servicebus_pair.primary, away)
    assert "owner is" not in caplog.text
    second = await paired(twin, away)
    assert "owner is" in caplog.text and second.options.backlog_queue_count == 1
    for pair in (first, second):
        await pair.primary.close()
        await pair.secondary.close()


# -- a mover over namespaces in memory ----------------------------------------------------------


def rules(**more: object) -> DeliveryRules:
    return DeliveryRules(primary_name="east", owner=OWN, **more)  # type: ignore[arg-type]


def theirs(name: str, path: str = "orders") -> bytes:
    return alias(plain(name), path, OTHER)


def ours(name: str) -> bytes:
    return alias(plain(name), "orders", OWN)


async def moved(far: FakeNamespace, home: FakeNamespace, **more: object) -> list[Receipt]:
    receipts: list[Receipt] = []
    options = MoverOptions(rules=rules(**more))
    await Mover(far, home, [QUEUE], options, on_receipts=receipts.extend).run(once=True)
    return receipts


async def test_foreign_messages_do_not_stand_before_others() -> None:
    """P21, Y4: a thousand of them, and one of ours behind; old messages without a mark go home."""
    far, home = FakeNamespace(QUEUE), FakeNamespace("orders")
    far.put(QUEUE, *(theirs(f"t{number}") for number in range(1_000)))
    far.put(QUEUE, ours("mine"), backlog("old"))
    receipts = await moved(far, home)
    assert sorted(home.queues["orders"].ids()) == ["mine", "old"]
    foreign = [each for each in receipts if each.outcome is ReceiptOutcome.FOREIGN]
    assert len(foreign) == 1_000 and {each.reason for each in foreign} == {OTHER}
    assert {each.message_id for each in foreign} == {f"t{number}" for number in range(1_000)}


async def test_foreign_messages_are_received_once_and_never_dead_lettered() -> None:
    """P21: not by their count, not for a destination or a time that is wrong here."""
    far, home = FakeNamespace(QUEUE), FakeNamespace("orders")
    far.put(QUEUE, theirs("t1"), theirs("t2", "$management"), theirs("t3", "not-allowed"))
    for _ in range(5):
        await moved(far, home, allowed=("orders",))
    queue = far.queues[QUEUE]
    assert queue.dead == [] and len(queue.messages) == 3
    assert all(each.is_deferred and each.delivery_count == 1 for each in queue.messages.values())
    # Their own syphon finds them by looking, as everything that was set aside.
    own = MoverOptions(rules=DeliveryRules(primary_name="east", owner=OTHER))
    await Mover(far, home, [QUEUE], own).run(once=True)
    assert home.queues["orders"].ids() == ["t1"]


async def test_every_owner_can_be_accepted() -> None:
    """P21: --accept-owner '*' moves them as before there were marks."""
    far, home = FakeNamespace(QUEUE), FakeNamespace("orders")
    far.put(QUEUE, theirs("t1"), ours("mine"))
    await moved(far, home, accepted_owners=("*",))
    assert sorted(home.queues["orders"].ids()) == ["mine", "t1"]


async def test_a_dry_run_shows_foreign_messages() -> None:
    """P21: and touches nothing."""
    far, home = FakeNamespace(QUEUE), FakeNamespace("orders")
    far.put(QUEUE, theirs("t1"), ours("mine"))
    report = await Mover(far, home, [QUEUE], MoverOptions(rules=rules())).dry_run()
    assert (
        report.receipt_counts.counts[ReceiptOutcome.FOREIGN],
        report.receipt_counts.counts[ReceiptOutcome.WOULD_MOVE],
    ) == (1, 1)
    assert not any(each.is_deferred for each in far.queues[QUEUE].messages.values())


async def test_what_the_other_syphon_set_aside_is_found_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P21: in a queue with messages of both; nobody waits for the hourly look."""
    monkeypatch.setattr(pair_marks, "SHARED_SCAN_S", 0.05)
    far, home = FakeNamespace(QUEUE), FakeNamespace("orders")
    far.patience_s = 0.02
    far.put(QUEUE, theirs("t1"))
    mover = Mover(far, home, [QUEUE], MoverOptions(rules=rules()))
    running = asyncio.create_task(mover.run())
    await eventually(lambda: far.queues[QUEUE].messages[1].is_deferred, "the foreign one")
    far.put(QUEUE, ours("mine"))
    far.queues[QUEUE].messages[2].is_deferred = True  # By the syphon of the other pair.
    await eventually(lambda: home.queues["orders"].ids() == ["mine"], "ours")
    mover.stop()
    await running


def test_what_is_wrong_with_a_foreign_message_is_for_its_own_pair_to_say() -> None:
    """P21, Y8: it has expired, and is nobody's here."""
    sent = Message(header=Header(ttl_ms=10), body=b"x").encode()
    found = [
        ReceivedMessage(
            path=QUEUE, encoded=alias(sent, "orders", owner), sequence_number=1, enqueued_at_ms=0
        )
        for owner in (OTHER, OWN)
    ]
    plan = plan_chunk(found, rules(ttl_policy=TtlPolicy.DEAD_LETTER), now_ms=1_000)
    assert [each.owner for each in plan.foreign] == [OTHER]
    assert [each.reason for each in plan.poison] == ["expired"]

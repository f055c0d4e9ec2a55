"""The async drop-in, over a broker whose primary namespace goes away."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tests.integration.azure.conftest import MakePairing
from tests.support.books import by_broker, by_client, in_numbers, records_in
from twinbus.azure.aio import PairedServiceBusClient
from twinbus.errors import CancelImpossible, ConfigurationError, OperationTimeout, ReservedProperty
from twinbus.pairing.client.factory import MessagingFactory
from twinbus.pairing.options import PairedNamespaceOptions
from twinbus.testing import NamespaceFixture, NamespacePairFixture

BACKLOG = [f"home/x-servicebus-transfer/{index}" for index in range(2)]


def waiting(pair: NamespacePairFixture) -> int:
    """Messages in all backlog queues."""
    return sum(pair.secondary.machine(path).active_count for path in BACKLOG)


async def received(bus: NamespaceFixture, queue: str, count: int) -> list[str]:
    """The bodies of so many messages, through the stock client."""
    async with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found: list[str] = []
        while len(found) < count:
            messages = await receiver.receive_messages(count, max_wait_time=10)
            assert messages, f"only {found}"
            for message in messages:
                found.append(str(message))
                await receiver.complete_message(message)
        return sorted(found)


def paired(
    pair: NamespacePairFixture, pairing: MakePairing, **chosen: object
) -> PairedServiceBusClient:
    client = PairedServiceBusClient.from_connection_string(
        pair.primary.connection_string, pairing=pairing(**chosen), retry_total=0
    )
    assert isinstance(client, PairedServiceBusClient)
    return client


async def test_everything_that_the_sdk_sends_is_sent(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: messages, lists, batches, mappings and raw messages go to a healthy primary."""
    orders = servicebus_pair.primary.queue("orders")
    async with (
        paired(servicebus_pair, pairing) as client,
        client.get_queue_sender(orders) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("single"))
        await sender.send_messages([ServiceBusMessage("list 1"), ServiceBusMessage("list 2")])
        await sender.send_messages({"body": "mapping"})
        await sender.send_messages(AmqpAnnotatedMessage(data_body=b"raw"))
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batch 1"))
        batch.add_message(ServiceBusMessage("batch 2"))
        await sender.send_messages(batch)
        await sender.send_messages([])
    wanted = ["batch 1", "batch 2", "list 1", "list 2", "mapping", "raw", "single"]
    assert await received(servicebus_pair.primary, orders, len(wanted)) == wanted


async def test_sends_go_on_while_the_primary_is_away_and_come_home_with_it(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P8, P10, P11: no send fails, the messages wait in the backlog, and a ping restores."""
    orders = servicebus_pair.primary.queue("orders")
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        with servicebus_pair.primary.outage("refused"):
            await sender.send_messages(ServiceBusMessage("single"))
            await sender.send_messages([ServiceBusMessage("list 1"), ServiceBusMessage("list 2")])
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("batch"))
            await sender.send_messages(batch)
            assert client.messaging_factory.health(orders).is_diverted
        assert waiting(servicebus_pair) == 4
        async with asyncio.timeout(20):
            while client.messaging_factory.health(orders).is_diverted:
                await asyncio.sleep(0.05)
        await sender.send_messages(ServiceBusMessage("home again"))
    assert await received(servicebus_pair.primary, orders, 1) == ["home again"]


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_list_that_is_no_batch_is_refused_in_every_state(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, is_diverted: bool
) -> None:
    """P13: as the SDK refuses it."""
    orders = servicebus_pair.primary.queue("orders")
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        await sender.send_messages(ServiceBusMessage("before"))
        if is_diverted:
            client.messaging_factory.force_failover(orders)
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages([ServiceBusMessage(bytes(6_500)) for _ in range(50)])
        await sender.send_messages([ServiceBusMessage(bytes(6_500)) for _ in range(35)])
    assert waiting(servicebus_pair) == (35 if is_diverted else 0)


async def test_a_process_that_starts_during_the_outage_can_send(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P17: pairing, a sender's ``async with``, a batch and a send, with the primary away."""
    orders = servicebus_pair.primary.queue("orders")
    with servicebus_pair.primary.outage("refused"):
        async with (
            paired(servicebus_pair, pairing) as client,
            client.get_queue_sender(orders) as sender,
        ):
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("early"))
            await sender.send_messages(batch)
    assert waiting(servicebus_pair) == 1


@pytest.mark.parametrize("driver", ["servicebus", "amqp"])
@pytest.mark.parametrize("how", ["refused", "black-hole"])
async def test_a_client_that_works_keeps_working_without_its_secondary(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, how: str, driver: str
) -> None:
    """P19: the first send goes to the primary soon, and the pair completes itself."""
    orders = servicebus_pair.primary.queue("orders")
    client = paired(servicebus_pair, pairing, secondary_driver=driver)
    sender = client.get_queue_sender(orders)
    with servicebus_pair.secondary.outage(how):
        began_s = time.monotonic()
        await sender.send_messages(ServiceBusMessage("one"))
        assert time.monotonic() - began_s < 5
        assert client.messaging_factory.health(orders).backlog_error
        # When the primary fails, too, the error is the SDK's own, with a note on the backlog.
        with servicebus_pair.primary.outage("refused"):
            with pytest.raises(ServiceBusConnectionError) as raised:
                await sender.send_messages(ServiceBusMessage("lost"))
            assert any("no backlog yet" in note for note in raised.value.__notes__)
    async with asyncio.timeout(20):
        while client.messaging_factory.health(orders).backlog_error:
            await asyncio.sleep(0.05)
    with servicebus_pair.primary.outage("refused"):
        await sender.send_messages(ServiceBusMessage("two"))
    assert waiting(servicebus_pair) == 1
    await client.close()
    assert await received(servicebus_pair.primary, orders, 1) == ["one"]


async def test_a_wrong_key_of_the_secondary_is_raised_by_the_drop_in(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P19: unlike a secondary that does not answer."""
    text = servicebus_pair.secondary.connection_string
    parts = dict(part.split("=", 1) for part in text.split(";") if part)
    wrong = text.replace(parts["SharedAccessKey"], "d3Jvbmcta2V5")
    client = paired(servicebus_pair, pairing, secondary=wrong)
    with pytest.raises(ServiceBusAuthenticationError):
        await client.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))
    await client.close()


async def test_many_tasks_may_share_a_sender(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    orders = servicebus_pair.primary.queue("orders")
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage(f"{number:02}")) for number in range(40))
        )
    assert await received(servicebus_pair.primary, orders, 40) == [f"{n:02}" for n in range(40)]


async def test_errors_are_the_sdks_own(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: an application's except clauses go on working."""
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender("nowhere")
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.send_messages(ServiceBusMessage("lost?"))
        with pytest.raises(TypeError, match="Only AmqpAnnotatedMessage"):
            await sender.send_messages("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="greater than 0"):
            await sender.send_messages(ServiceBusMessage("x"), timeout=0)
        with pytest.warns(UserWarning, match="Unsupported keyword args"):
            await sender.send_messages([], nonsense=1)
        await sender.close()
        with pytest.raises(ValueError, match="already been shutdown"):
            await sender.send_messages(ServiceBusMessage("x"))


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and its causes, as a log would follow them."""
    found: list[BaseException] = []
    while error is not None:
        assert not any(error is each for each in found), "a circle"
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


async def test_causes_of_an_error_have_an_end(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: also where the SDK's own error is raised again."""
    reserved = ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender("nowhere")
        for message in (ServiceBusMessage("lost?"), reserved):
            with pytest.raises((MessagingEntityNotFoundError, ReservedProperty)) as caught:
                await sender.send_messages(message)
            assert chain(caught.value)


async def test_a_call_waits_for_the_pairing_no_longer_than_it_has_time(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: and does not stop it by going away."""
    orders = servicebus_pair.primary.queue("orders")
    may_go_on = asyncio.Event()
    begun: list[int] = []
    sound = MessagingFactory.pair_namespace

    async def slow(factory: MessagingFactory, options: PairedNamespaceOptions) -> None:
        begun.append(1)
        await may_go_on.wait()
        await sound(factory, options)

    monkeypatch.setattr(MessagingFactory, "pair_namespace", slow)
    client = paired(servicebus_pair, pairing)
    sender = client.get_queue_sender(orders)
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(ServiceBusMessage("too soon"), timeout=0.1)
    second = asyncio.create_task(sender.send_messages(ServiceBusMessage("one")))
    await asyncio.sleep(0.01)
    may_go_on.set()
    await second
    assert len(begun) == 1 and client.messaging_factory.is_paired
    await client.close()
    assert await received(servicebus_pair.primary, orders, 1) == ["one"]


async def test_a_pairing_that_had_no_answer_says_so_itself(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P18: its OperationTimeout is not the end of the call's own time."""

    async def silent(_factory: MessagingFactory, _options: PairedNamespaceOptions) -> None:
        raise OperationTimeout("the secondary gave no answer")

    monkeypatch.setattr(MessagingFactory, "pair_namespace", silent)
    client = paired(servicebus_pair, pairing)
    sender = client.get_queue_sender("orders")
    with pytest.raises(OperationTimeoutError, match="secondary gave no answer"):
        await sender.send_messages(ServiceBusMessage("one"))
    await client.close()


async def test_what_no_backlog_queue_would_take_is_refused_in_every_state(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P12, P13: reserved names and sizes, healthy or not."""
    orders = servicebus_pair.primary.queue("orders")
    reserved = ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
    large = ServiceBusMessage(b"x" * (262_144 - 75))
    valued = AmqpAnnotatedMessage(value_body="x" * (262_144 - 20))
    assert valued.body_type is AmqpMessageBodyType.VALUE
    subject = "x" * 20_000  # The service has no limit for it but that of all properties.
    headed = ServiceBusMessage(b"x" * (262_144 - 20_000 - 75), subject=subject)
    decked = ServiceBusMessage(b"", application_properties={"deck": "x" * (65_536 - 75)})
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)

        async def check() -> None:
            with pytest.raises(ReservedProperty, match="x-ms-path"):
                await sender.send_messages(reserved)
            for message in (large, valued, headed):
                with pytest.raises(MessageSizeExceededError, match="262144"):
                    await sender.send_messages(message)
            with pytest.raises(MessageSizeExceededError, match="65536"):
                await sender.send_messages(decked)

        await check()
        with servicebus_pair.primary.outage("refused"):
            await sender.send_messages(ServiceBusMessage("small"))
            await check()


async def test_scheduling_and_cancelling_in_both_states(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P12: a schedule travels with its message; what went to the backlog cannot be cancelled."""
    orders = servicebus_pair.primary.queue("orders")
    at = datetime.now(UTC) + timedelta(hours=1)
    message = ServiceBusMessage("later")
    async with paired(servicebus_pair, pairing, ping_primary_interval=60) as client:
        sender = client.get_queue_sender(orders)
        numbers = await sender.schedule_messages([message, ServiceBusMessage("too")], at)
        assert message.scheduled_enqueue_time_utc is None
        assert orders.scheduled_message_count == 2
        await sender.cancel_scheduled_messages(numbers)
        assert orders.scheduled_message_count == 0

        with servicebus_pair.primary.outage("refused"):
            diverted = await sender.schedule_messages(message, at)
            with pytest.raises(ServiceBusError) as caught:
                await sender.cancel_scheduled_messages(numbers)
            assert isinstance(caught.value.__cause__, CancelImpossible)
        assert all(number < 0 for number in diverted)
        with pytest.raises(ServiceBusError) as caught:
            await sender.cancel_scheduled_messages(diverted)
        assert isinstance(caught.value.__cause__, CancelImpossible)
        assert waiting(servicebus_pair) == 1


async def test_one_changed_line_is_enough_when_the_environment_knows_the_secondary(
    servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = servicebus_pair.primary.queue("orders")
    text = servicebus_pair.secondary.connection_string
    monkeypatch.setenv("SERVICEBUS_SECONDARY_CONNECTION_STRING", text)
    async with PairedServiceBusClient.from_connection_string(
        servicebus_pair.primary.connection_string
    ) as client:
        async with client.get_queue_sender(orders) as sender:
            await sender.send_messages(ServiceBusMessage("hello"))
        async with client.get_queue_receiver(orders) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=10)
            assert str(message) == "hello"
            await receiver.complete_message(message)


def test_a_client_without_a_secondary_says_what_is_missing(
    servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECTION_STRING", "CONNECTION_STR", "FULLY_QUALIFIED_NAMESPACE"):
        monkeypatch.delenv(f"SERVICEBUS_SECONDARY_{name}", raising=False)
        monkeypatch.delenv(f"SERVICEBUS_{name}_SECONDARY", raising=False)
    with pytest.raises(ConfigurationError, match="SERVICEBUS_SECONDARY_CONNECTION_STRING"):
        PairedServiceBusClient.from_connection_string(servicebus_pair.primary.connection_string)


async def test_bodies_and_properties_survive_the_detour_unchanged(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P12: the caller's object is as it was, and the copy carries its destination."""
    orders = servicebus_pair.primary.queue("orders")
    message = ServiceBusMessage(
        "text", session_id=None, time_to_live=timedelta(minutes=5), subject="s",
        application_properties={"n": 1, "t": "x", "b": 2.5},
    )  # fmt: skip
    before = str(message.raw_amqp_message), dict(message.application_properties or {})
    async with paired(servicebus_pair, pairing) as client:
        sender = client.get_queue_sender(orders)
        with servicebus_pair.primary.outage("refused"):
            await sender.send_messages(message)
    assert (str(message.raw_amqp_message), dict(message.application_properties or {})) == before
    async with ServiceBusClient.from_connection_string(
        servicebus_pair.secondary.connection_string
    ) as stock:
        (found,) = [
            each
            for path in BACKLOG
            for each in await stock.get_queue_receiver(path).peek_messages(1)
        ]
        assert found.application_properties is not None
        assert found.application_properties[b"x-ms-path"] == b"orders"
        assert found.application_properties[b"x-ms-timetolive"] == 300_000


async def test_the_sends_of_a_paired_client_are_in_its_books(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing, tmp_path: Path
) -> None:
    """C1: single messages, lists, batches and schedules, on both namespaces; each audited once."""
    servicebus_pair.primary.queue("orders")
    soon = datetime.now(UTC) + timedelta(hours=1)
    name = servicebus_pair.primary.name
    async with paired(
        servicebus_pair, pairing, metering=tmp_path, audit=True, namespace_name=name
    ) as client:
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("a", message_id="a"))
        await sender.send_messages([ServiceBusMessage(each, message_id=each) for each in "bc"])
        batch = await sender.create_message_batch()
        for each in ("d", "e" * 70_000):
            batch.add_message(ServiceBusMessage(each, message_id=each[:1]))
        await sender.send_messages(batch)
        await sender.schedule_messages(ServiceBusMessage("f", message_id="f"), soon)
        with servicebus_pair.outage("refused"):
            await sender.send_messages(ServiceBusMessage("g", message_id="g"))

    for bus in (servicebus_pair.primary, servicebus_pair.secondary):
        told = in_numbers(by_broker(bus), "send", "ping")
        assert in_numbers(by_client(tmp_path / bus.name), "send", "ping") == told
    assert in_numbers(by_client(tmp_path))["orders", "send"] == (6, 7)
    audit = records_in(tmp_path / name, "audit")
    assert sorted(line["message_id"] for line in audit) == list("abcdefg")
    assert [line["message_id"] for line in audit if line["via"]] == ["g"]
    assert {(line["namespace"], line["entity"]) for line in audit} == {(name, "orders")}

"""Sends through a pair, over namespaces in memory that fail as a test says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from tests.support.pairing.fake_namespace import HANG, SLOW, STUBBORN, STUBBORN_LOSS, FakeNamespace
from tests.support.pairing.pairs import FakePair, OpenFakePair, eventually
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.amqp.message.message import Message
from twinbus.drivers.interface import LinkProperties
from twinbus.encoding.envelope import overhead_bytes_max
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    BacklogExhausted,
    BatchPartlySent,
    CancelImpossible,
    CommunicationError,
    ConfigurationError,
    EntityDisabled,
    EntityNotFound,
    FactoryFaulted,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ReservedProperty,
    ServerBusy,
    TooLargeForBacklog,
)
from twinbus.failover.backlog_rotation import RotationPolicy
from twinbus.failover.events import Diverted, PossibleDuplicate
from twinbus.failover.state_machine import Health


def gone(path: str = "orders") -> CommunicationError:
    return CommunicationError(f"nobody answers for {path!r}", path=path, was_sent=False)


def property_of(encoded: bytes, name: str) -> object:
    return (Message.decode(encoded).application_properties or {}).get(name)


# --- while all is well -------------------------------------------------------------------------


async def test_a_healthy_send_goes_home_and_nowhere_else(fake_pair: FakePair) -> None:
    """P0: no copy, no extra attempt, the very bytes of the message."""
    message = BrokeredMessage(b"one", session_id="berlin", properties={"colour": "red"})
    sender = fake_pair.primary.create_message_sender("orders")
    await sender.send(message)
    assert fake_pair.home.attempts == ["orders"]
    assert fake_pair.backlog() == [] and fake_pair.told == []
    [encoded] = fake_pair.home.messages("orders")
    assert property_of(encoded, "x-ms-path") is None


@pytest.mark.parametrize(
    "error",
    [
        EntityNotFound("no such queue"),
        EntityDisabled("it is disabled"),
        QuotaExceeded("it is full"),
        AuthenticationFailed("the key is wrong"),
    ],
)
async def test_an_error_of_the_caller_is_raised_and_diverts_nothing(
    open_fake_pair: OpenFakePair, error: Exception
) -> None:
    """P7: what is no outage is the caller's, at the first attempt."""
    home = FakeNamespace("contoso")
    home.answer("*", error)
    pair = await open_fake_pair(home=home, retry_total=3)
    with pytest.raises(type(error)):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b""))
    assert pair.home.attempts == ["orders"]
    assert pair.primary.health("orders").state is Health.HEALTHY
    assert pair.backlog() == []


async def test_throttling_never_diverts(fake_pair: FakePair) -> None:
    """F2: with no time to wait for quiet, ServerBusy is raised."""
    fake_pair.home.answer("orders", ServerBusy("slow down"))
    with pytest.raises(ServerBusy):
        await fake_pair.primary.create_message_sender("orders").send(
            BrokeredMessage(b""), timeout=2
        )
    assert fake_pair.primary.health("orders").state is Health.HEALTHY


async def test_a_short_trouble_is_bridged_by_retries(open_fake_pair: OpenFakePair) -> None:
    """F6: the retries are ours, paired or not, and a success is a success."""
    pair = await open_fake_pair(failover_interval=60, retry_total=3)
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer_once("orders", gone(), gone())
    await sender.send(BrokeredMessage(b"one"))
    assert pair.home.attempts == ["orders"] * 3
    assert pair.told == []


async def test_an_unpaired_factory_retries_and_raises() -> None:
    """F6: without a pair there are retries and no detour."""
    home = FakeNamespace()
    async with MessagingFactory.from_driver(home, retry_total=2, retry_backoff_factor=0) as factory:
        home.answer("orders", gone())
        with pytest.raises(CommunicationError) as caught:
            await factory.create_message_sender("orders").send(BrokeredMessage(b""))
        assert home.attempts == ["orders"] * 3
        assert caught.value.is_transient is False


# --- the outage --------------------------------------------------------------------------------


async def test_the_send_that_finds_the_outage_is_rerouted(fake_pair: FakePair) -> None:
    """P10: at interval 0 its caller sees a success, and the message waits in the backlog."""
    fake_pair.home.answer("orders", gone())
    outcome = await fake_pair.primary.create_paired_sender("orders").send_outgoing(
        [OutgoingMessage(Message(body=b"one").encode())]
    )
    assert outcome.where in fake_pair.queues
    [encoded] = fake_pair.backlog()
    assert property_of(encoded, "x-ms-path") == "orders"
    assert fake_pair.names[:2] == ["suspected", "diverted"]
    health = fake_pair.primary.health("Orders")
    assert health.is_diverted and health.epoch == 1 and health.messages_diverted == 1
    assert "answers for 'orders'" in health.reason and "answers" in health.last_error


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (EntityNotFound("no such queue"), "not found"),
        (AccessRefused("no Send claim"), "unauthorized"),
        (AuthenticationFailed("the key is wrong"), "unauthorized"),
        (EntityDisabled("it is disabled"), None),
        (ServerBusy("slow down"), None),
    ],
)
async def test_a_refused_ping_is_an_event_once_and_shows_in_health(
    open_fake_pair: OpenFakePair, error: Exception, refusal: str | None
) -> None:
    """P23: not found and unauthorized; what waiting may cure is a failed ping and no more."""
    pair = await open_fake_pair(ping_primary_interval=1)
    pair.home.answer("orders", gone())
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    pair.home.answer("orders", error)
    await eventually(lambda: str(error) in pair.primary.health("orders").last_ping_error)
    await eventually(lambda: pair.names.count("ping-failed") >= 3)
    told = [each.to_dict()["refusal"] for each in pair.told if each.name == "ping-refused"]
    assert told == ([] if refusal is None else [refusal])


async def test_a_healthy_send_opens_no_link_to_the_backlog(fake_pair: FakePair) -> None:
    """P0: what is opened ahead is opened in trouble only."""
    before = list(fake_pair.away.attached)
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await asyncio.sleep(0)
    assert fake_pair.away.attached == before


async def test_the_first_failure_opens_the_link_that_the_diverted_send_uses(
    open_fake_pair: OpenFakePair,
) -> None:
    """P25: the link to the backlog is open before the decision, not after it."""
    pair = await open_fake_pair(failover_interval=60)
    before = len(pair.away.attached)
    sender = pair.primary.create_paired_sender("orders")
    pair.home.answer("orders", gone())
    parcel = OutgoingMessage(Message(body=b"one").encode())
    with pytest.raises(CommunicationError):
        await sender.send_outgoing([parcel])
    await eventually(lambda: len(pair.away.attached) > before)
    [opened] = pair.away.attached[before:]
    pair.primary.force_failover("orders")
    assert (await sender.send_outgoing([parcel])).where == opened


async def test_a_link_that_cannot_be_opened_ahead_costs_the_caller_nothing(
    open_fake_pair: OpenFakePair,
) -> None:
    """P0: the error of the primary is raised as it is and at once."""
    pair = await open_fake_pair(failover_interval=60)
    pair.away.answer("*", HANG)
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", gone())
    async with asyncio.timeout(5):
        with pytest.raises(CommunicationError, match="answers"):
            await sender.send(BrokeredMessage(b"one"))
        await sender.close()


async def test_a_hanging_primary_leaves_time_for_the_backlog(fake_pair: FakePair) -> None:
    """P10: a quarter of the time is kept, so a timeout does not lose the message."""
    fake_pair.home.answer("orders", HANG)
    sender = fake_pair.primary.create_message_sender("orders")
    await sender.send(BrokeredMessage(b"one"), timeout=2)
    assert len(fake_pair.backlog()) == 1
    assert "possible-duplicate" in fake_pair.names


async def test_an_unclear_attempt_is_told_with_the_ids_of_its_messages(
    fake_pair: FakePair,
) -> None:
    """P16: whoever looks for duplicates knows which to look for."""
    fake_pair.home.answer("orders", CommunicationError("the line broke", was_sent=True))
    await fake_pair.primary.create_message_sender("orders").send_batch(
        [BrokeredMessage(b"", message_id="a"), BrokeredMessage(b"", message_id="b")]
    )
    [unclear] = [each.event for each in fake_pair.told if each.name == "possible-duplicate"]
    assert isinstance(unclear, PossibleDuplicate)
    assert (unclear.first, unclear.message_ids) == ("orders", ("a", "b"))


async def test_failures_count_for_the_interval_before_they_divert(
    open_fake_pair: OpenFakePair,
) -> None:
    """P6: suspect first, the error is the caller's; diverted when the interval has passed."""
    pair = await open_fake_pair(failover_interval=0.3)
    pair.home.answer("orders", gone())
    sender = pair.primary.create_message_sender("orders")
    with pytest.raises(CommunicationError):
        await sender.send(BrokeredMessage(b"one"))
    assert pair.primary.health("orders").state is Health.SUSPECT
    await pair.until_told("diverted")
    await sender.send(BrokeredMessage(b"two"))
    assert len(pair.backlog()) == 1


async def test_a_success_of_any_sender_clears_the_suspicion(open_fake_pair: OpenFakePair) -> None:
    """P6: the entity belongs to all senders of the factory."""
    pair = await open_fake_pair(failover_interval=60)
    pair.home.answer_once("orders", gone())
    with pytest.raises(CommunicationError):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await pair.primary.create_message_sender("ORDERS").send(BrokeredMessage(b"two"))
    assert pair.names == ["suspected", "suspicion-cleared"]


async def test_a_slow_success_clears_a_suspicion_that_came_after_it_began(
    open_fake_pair: OpenFakePair,
) -> None:
    """P6: it proves that the entity takes messages."""
    pair = await open_fake_pair(failover_interval=60)
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer_once("orders", SLOW, gone())
    slow = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(pair.home.attempts), "the slow one")
    with pytest.raises(CommunicationError):
        await sender.send(BrokeredMessage(b"two"))
    await slow
    assert pair.names == ["suspected", "suspicion-cleared"]


async def test_a_send_that_waits_when_its_entity_is_diverted_goes_to_the_backlog(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22: and the entity stays diverted. The message may be in both places, which is said."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer_once("orders", HANG)
    slow = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(pair.home.attempts), "the slow one")
    pair.primary.force_failover("orders")
    async with asyncio.timeout(1):
        await slow
    assert pair.primary.health("orders").is_diverted
    assert pair.home.messages("orders") == [] and len(pair.backlog()) == 1
    assert pair.names == ["diverted", "possible-duplicate"]


async def test_one_failure_wakes_all_sends_that_wait(open_fake_pair: OpenFakePair) -> None:
    """P22, P25: none of them waits for its own share of the deadline."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", HANG)
    waiting = [
        asyncio.create_task(sender.send(BrokeredMessage(b"%d" % number))) for number in range(50)
    ]
    await eventually(lambda: len(pair.home.attempts) == 50, "all of them")
    pair.home.answer("orders", gone())
    async with asyncio.timeout(1):
        await sender.send(BrokeredMessage(b"the one that finds out"))
        await asyncio.gather(*waiting)
    assert len(pair.backlog()) == 51


async def test_an_interrupted_send_that_its_caller_cancels_stays_cancelled(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22: our interruption takes nothing away from the caller's own."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", HANG)
    slow = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(pair.home.attempts), "the slow one")
    pair.primary.force_failover("orders")
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert pair.backlog() == []


@pytest.mark.parametrize("failures", [0, 1], ids=["first-attempt", "second-attempt"])
@pytest.mark.parametrize("answer", [STUBBORN, STUBBORN_LOSS])
async def test_an_interruption_that_the_driver_swallows_leaves_nothing_in_the_task(
    open_fake_pair: OpenFakePair, answer: str, failures: int
) -> None:
    """P22: a timeout of the caller around it is a TimeoutError later, not a cancellation."""
    pair = await open_fake_pair(retry_total=1)
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer_once("orders", *[gone()] * failures, answer)

    async def caller() -> None:
        async with asyncio.timeout(1):
            await sender.send(BrokeredMessage(b"one"))
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            await asyncio.sleep(60)

    # Given a send whose entity is diverted while it waits for the primary
    calling = asyncio.create_task(caller())
    await eventually(lambda: len(pair.home.attempts) == failures + 1, "the attempt")
    await asyncio.sleep(0)
    pair.primary.force_failover("orders")

    # When its caller's own time is over, then that is what the caller hears
    with pytest.raises(TimeoutError):
        await calling
    assert len(pair.home.messages("orders")) + len(pair.backlog()) == 1


async def test_a_task_that_was_cancelled_before_can_still_send_in_an_outage(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22: an application that cleans up after a cancellation has not left its send."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", HANG)

    async def caller() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await sender.send(BrokeredMessage(b"the last word"))

    calling = asyncio.create_task(caller())
    await asyncio.sleep(0)
    calling.cancel()
    await eventually(lambda: len(pair.home.attempts) == 1, "the attempt")
    pair.primary.force_failover("orders")
    await calling
    assert len(pair.backlog()) == 1


async def test_callers_with_short_timers_of_their_own_find_out_about_a_black_hole(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22: a second of silence counts, although the caller left before any error."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", HANG)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send(BrokeredMessage(b"one")), 1.0)
    await asyncio.wait_for(sender.send(BrokeredMessage(b"two")), 1.0)
    assert pair.names[:2] == ["suspected", "diverted"]
    assert len(pair.backlog()) == 1


async def test_a_caller_in_a_hurry_says_nothing_about_an_entity_that_answers(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22: something has succeeded since the cancelled send began."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer_once("orders", HANG)
    slow = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(pair.home.attempts), "the slow one")
    await sender.send(BrokeredMessage(b"two"))
    await asyncio.sleep(1.0)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert pair.names == []


async def test_the_end_of_a_factory_says_nothing_about_its_entities(
    open_fake_pair: OpenFakePair,
) -> None:
    """P22, L1: a send that is ended with its factory is not a caller that gave up."""
    pair = await open_fake_pair()
    sender = pair.primary.create_message_sender("orders")
    pair.home.answer("orders", HANG)
    slow = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(pair.home.attempts), "the slow one")
    await asyncio.sleep(1.0)
    await pair.primary.fault("a test")
    with pytest.raises(FactoryFaulted):
        await slow
    assert "diverted" not in pair.names


async def test_one_entity_is_diverted_and_the_other_is_not(fake_pair: FakePair) -> None:
    """P6, P14: entity by entity, and they share the backlog queues."""
    for path in ("orders", "bills"):
        fake_pair.home.answer(path, gone())
    for path in ("orders", "bills", "notes"):
        await fake_pair.primary.create_message_sender(path).send(BrokeredMessage(path.encode()))
    assert {property_of(each, "x-ms-path") for each in fake_pair.backlog()} == {"orders", "bills"}
    assert len(fake_pair.home.messages("notes")) == 1
    shown = [(each.path, each.is_diverted) for each in fake_pair.primary.failovers()]
    assert shown == [("bills", True), ("orders", True), ("notes", False)]


async def test_while_diverted_only_pings_go_to_the_primary(fake_pair: FakePair) -> None:
    """P8: and every sender of the factory knows it at once."""
    fake_pair.home.answer("orders", gone())
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await fake_pair.until_told("ping-failed")
    tried = len(fake_pair.home.attempts)
    for _ in range(5):
        await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"more"))
    assert len(fake_pair.home.attempts) == tried
    assert len(fake_pair.backlog()) == 6


async def test_a_sender_keeps_its_backlog_queue_and_senders_differ(
    open_fake_pair: OpenFakePair,
) -> None:
    """P8: chosen at random for each sender, then kept."""
    pair = await open_fake_pair(backlog_queue_count=10)
    pair.primary.force_failover("*")
    for _ in range(30):
        sender = pair.primary.create_message_sender("orders")
        for _ in range(3):
            await sender.send(BrokeredMessage(b""))
    counts = [len(pair.away.messages(queue)) for queue in pair.queues]
    assert sum(counts) == 90 and all(count % 3 == 0 for count in counts)
    assert sum(count > 0 for count in counts) > 3


async def test_a_failing_backlog_queue_is_withdrawn_for_all_senders(
    open_fake_pair: OpenFakePair,
) -> None:
    """P9: the message goes to another queue, and nobody else tries the broken one."""
    pair = await open_fake_pair(backlog_queue_count=2)
    pair.primary.force_failover("orders")
    broken, other = pair.queues
    pair.away.answer(broken, gone(broken))
    for _ in range(12):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b""))
    assert pair.away.attempts.count(broken) == 1
    assert len(pair.away.messages(other)) == 12
    assert pair.names.count("backlog-queue-withdrawn") == 1


async def test_with_every_queue_withdrawn_the_caller_is_told(fake_pair: FakePair) -> None:
    """P9: a typed error within the deadline, never a silent drop."""
    fake_pair.primary.force_failover("orders")
    fake_pair.away.answer("*", gone("*"))
    with pytest.raises(BacklogExhausted) as caught:
        await fake_pair.primary.create_message_sender("orders").send(
            BrokeredMessage(b""), timeout=0.5
        )
    assert set(caught.value.withdrawn) == set(fake_pair.queues)
    assert fake_pair.names[-1] == "backlog-exhausted"


async def test_a_send_that_waits_for_the_backlog_wakes_when_the_entity_is_restored(
    fake_pair: FakePair,
) -> None:
    """P11: whoever waits looks again when the health changes."""
    fake_pair.primary.force_failover("orders")
    fake_pair.away.answer("*", gone("*"))
    sender = fake_pair.primary.create_message_sender("orders")
    sending = asyncio.create_task(sender.send(BrokeredMessage(b"one"), timeout=30))
    await eventually(lambda: fake_pair.names.count("backlog-queue-withdrawn") == 3, "all withdrawn")
    fake_pair.primary.mark_path_healthy("orders")
    await asyncio.wait_for(sending, 1.5)
    assert len(fake_pair.home.messages("orders")) == 1


# --- home again --------------------------------------------------------------------------------


async def test_a_good_ping_restores_the_entity_and_pings_stop(fake_pair: FakePair) -> None:
    """P11: the first ping is sent at once; the next send of every client goes home."""
    sender = fake_pair.primary.create_message_sender("orders")
    fake_pair.home.answer_once("orders", gone())
    await sender.send(BrokeredMessage(b"one"))
    await fake_pair.until_told("restored")
    await sender.send(BrokeredMessage(b"two"))
    ping, message = fake_pair.home.messages("orders")
    decoded = Message.decode(ping)
    assert decoded.properties is not None and decoded.header is not None
    assert decoded.properties.content_type == "application/vnd.ms-servicebus-ping"
    assert (decoded.body, decoded.header.ttl_ms) == (b"", 1_000)
    assert decoded.properties.group_id
    assert Message.decode(message).body == b"two"
    assert fake_pair.names == ["suspected", "diverted", "ping-sent", "restored"]


async def test_pings_repeat_until_the_primary_is_back(open_fake_pair: OpenFakePair) -> None:
    """P11: one every interval, never two at once."""
    pair = await open_fake_pair(ping_primary_interval=1)
    pair.home.answer("orders", gone())
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await eventually(lambda: pair.names.count("ping-failed") == 2, "two pings")
    pair.home.answer("orders", None)
    await pair.until_told("restored")
    assert pair.names.count("ping-sent") == 3


async def test_a_ping_that_attaches_sends_nothing(open_fake_pair: OpenFakePair) -> None:
    """P11: for brokers that would deliver a ping."""
    pair = await open_fake_pair(ping_mode="attach")
    pair.home.answer_once("orders", gone())
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await pair.until_told("restored")
    assert pair.home.messages("orders") == []
    assert "orders" in pair.home.attached


async def test_a_hanging_ping_delays_no_other_entity(fake_pair: FakePair) -> None:
    """P11: every entity has its own."""
    for path in ("orders", "bills"):
        fake_pair.home.answer(path, gone())
        await fake_pair.primary.create_message_sender(path).send(BrokeredMessage(b"one"))
    await eventually(lambda: fake_pair.names.count("ping-failed") == 2, "first pings")
    fake_pair.home.answer("orders", HANG)
    fake_pair.home.answer("bills", None)
    fake_pair.primary.mark_path_healthy("bills")
    assert not fake_pair.primary.health("bills").is_diverted


# --- by hand (P16) -----------------------------------------------------------------------------


async def test_all_paths_can_be_forced_over_and_brought_back(fake_pair: FakePair) -> None:
    """P16: also those that nobody has used yet."""
    fake_pair.primary.force_failover("*")
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(fake_pair.backlog()) == 1
    fake_pair.primary.mark_path_healthy("*")
    for path in ("orders", "bills"):
        await fake_pair.primary.create_message_sender(path).send(BrokeredMessage(b"two"))
        assert len(fake_pair.home.messages(path)) == 1


async def test_a_held_path_stays_where_it_is(fake_pair: FakePair) -> None:
    """P16: held at home it is not diverted; held away it is not pinged."""
    fake_pair.primary.hold("orders")
    fake_pair.home.answer("orders", gone())
    with pytest.raises(CommunicationError):
        await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert fake_pair.primary.health("orders").state is Health.HELD_ON_PRIMARY
    fake_pair.primary.force_failover("orders")
    fake_pair.primary.hold("orders")
    assert fake_pair.primary.health("orders").state is Health.HELD_ON_BACKLOG
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"two"))
    assert len(fake_pair.backlog()) == 1


async def test_a_factory_that_is_not_paired_cannot_be_commanded() -> None:
    """P16: one sentence, and the way out."""
    async with MessagingFactory.from_driver(FakeNamespace()) as factory:
        with pytest.raises(ConfigurationError, match="not the primary of a pair"):
            factory.force_failover("orders")
        with pytest.raises(ConfigurationError, match="not the primary of a pair"):
            await factory.backlog()


# --- what could not make the detour --------------------------------------------------------------


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_reserved_name_is_refused_in_every_state(
    fake_pair: FakePair, is_diverted: bool
) -> None:
    """P12: behaviour does not change in an outage."""
    if is_diverted:
        fake_pair.primary.force_failover("orders")
    message = BrokeredMessage(b"", properties={"X-MS-Path": "elsewhere"})
    with pytest.raises(ReservedProperty):
        await fake_pair.primary.create_message_sender("orders").send(message)
    raw = Message(application_properties={"x-ms-sessionid": "s"}, body=b"").encode()
    with pytest.raises(ReservedProperty):
        await fake_pair.primary.create_paired_sender("orders").send_outgoing([OutgoingMessage(raw)])
    assert fake_pair.home.attempts == fake_pair.away.attempts == []


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_message_that_no_backlog_queue_takes_is_refused_in_every_state(
    fake_pair: FakePair, is_diverted: bool
) -> None:
    """P13: the error states the limit, the size and the overhead; no queue is tried."""
    if is_diverted:
        fake_pair.primary.force_failover("orders")
    sender = fake_pair.primary.create_paired_sender("orders")
    empty = len(Message(body=b"").encode()) + 3
    for size_bytes, fits in ((262_144, False), (262_144 - overhead_bytes_max("orders"), True)):
        parcel = OutgoingMessage(Message(body=bytes(size_bytes - empty)).encode())
        assert len(parcel.encoded) == size_bytes
        if fits:
            await sender.send_outgoing([parcel])
        else:
            with pytest.raises(TooLargeForBacklog) as caught:
                await sender.send_outgoing([parcel])
            assert (caught.value.limit_bytes, caught.value.size_bytes) == (262_144, size_bytes)
            assert caught.value.overhead_bytes > 0
    assert len(fake_pair.home.attempts) + len(fake_pair.away.attempts) == 1


async def test_a_batch_that_outgrows_the_limit_through_its_aliases_is_split(
    fake_pair: FakePair,
) -> None:
    """P13: every message once, in order, in batches that fit."""
    messages = [BrokeredMessage(bytes(6_500), message_id=str(index)) for index in range(40)]
    await fake_pair.primary.create_message_sender("orders").send_batch(messages)
    fake_pair.primary.force_failover("orders")
    await fake_pair.primary.create_message_sender("orders").send_batch(messages)
    assert fake_pair.home.batches == [("orders", 40)]
    assert len(fake_pair.away.batches) == 2
    ids = [Message.decode(each).properties.message_id for each in fake_pair.backlog()]  # type: ignore[union-attr]
    assert ids == [str(index) for index in range(40)]


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_the_smallest_backlog_queue_decides_what_fits(
    open_fake_pair: OpenFakePair, is_diverted: bool
) -> None:
    """P13, P20: whichever queue a message would go to, and however large the first one is."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.limits[pair.queues[1]] = LinkProperties(65_536)
    pair.away.limits[pair.queues[2]] = LinkProperties(131_072)
    await pair.primary.pair_namespace(pair.options)
    if is_diverted:
        pair.primary.force_failover("orders")
    for size_bytes, fits in ((60_000, True), (66_000, False), (100_000, False)):
        sender = pair.primary.create_message_sender("orders")
        if fits:
            await sender.send(BrokeredMessage(bytes(size_bytes)))
        else:
            with pytest.raises(TooLargeForBacklog) as caught:
                await sender.send(BrokeredMessage(bytes(size_bytes)))
            assert caught.value.limit_bytes == 65_536


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_batch_for_the_backlog_is_cut_to_the_smallest_queue(
    open_fake_pair: OpenFakePair, is_diverted: bool
) -> None:
    """P13, P20: a batch that the primary takes is taken in every state."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.limits[pair.queues[1]] = LinkProperties(65_536)
    await pair.primary.pair_namespace(pair.options)
    sender = pair.primary.create_message_sender("orders")
    await sender.send(BrokeredMessage(b"before"))
    if is_diverted:
        pair.primary.force_failover("orders")
    await sender.send_batch([BrokeredMessage(bytes(6_500)) for _ in range(38)])
    assert (len(pair.away.batches), len(pair.backlog())) == ((5, 38) if is_diverted else (0, 0))


@pytest.mark.parametrize("is_diverted", [False, True])
@pytest.mark.parametrize("is_same_sender", [False, True])
async def test_a_batch_that_the_primary_would_refuse_is_refused_in_every_state(
    fake_pair: FakePair, is_diverted: bool, is_same_sender: bool
) -> None:
    """P13: with the same error, also by a sender that has not sent anything before."""
    fake_pair.home.limits["orders"] = LinkProperties(262_144, 100_000)
    first = fake_pair.primary.create_message_sender("orders")
    await first.send(BrokeredMessage(b"before"))
    if is_diverted:
        fake_pair.primary.force_failover("orders")
    sender = first if is_same_sender else fake_pair.primary.create_message_sender("orders")
    await sender.send_batch([BrokeredMessage(bytes(6_500)) for _ in range(15)])
    with pytest.raises(MessageTooLarge, match=r"batch has 10.*'orders' .*100000"):
        await sender.send_batch([BrokeredMessage(bytes(6_500)) for _ in range(16)])
    assert len(fake_pair.backlog()) == (15 if is_diverted else 0)
    assert fake_pair.primary.health("orders").withdrawn == {}


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_message_that_only_the_backlog_would_take_is_refused_in_every_state(
    fake_pair: FakePair, is_diverted: bool
) -> None:
    """P13: it could never go home."""
    fake_pair.home.limits["orders"] = LinkProperties(65_536)
    sender = fake_pair.primary.create_message_sender("orders")
    await sender.send(BrokeredMessage(b"before"))
    if is_diverted:
        fake_pair.primary.force_failover("orders")
    with pytest.raises(MessageTooLarge, match=r"'orders' .*65536"):
        await sender.send(BrokeredMessage(bytes(70_000)))
    assert fake_pair.backlog() == []


@pytest.mark.parametrize("backlog_bytes", [65_536, 262_144, 1_048_576])
async def test_a_batch_for_a_primary_that_never_answered_is_what_every_service_takes(
    open_fake_pair: OpenFakePair, backlog_bytes: int
) -> None:
    """P13, P17: 256 KB, or what the smallest backlog queue takes if that is more."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.message_bytes_max = backlog_bytes
    pair.home.answer("*", gone())
    await pair.primary.pair_namespace(pair.options)
    sender = pair.primary.create_message_sender("orders")
    limit_bytes = max(262_144, backlog_bytes)
    fits = limit_bytes // 6_700
    await sender.send_batch([BrokeredMessage(bytes(6_500)) for _ in range(fits)])
    with pytest.raises(MessageTooLarge, match=f"{limit_bytes}.* unknown"):
        await sender.send_batch([BrokeredMessage(bytes(6_500)) for _ in range(fits + 5)])
    assert len(pair.backlog()) == fits


async def test_parts_of_a_batch_that_are_safe_are_not_sent_again(fake_pair: FakePair) -> None:
    """P13: the second part goes to another queue; nothing is there twice."""
    fake_pair.primary.force_failover("orders")
    for queue in fake_pair.queues:
        fake_pair.away.answer_once(queue, None, gone(queue))
    messages = [BrokeredMessage(bytes(6_500), message_id=str(index)) for index in range(40)]
    await fake_pair.primary.create_message_sender("orders").send_batch(messages)
    ids = [Message.decode(each).properties.message_id for each in fake_pair.backlog()]  # type: ignore[union-attr]
    assert sorted(map(int, ids)) == list(range(40))
    assert len({queue for queue, _ in fake_pair.away.batches}) == 2


async def test_a_batch_of_which_only_a_part_found_a_place_says_so(fake_pair: FakePair) -> None:
    """P13: the first ``accepted`` messages are safe, and the caller knows how many."""
    fake_pair.home.message_bytes_max = 1_048_576
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"before"))
    fake_pair.primary.force_failover("orders")
    for queue in fake_pair.queues:
        fake_pair.away.answer_once(queue, None, *[gone(queue)] * 20)
    messages = [BrokeredMessage(bytes(6_500)) for _ in range(120)]
    with pytest.raises(BatchPartlySent) as caught:
        await fake_pair.primary.create_message_sender("orders").send_batch(messages, timeout=1)
    assert 0 < caught.value.accepted == len(fake_pair.backlog()) < 120 == caught.value.total
    assert isinstance(caught.value.__cause__, BacklogExhausted)


# --- schedules ---------------------------------------------------------------------------------


def later() -> BrokeredMessage:
    return BrokeredMessage(b"", scheduled_enqueue_time_utc=datetime(2040, 1, 1, tzinfo=UTC))


async def test_a_scheduled_message_is_cancelled_by_its_number(fake_pair: FakePair) -> None:
    """P0: at home the numbers are the primary's."""
    sender = fake_pair.primary.create_message_sender("orders")
    number = await sender.schedule_message(later())
    assert number > 0
    await sender.cancel_scheduled_message(number)
    assert fake_pair.home.cancelled == [number]


async def test_a_message_scheduled_while_diverted_keeps_its_schedule_and_cannot_be_cancelled(
    fake_pair: FakePair,
) -> None:
    """P12: the schedule travels as an alias; the number says where the message is."""
    fake_pair.primary.force_failover("orders")
    sender = fake_pair.primary.create_message_sender("orders")
    first, second = await sender.schedule_batch([later(), later()])
    assert first < 0 and second < 0 and first != second
    for encoded in fake_pair.backlog():
        assert property_of(encoded, "x-ms-scheduledenqueuetimeutc") is not None
    with pytest.raises(CancelImpossible) as caught:
        await sender.cancel_scheduled_message(first)
    assert caught.value.is_transient is False


async def test_a_cancel_that_was_in_doubt_is_no_duplicate(open_fake_pair: OpenFakePair) -> None:
    """P16: it is asked once more, and nothing can arrive twice by that."""
    pair = await open_fake_pair(retry_total=1)
    sender = pair.primary.create_message_sender("orders")
    number = await sender.schedule_message(later())
    lost = CommunicationError("lost on the way", was_sent=True)
    pair.home.answer("orders", lost)
    cancelling = asyncio.create_task(sender.cancel_scheduled_message(number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pair.home.answer("orders", None)
    await cancelling
    assert pair.home.cancelled == [number] and pair.told == []


async def test_nothing_is_cancelled_at_a_primary_that_is_away(fake_pair: FakePair) -> None:
    """P8: only pings go there; the caller can try again when it is restored."""
    sender = fake_pair.primary.create_message_sender("orders")
    number = await sender.schedule_message(later())
    fake_pair.primary.force_failover("orders")
    with pytest.raises(CancelImpossible) as caught:
        await sender.cancel_scheduled_message(number)
    assert caught.value.is_transient is True
    assert fake_pair.home.cancelled == []


# --- callers that go away, and many of them ------------------------------------------------------


async def test_a_cancelled_send_leaves_everything_usable(fake_pair: FakePair) -> None:
    """P9: also in the middle of asking after a withdrawn queue."""
    fake_pair.primary.force_failover("orders")
    sender = fake_pair.primary.create_message_sender("orders")
    fake_pair.away.answer("*", HANG)
    sending = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: bool(fake_pair.away.attempts), "an attempt")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    fake_pair.away.answer("*", None)
    await sender.send(BrokeredMessage(b"two"))
    assert len(fake_pair.backlog()) == 1
    assert fake_pair.primary.health("orders").sends_under_way == 0


async def test_a_caller_that_goes_away_while_it_asks_after_a_queue_lets_others_ask(
    open_fake_pair: OpenFakePair,
) -> None:
    """P9: half-open for one send at a time, and never for one that is gone."""
    pair = await open_fake_pair(backlog_queue_count=1, rotation=RotationPolicy(pause_s=0.05))
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    [queue] = pair.queues
    pair.away.answer_once(queue, gone(queue))
    pair.away.answer(queue, HANG)
    asking = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    await eventually(lambda: len(pair.away.attempts) == 2, "the question")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    pair.away.answer(queue, None)
    await sender.send(BrokeredMessage(b"two"), timeout=5)
    assert "backlog-queue-reinstated" in pair.names


async def test_many_tasks_share_a_sender_while_the_primary_goes_away(fake_pair: FakePair) -> None:
    """P10: every message is in exactly one place."""
    sender = fake_pair.primary.create_message_sender("orders")

    async def one(index: int) -> None:
        if index == 100:
            fake_pair.home.answer("orders", gone())
        await sender.send(BrokeredMessage(str(index).encode()))

    await asyncio.gather(*(one(index) for index in range(200)))
    bodies = [
        Message.decode(each).body
        for each in [*fake_pair.home.messages("orders"), *fake_pair.backlog()]
    ]
    assert len(bodies) == len(set(bodies)) == 200
    assert [each for each in fake_pair.told if isinstance(each.event, Diverted)]


async def test_no_send_outlives_its_deadline(open_fake_pair: OpenFakePair) -> None:
    """F6: primary and backlog both hang."""
    pair = await open_fake_pair(retry_total=3)
    pair.home.answer("*", HANG)
    pair.away.answer("*", HANG)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises((OperationTimeout, BacklogExhausted)):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b""), timeout=1.5)
    assert asyncio.get_running_loop().time() - began_s < 10


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5"])
async def test_a_timeout_that_makes_no_sense_is_refused(
    fake_pair: FakePair, timeout: float
) -> None:
    """F6: before anything is sent."""
    with pytest.raises(ConfigurationError, match="timeout"):
        await fake_pair.primary.create_message_sender("orders").send(
            BrokeredMessage(b""), timeout=timeout
        )


async def test_nothing_at_all_cannot_be_sent(fake_pair: FakePair) -> None:
    """P0: an empty batch is a mistake, not a success."""
    with pytest.raises(ConfigurationError, match="at least one message"):
        await fake_pair.primary.create_message_sender("orders").send_batch([])

"""Making a pair: what is refused, what is found out, who waits, and what a failure leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.pairing.fake_namespace import HANG, FakeNamespace
from tests.support.pairing.pairs import FakePair, OpenFakePair, OpenPair, eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.errors import (
    AccessRefused,
    AlreadyPaired,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
    EntityNotFound,
    FactoryClosed,
    NoBacklogQueue,
    OperationTimeout,
)
from twinbus.failover.state_machine import Health
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import NamespacePairFixture


def gone() -> CommunicationError:
    return CommunicationError("nobody answers", was_sent=False)


async def test_clients_made_before_and_after_are_covered(open_fake_pair: OpenFakePair) -> None:
    """P1: the same objects, used before or not."""
    pair = await open_fake_pair(is_paired=False)
    used = pair.primary.create_message_sender("orders")
    unused = pair.primary.create_queue_client("orders")
    await used.send(BrokeredMessage(b"one"))
    await pair.primary.pair_namespace(pair.options)
    later = pair.primary.create_topic_client("orders")
    pair.home.answer("orders", gone())
    for sender in (used, unused, later):
        await sender.send(BrokeredMessage(b"two"))
    assert len(pair.backlog()) == 3


async def test_sends_issued_while_the_pair_is_made_wait_for_it(
    open_fake_pair: OpenFakePair,
) -> None:
    """P1: and then have its cover."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.answer("*", HANG)
    pairing = asyncio.create_task(pair.primary.pair_namespace(pair.options))
    await eventually(lambda: bool(pair.away.attached), "the first look at a backlog queue")
    sender = pair.primary.create_message_sender("orders")
    sending = asyncio.create_task(sender.send(BrokeredMessage(b"one")))
    with pytest.raises(OperationTimeout) as caught:
        await sender.send(BrokeredMessage(b"two"), timeout=0.05)
    assert caught.value.is_ambiguous is False
    assert pair.home.attempts == []
    pairing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pairing
    await sending
    assert pair.home.attempts == ["orders"]


async def test_a_failed_pairing_leaves_both_factories_usable(open_fake_pair: OpenFakePair) -> None:
    """P1: the error is raised from it, and it may be tried again."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.answer("*", EntityNotFound("no such queue"))
    with pytest.raises(NoBacklogQueue):
        await pair.primary.pair_namespace(pair.options)
    assert not pair.primary.is_paired and not pair.secondary.is_secondary
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    pair.away.answer("*", None)
    await pair.secondary.create_message_sender("bills").send(BrokeredMessage(b"two"))
    await pair.primary.pair_namespace(pair.options)
    assert pair.primary.is_paired and pair.secondary.is_secondary


@pytest.mark.parametrize("error", [AuthenticationFailed("wrong key"), AccessRefused("no Send")])
async def test_what_the_secondary_refuses_is_raised_from_pairing(
    open_fake_pair: OpenFakePair, error: Exception
) -> None:
    """P1: before anybody relies on it."""
    pair = await open_fake_pair(is_paired=False)
    pair.away.answer("*", error)
    with pytest.raises(type(error)):
        await pair.primary.pair_namespace(pair.options)


async def test_a_wrong_key_of_the_primary_is_raised_from_pairing(
    open_fake_pair: OpenFakePair,
) -> None:
    """P1, P7: a credential that never worked is a mistake, not an outage."""
    pair = await open_fake_pair(is_paired=False)
    pair.primary.create_message_sender("orders")
    pair.home.answer("*", AuthenticationFailed("wrong key"))
    with pytest.raises(AuthenticationFailed):
        await pair.primary.pair_namespace(pair.options)


async def test_the_number_of_queues_is_the_one_that_was_found(open_fake_pair: OpenFakePair) -> None:
    """P2, P5: with Send only, the reachable ones count."""
    pair = await open_fake_pair(is_paired=False, backlog_queue_count=5)
    pair.away.answer("contoso/x-servicebus-transfer/3", EntityNotFound("no such queue"))
    await pair.primary.pair_namespace(pair.options)
    assert pair.options.backlog_queue_count == 4


# --- refusals ----------------------------------------------------------------------------------


async def test_a_factory_is_paired_once(fake_pair: FakePair) -> None:
    """P3: a second call is refused, and the pair goes on."""
    other = MessagingFactory.from_driver(FakeNamespace("tailspin"))
    with pytest.raises(AlreadyPaired):
        await fake_pair.primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(None, other))
    fake_pair.home.answer("orders", gone())
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(fake_pair.backlog()) == 1


async def test_a_namespace_is_not_its_own_secondary(open_fake_pair: OpenFakePair) -> None:
    """P3: neither the same object nor the same address."""
    pair = await open_fake_pair(is_paired=False)
    for secondary in (pair.primary, MessagingFactory.from_driver(FakeNamespace("contoso"))):
        with pytest.raises(ConfigurationError, match="another namespace"):
            await pair.primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(None, secondary)
            )


async def test_a_factory_that_belongs_to_a_pair_is_nobody_elses_secondary(
    fake_pair: FakePair,
) -> None:
    """P3: neither a primary nor a secondary; no chains."""
    third = MessagingFactory.from_driver(FakeNamespace("tailspin"))
    for taken in (fake_pair.primary, fake_pair.secondary):
        with pytest.raises(AlreadyPaired):
            await third.pair_namespace(SendAvailabilityPairedNamespaceOptions(None, taken))
    with pytest.raises(AlreadyPaired):
        await fake_pair.secondary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(None, third)
        )


async def test_two_primaries_may_use_one_secondary_namespace(fake_pair: FakePair) -> None:
    """P3, P14: through factories of their own, each with its own queues."""
    other = MessagingFactory.from_driver(FakeNamespace("tailspin"))
    again = MessagingFactory.from_driver(fake_pair.away)
    await other.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(None, again, backlog_queue_count=1)
    )
    other.force_failover("orders")
    await other.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(fake_pair.away.messages("tailspin/x-servicebus-transfer/0")) == 1
    assert fake_pair.backlog() == []
    await other.close()


async def test_options_of_no_known_kind_are_refused(open_fake_pair: OpenFakePair) -> None:
    """P2: the base class alone says nothing."""
    pair = await open_fake_pair(is_paired=False)
    with pytest.raises(ConfigurationError, match="SendAvailability"):
        await pair.primary.pair_namespace(PairedNamespaceOptions())


async def test_a_manager_of_another_host_is_refused(open_fake_pair: OpenFakePair) -> None:
    """P18: it would make the queues where no message is sent; both are named."""
    pair = await open_fake_pair(is_paired=False)
    async with NamespaceManager.from_connection_string(
        "Endpoint=sb://elsewhere.example/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    ) as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, pair.secondary)
        with pytest.raises(ConfigurationError) as caught:
            await pair.primary.pair_namespace(options)
    assert "elsewhere.example:" in str(caught.value)
    assert "fabrikam.example:5671" in str(caught.value)
    assert pair.away.attached == [] and not pair.primary.is_paired
    await pair.primary.pair_namespace(pair.options)


async def test_a_manager_of_another_namespace_on_the_same_host_is_refused(
    servicebus_pair: NamespacePairFixture, open_pair: OpenPair
) -> None:
    """P18: there the names tell, because one namespace can have several doors."""
    primary, secondary = servicebus_pair.primary, servicebus_pair.secondary
    manager = NamespaceManager.from_connection_string(primary.connection_string)
    with pytest.raises(ConfigurationError) as caught:
        await open_pair(manager=manager)
    await manager.close()
    assert f"manager uses namespace {primary.name!r} at " in str(caught.value)
    assert f"factory uses {secondary.name!r} at " in str(caught.value)


# --- during an outage --------------------------------------------------------------------------


@pytest.mark.parametrize("failover_interval", [0, 60])
async def test_a_process_that_starts_during_an_outage_goes_straight_to_the_backlog(
    open_fake_pair: OpenFakePair, failover_interval: float
) -> None:
    """P17: no send tries the primary first, and a ping asks at once whether it is back."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home, failover_interval=failover_interval)
    for path in ("orders", "bills"):
        await pair.primary.create_message_sender(path).send(BrokeredMessage(b"one"))
    assert len(pair.backlog()) == 2
    assert "unreachable" in pair.primary.health("orders").reason
    await eventually(lambda: pair.names.count("ping-failed") == 2, "a ping for each")
    assert sorted(home.attempts) == ["bills", "orders"]


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_a_pair_that_is_made_in_an_outage_begins_diverted_whatever_worked_before(
    servicebus_pair: NamespacePairFixture, open_pair: OpenPair, driver: DriverName
) -> None:
    """P17, P18: the primary is asked now, although its credential has worked in this process."""
    home = servicebus_pair.primary
    orders = home.queue("orders")
    async with MessagingFactory.from_connection_string(
        home.connection_string, driver=driver
    ) as before:
        await before.create_message_sender(orders).send(BrokeredMessage(b"before"))
    with home.outage("refused"):
        pair = await open_pair(driver, failover_interval=60, namespace_name=home.name)
        assert pair.primary.routing.rules.credential.has_succeeded
        sender = pair.primary.create_message_sender(orders)
        async with asyncio.timeout(5):
            await sender.send(BrokeredMessage(b"during"))
        assert pair.primary.health(orders).is_diverted
        assert "unreachable" in pair.primary.health(orders).reason
        assert sum(each.messages for each in await pair.primary.backlog()) == 1


async def test_an_entity_that_is_used_after_the_outage_begins_at_home(
    open_fake_pair: OpenFakePair,
) -> None:
    """P17: the first one that came home proves that the outage is over."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home)
    home.answer("*", None)
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await pair.until_told("restored")
    await pair.primary.create_message_sender("bills").send(BrokeredMessage(b"two"))
    assert len(home.messages("bills")) == 1


async def test_an_outage_that_ends_before_the_first_send_is_over(
    open_fake_pair: OpenFakePair,
) -> None:
    """P17, P0: the primary is asked until it answers, so nothing is diverted for an old reason."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home, ping_primary_interval=1)
    home.answer("*", None)
    await eventually(lambda: not pair.primary.routing.outage, "contact")
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert pair.backlog() == [] and pair.told == []


async def test_the_options_of_a_pair_can_be_read_back(open_fake_pair: OpenFakePair) -> None:
    """P2: by who has the primary and not the options; a secondary has none."""
    pair = await open_fake_pair(is_paired=False, failover_interval=7)
    assert pair.primary.paired_namespace_options is None
    await pair.primary.pair_namespace(pair.options)
    assert pair.primary.paired_namespace_options is pair.options
    assert pair.secondary.paired_namespace_options is None


async def test_the_ping_interval_of_a_running_pair_can_be_changed(
    open_fake_pair: OpenFakePair,
) -> None:
    """P11: a diverted entity is asked sooner, as one that was never used is."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home, ping_primary_interval=1800)
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await pair.until_told("ping-failed")
    home.answer("*", None)
    pair.primary.set_ping_interval(1)
    assert pair.options.ping_primary_interval == timedelta(seconds=1)
    await pair.until_told("restored")


async def test_contact_is_sought_at_the_new_interval(open_fake_pair: OpenFakePair) -> None:
    """P17: also while no entity was used."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home, ping_primary_interval=1800)
    home.answer("*", None)
    pair.primary.set_ping_interval(timedelta(seconds=1))
    await eventually(lambda: not pair.primary.routing.outage, "contact")


async def test_a_ping_interval_that_nobody_can_keep_changes_nothing(fake_pair: FakePair) -> None:
    """P2: the range is that of the options."""
    with pytest.raises(ConfigurationError, match=r"ping_primary_interval: 0\.5 s"):
        fake_pair.primary.set_ping_interval(0.5)
    assert fake_pair.options.ping_primary_interval == timedelta(minutes=1)
    assert fake_pair.primary.routing.policy.ping_interval_s == 60
    with pytest.raises(ConfigurationError, match="not the primary of a pair"):
        fake_pair.secondary.set_ping_interval(5)


async def test_a_primary_in_a_black_hole_does_not_hold_up_the_start(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P17: the question whether it is there has a time limit."""
    monkeypatch.setattr("twinbus.pairing.pair_setup.CONTACT_TIMEOUT_S", 0.05)
    home = FakeNamespace("contoso")
    home.answer("*", HANG)
    pair = await open_fake_pair(home=home, failover_interval=60)
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(pair.backlog()) == 1


async def test_the_name_of_the_primary_is_asked_for_where_its_address_tells_none() -> None:
    """P4: refused when nobody knows it; the options may say it."""
    home = FakeNamespace()
    home.address = type(home.address)("127.0.0.1", 5672)
    away = FakeNamespace("fabrikam")
    primary = MessagingFactory.from_driver(home)
    secondary = MessagingFactory.from_driver(away)
    with pytest.raises(ConfigurationError, match="namespace_name"):
        await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(None, secondary))
    await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(None, secondary, 1, namespace_name="contoso")
    )
    assert "contoso/x-servicebus-transfer/0" in away.attached
    await primary.close()


# --- what a failure leaves -----------------------------------------------------------------------


async def test_a_pairing_that_fails_at_the_last_step_leaves_nothing_behind(
    open_fake_pair: OpenFakePair, tmp_path: Path
) -> None:
    """P1: when it is repeated, nothing is told twice and the number of queues is the wish."""
    told: list[str] = []
    pair = await open_fake_pair(
        is_paired=False,
        backlog_queue_count=5,
        journal=tmp_path / "missing" / "journal",
        on_event=lambda occurrence: told.append(occurrence.name),
    )
    pair.away.answer("contoso/x-servicebus-transfer/3", EntityNotFound("no such queue"))
    with pytest.raises(ConfigurationError, match="journal"):
        await pair.primary.pair_namespace(pair.options)
    assert pair.options.backlog_queue_count == 5
    (tmp_path / "missing").mkdir()
    await pair.primary.pair_namespace(pair.options)
    pair.primary.force_failover("orders")
    assert told == ["diverted"]


async def test_a_secondary_that_is_closed_while_the_pair_is_made_is_no_partner(
    open_fake_pair: OpenFakePair,
) -> None:
    """P1, L1: the primary stays usable, alone."""
    pair = await open_fake_pair(is_paired=False)
    pair.home.answer("twinbus-contact", HANG)
    pairing = asyncio.create_task(pair.primary.pair_namespace(pair.options))
    await eventually(lambda: bool(pair.home.attached), "the contact")
    await pair.secondary.close()
    with pytest.raises(FactoryClosed):
        await pairing
    assert not pair.primary.is_paired
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))


async def test_a_credential_that_was_taken_when_the_pair_was_made_has_worked(
    open_fake_pair: OpenFakePair,
) -> None:
    """P7: a token service that breaks before the first send is an outage, too."""
    home = FakeNamespace("contoso")
    home.answer("twinbus-contact", EntityNotFound("no such queue"))
    pair = await open_fake_pair(home=home)
    home.answer("orders", AuthenticationFailed("no token today"))
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(pair.backlog()) == 1


async def test_a_credential_that_was_taken_for_a_ping_has_worked(
    open_fake_pair: OpenFakePair,
) -> None:
    """P7, P17: in a process that began during the outage."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home)
    sender = pair.primary.create_message_sender("orders")
    home.answer("*", None)
    await sender.send(BrokeredMessage(b"one"))
    await pair.until_told("restored")
    home.answer("*", AuthenticationFailed("no token today"))
    await sender.send(BrokeredMessage(b"two"))
    assert len(pair.backlog()) == 2


async def test_a_hold_on_all_paths_keeps_new_ones_where_they_would_begin(
    open_fake_pair: OpenFakePair,
) -> None:
    """P16, P17: in an outage that is on the backlog."""
    home = FakeNamespace("contoso")
    home.answer("*", gone())
    pair = await open_fake_pair(home=home)
    pair.primary.hold("*")
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    assert len(pair.backlog()) == 1
    assert pair.primary.health("orders").state is Health.HELD_ON_BACKLOG

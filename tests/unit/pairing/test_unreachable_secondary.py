"""A secondary that is unreachable takes nothing from a healthy application (P19)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.pairing.fake_namespace import HANG
from tests.support.pairing.pairs import FakePair, OpenFakePair, OpenPair, Paired, eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityNotFound,
    FactoryClosed,
    LinkDetached,
    NoBacklogQueue,
    OperationTimeout,
    ReservedProperty,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)
from twinbus.testing import NamespacePairFixture


class Gone(CommunicationError):
    """For a test's own namespace, which raises one object again and again: it stays transient."""

    def mark_final(self) -> ServiceError:
        return self


GONE = Gone("nobody answers", was_sent=False)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secondary is asked again soon."""
    monkeypatch.setattr("twinbus.pairing.pair_completion.PAUSE_S", 0.02)
    monkeypatch.setattr("twinbus.pairing.pair_completion.PAUSE_S_MAX", 0.05)
    monkeypatch.setattr("twinbus.pairing.pair_completion.REFUSED_PAUSE_S", 0.05)


async def waiting_pair(
    open_fake_pair: OpenFakePair, answer: Any = GONE, **options: Any
) -> FakePair:
    """A pair whose secondary does not answer."""
    pair = await open_fake_pair(is_paired=False, require_secondary=False, **options)
    pair.away.answer("*", answer)
    await pair.primary.pair_namespace(pair.options)
    return pair


@pytest.mark.parametrize(
    "answer",
    [GONE, OperationTimeout("no answer"), ServiceInternalError("broken"), ServerBusy("busy")],
    ids=lambda error: type(error).__name__,
)
async def test_sends_go_to_the_primary_while_the_secondary_is_unreachable(
    open_fake_pair: OpenFakePair, answer: ServiceError
) -> None:
    """P19: an event and health() report it."""
    pair = await waiting_pair(open_fake_pair, answer)
    await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"1"))
    assert len(pair.home.messages("orders")) == 1
    assert pair.names == ["backlog-unreachable"]
    why = answer.sentence.rstrip(".")
    assert why in str(pair.told[0])
    assert pair.told[0].to_dict()["secondary"] == str(pair.secondary.address)
    assert pair.options.backlog_queue_count == 0
    for path in ("orders", "never-used"):
        health = pair.primary.health(path)
        assert why in health.backlog_error
        assert not health.is_diverted
    assert pair.primary.is_paired and pair.secondary.is_secondary


async def test_with_require_secondary_it_is_an_error(open_fake_pair: OpenFakePair) -> None:
    """P19: as the original, unless the application says otherwise."""
    pair = await open_fake_pair(is_paired=False)
    assert pair.options.require_secondary is True
    pair.away.answer("*", GONE)
    with pytest.raises(NoBacklogQueue) as raised:
        await pair.primary.pair_namespace(pair.options)
    assert raised.value.is_transient
    assert not pair.primary.is_paired


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (AuthenticationFailed("wrong key"), AuthenticationFailed),
        (AccessRefused("no Send"), AccessRefused),
        (EntityNotFound("no queue"), NoBacklogQueue),
    ],
    ids=["wrong key", "no claim", "no queue"],
)
async def test_a_secondary_that_answers_with_a_refusal_is_an_error_all_the_same(
    open_fake_pair: OpenFakePair, answer: ServiceError, expected: type[Exception]
) -> None:
    """P19: wrong credentials are raised in both cases."""
    pair = await open_fake_pair(is_paired=False, require_secondary=False)
    pair.away.answer("*", answer)
    with pytest.raises(expected):
        await pair.primary.pair_namespace(pair.options)
    assert not pair.primary.is_paired and pair.names == []


async def test_a_secondary_in_a_black_hole_holds_nothing_up(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19: pairing returns after a short time without an answer."""
    monkeypatch.setattr("twinbus.pairing.pair_setup.REACH_TIMEOUT_S", 0.1)
    began_s = time.monotonic()
    pair = await waiting_pair(open_fake_pair, HANG)
    assert time.monotonic() - began_s < 2
    assert pair.names == ["backlog-unreachable"]


async def test_a_secondary_that_is_slow_is_not_waited_for(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19: it answers, and then some of it does not."""
    monkeypatch.setattr("twinbus.pairing.pair_setup.SECONDARY_TIMEOUT_S", 0.2)
    pair = await open_fake_pair(is_paired=False, require_secondary=False)
    pair.away.answer("contoso/x-servicebus-transfer/1", HANG)
    began_s = time.monotonic()
    await pair.primary.pair_namespace(pair.options)
    assert time.monotonic() - began_s < 5
    assert pair.names == ["backlog-unreachable"]


@pytest.mark.parametrize("answer", [LinkDetached("detached"), HANG], ids=["detached", "silent"])
async def test_one_queue_that_fails_is_not_an_unreachable_secondary(
    open_fake_pair: OpenFakePair, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19: the others are used; the first one is asked like the others."""
    monkeypatch.setattr("twinbus.pairing.pair_setup.REACH_TIMEOUT_S", 0.1)
    monkeypatch.setattr("twinbus.pairing.pair_setup.SECONDARY_TIMEOUT_S", 0.5)
    pair = await open_fake_pair(is_paired=False, require_secondary=False)
    pair.away.answer("contoso/x-servicebus-transfer/0", answer)
    await pair.primary.pair_namespace(pair.options)
    if answer is not HANG:
        assert pair.names == [] and pair.options.backlog_queue_count == 2
    assert "x-servicebus-transfer/0" not in pair.primary.health("orders").backlog_error


async def test_the_pair_completes_itself_when_the_secondary_answers(
    open_fake_pair: OpenFakePair,
) -> None:
    """P19: queues, links, pings; sends made by then and later are covered."""
    pair = await waiting_pair(open_fake_pair, ping_primary_interval=1)
    orders = pair.primary.create_queue_client("orders")
    await orders.send(BrokeredMessage(b"1"))
    await asyncio.sleep(0.1)
    pair.away.answer("*", None)
    await pair.until_told("backlog-ready")
    assert pair.options.backlog_queue_count == 3
    assert pair.primary.health("orders").backlog_error == ""
    assert pair.primary.health("orders").state.name == "HEALTHY"
    assert [each.queue for each in await pair.primary.backlog()] == pair.queues

    pair.home.answer("orders", GONE)
    await orders.send(BrokeredMessage(b"2"))
    assert len(pair.backlog()) == 1 and pair.primary.health("orders").is_diverted
    pair.home.answer("orders", None)
    await pair.until_told("restored")
    assert pair.names.count("backlog-unreachable") == 1


async def test_a_pair_that_is_complete_says_nothing_of_it(open_fake_pair: OpenFakePair) -> None:
    """P19: the option changes nothing for a secondary that answers."""
    pair = await open_fake_pair(require_secondary=False)
    assert pair.options.backlog_queue_count == 3 and pair.names == []
    assert pair.primary.health("orders").backlog_error == ""


# -- the primary fails, too ---------------------------------------------------------------


async def test_when_the_primary_fails_as_well_its_error_is_raised_soon(
    open_fake_pair: OpenFakePair,
) -> None:
    """P19: nothing waits for the secondary, and the error says that there is no backlog."""
    pair = await waiting_pair(open_fake_pair, failover_interval=60)
    pair.home.answer("orders", CommunicationError("the primary is gone"))
    began_s = time.monotonic()
    with pytest.raises(CommunicationError, match="primary is gone") as raised:
        await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"1"))
    assert time.monotonic() - began_s < 1
    assert "backlog" in raised.value.hint and str(pair.secondary.address) in raised.value.hint
    assert raised.value.hint in str(raised.value)


async def test_sends_are_diverted_as_soon_as_the_secondary_answers(
    open_fake_pair: OpenFakePair,
) -> None:
    """P17, P19: also a send that waits for the primary at that moment, with a long interval."""
    pair = await waiting_pair(open_fake_pair, failover_interval=60)
    orders = pair.primary.create_queue_client("orders")
    pair.home.answer("*", HANG)
    waiting = asyncio.create_task(orders.send(BrokeredMessage(b"1"), timeout=30))
    await asyncio.sleep(0.1)
    # The contact that is asked for when the pair completes itself fails at once.
    pair.home.answer("*", GONE)
    pair.away.answer("*", None)
    await pair.until_told("diverted")
    async with asyncio.timeout(5):
        await waiting
        await orders.send(BrokeredMessage(b"2"))
    assert len(pair.backlog()) == 2


async def test_a_send_between_two_attempts_is_diverted_too(open_fake_pair: OpenFakePair) -> None:
    """P19: it waits for its retry when the secondary answers."""
    pair = await waiting_pair(open_fake_pair, retry_total=1)
    pair.home.answer("*", ServerBusy("busy"))
    orders = pair.primary.create_queue_client("orders")
    waiting = asyncio.create_task(orders.send(BrokeredMessage(b"1"), timeout=60))
    await asyncio.sleep(0.1)
    pair.home.answer("*", GONE)
    pair.away.answer("*", None)
    async with asyncio.timeout(5):
        await waiting
    assert len(pair.backlog()) == 1


# -- control, and what is refused ----------------------------------------------------------


async def test_what_needs_a_backlog_is_refused_until_there_is_one(
    open_fake_pair: OpenFakePair,
) -> None:
    """P19: a forced failover would have no place to send to."""
    pair = await waiting_pair(open_fake_pair)
    for command in ("force_failover", "hold", "mark_path_healthy"):
        with pytest.raises(NoBacklogQueue, match="backlog-ready") as raised:
            getattr(pair.primary, command)("orders")
        assert raised.value.is_transient
    with pytest.raises(NoBacklogQueue):
        await pair.primary.backlog()
    assert not pair.primary.health("orders").is_diverted


async def test_reserved_names_are_refused_in_every_state(open_fake_pair: OpenFakePair) -> None:
    """P12: also before there is a backlog."""
    pair = await waiting_pair(open_fake_pair)
    with pytest.raises(ReservedProperty):
        await pair.primary.create_queue_client("orders").send(
            BrokeredMessage(b"1", properties={"x-ms-path": "x"})
        )


async def test_a_refusal_that_comes_later_is_an_event_and_is_tried_again(
    open_fake_pair: OpenFakePair,
) -> None:
    """P19: it cannot be raised any more."""
    pair = await waiting_pair(open_fake_pair)
    pair.away.answer("*", AuthenticationFailed("wrong key"))
    await eventually(lambda: pair.names.count("backlog-unreachable") == 2)
    assert "AuthenticationFailed" in pair.primary.health("orders").backlog_error
    await asyncio.sleep(0.2)
    assert pair.names == ["backlog-unreachable"] * 2
    pair.away.answer("*", None)
    await pair.until_told("backlog-ready")


# -- ends ----------------------------------------------------------------------------------


def tasks_left() -> list[str]:
    return [
        task.get_name() for task in asyncio.all_tasks() if task.get_name() == "twinbus-completion"
    ]


@pytest.mark.parametrize("answer", [GONE, HANG], ids=["refused", "black hole"])
async def test_a_pair_that_still_waits_can_be_closed(
    open_fake_pair: OpenFakePair, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, P19: at once, and nothing goes on."""
    monkeypatch.setattr("twinbus.pairing.pair_setup.REACH_TIMEOUT_S", 0.1)
    pair = await waiting_pair(open_fake_pair, answer, enable_syphon=True)
    monkeypatch.setattr("twinbus.pairing.pair_setup.REACH_TIMEOUT_S", 30.0)
    await asyncio.sleep(0.2)
    assert tasks_left()
    async with asyncio.timeout(3):
        await pair.primary.close()
    assert not tasks_left() and not pair.secondary.is_open
    with pytest.raises(FactoryClosed):
        await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"1"))


async def test_a_secondary_that_is_closed_meanwhile_is_not_asked_any_more(
    open_fake_pair: OpenFakePair,
) -> None:
    """L1, P19: sends go to the primary as before."""
    pair = await waiting_pair(open_fake_pair)
    await pair.secondary.close()
    assert not tasks_left()
    await pair.primary.create_queue_client("orders").send(BrokeredMessage(b"1"))
    assert "closed" in pair.primary.health("orders").backlog_error


async def test_the_options_can_be_used_again(open_fake_pair: OpenFakePair) -> None:
    """P2: the number of queues that was wanted is not forgotten."""
    pair = await waiting_pair(open_fake_pair)
    await pair.primary.close()
    assert pair.options.wanted_queue_count == 3


# -- over brokers ----------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
@pytest.mark.parametrize("how", ["refused", "black-hole", "reset"])
async def test_a_pair_over_brokers_completes_itself(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: Any, how: str
) -> None:
    """P19: both drivers; the hosted syphon begins when the pair is complete."""
    orders = servicebus_pair.primary.queue("orders")
    with servicebus_pair.secondary.outage(how):
        began_s = time.monotonic()
        pair = await open_pair(driver, require_secondary=False, enable_syphon=True)
        assert time.monotonic() - began_s < 6
        client = pair.primary.create_queue_client(orders)
        await client.send(BrokeredMessage(b"1"))
        assert pair.primary.health(orders).backlog_error
    await eventually(lambda: pair.options.backlog_queue_count == 2)
    assert pair.primary.health(orders).backlog_error == ""
    pair.primary.force_failover(orders)
    await client.send(BrokeredMessage(b"2"))
    pair.primary.mark_path_healthy(orders)
    queue = servicebus_pair.primary.machine(orders)
    await eventually(lambda: queue.active_count == 2, "the syphon")


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_a_name_that_is_not_known_is_an_unreachable_secondary(
    servicebus_pair: NamespacePairFixture, driver: Any
) -> None:
    """P19: DNS fails."""
    orders = servicebus_pair.primary.queue("orders")
    nowhere = (
        "Endpoint=sb://nowhere.invalid;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0;"
        "UseDevelopmentEmulator=true"
    )
    home = MessagingFactory.from_connection_string(
        servicebus_pair.primary.connection_string, driver=driver
    )
    away = MessagingFactory.from_connection_string(nowhere, driver=driver)
    manager = NamespaceManager.from_connection_string(nowhere)
    options = SendAvailabilityPairedNamespaceOptions(manager, away, require_secondary=False)
    pair = Paired(home, away, options)
    try:
        await home.pair_namespace(options)
        await home.create_queue_client(orders).send(BrokeredMessage(b"1"))
        assert pair.names == ["backlog-unreachable"]
    finally:
        await home.close()
        await away.close()


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_a_pair_that_waits_for_a_black_hole_is_closed_soon(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: Any
) -> None:
    """L2, P19: in the middle of a question that has no answer."""
    with servicebus_pair.secondary.outage("black-hole"):
        pair = await open_pair(driver, require_secondary=False)
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        await pair.primary.close()
        await pair.secondary.close()
        assert time.monotonic() - began_s < 5
    assert not tasks_left()

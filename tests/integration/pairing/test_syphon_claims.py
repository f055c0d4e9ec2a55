"""A hosted syphon that lacks a claim: an error when that can be known, otherwise an event (P18)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.access import connection_string_with
from tests.support.pairing.fake_namespace import FakeNamespace
from tests.support.pairing.pairs import OpenFakePair, Paired, eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.broker.access.rules import Claim
from twinbus.errors import AccessRefused, CommunicationError
from twinbus.failover.backoff import Backoff
from twinbus.mover.mover import LocalSyphon
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.testing import NamespacePairFixture

DRIVERS = ["amqp", "servicebus"]
BACKLOG = "home/x-servicebus-transfer/{}"

Make = Callable[..., Awaitable[Paired]]


@pytest.fixture
async def make(servicebus_pair: NamespacePairFixture) -> AsyncIterator[Make]:
    """Two factories with these claims, and the options of a pair whose manager may do all."""
    async with AsyncExitStack() as stack:

        async def made(
            driver: Any = "amqp",
            *,
            primary: Claim = Claim.SEND | Claim.LISTEN,
            secondary: Claim = Claim.SEND | Claim.LISTEN,
            **chosen: Any,
        ) -> Paired:
            home, away = (
                MessagingFactory.from_connection_string(
                    connection_string_with(bus, claims), driver=driver
                )
                for bus, claims in (
                    (servicebus_pair.primary, primary),
                    (servicebus_pair.secondary, secondary),
                )
            )
            stack.push_async_callback(away.close)
            stack.push_async_callback(home.close)
            manager = NamespaceManager.from_connection_string(
                servicebus_pair.secondary.connection_string
            )
            chosen = {
                "backlog_queue_count": 2,
                "enable_syphon": True,
                "namespace_name": "home",
                "syphon": SyphonHosting("local"),
                **chosen,
            }
            return Paired(
                home, away, SendAvailabilityPairedNamespaceOptions(manager, away, **chosen)
            )

        yield made


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_syphon_without_listen_on_the_backlog_is_refused(make: Make, driver: Any) -> None:
    """P18: from pair_namespace, with namespace, queue and claim."""
    pair = await make(driver, secondary=Claim.SEND)
    with pytest.raises(AccessRefused) as raised:
        await pair.primary.pair_namespace(pair.options)
    told = str(raised.value)
    assert "Listen claim" in told and BACKLOG.format(0) in told
    assert str(pair.secondary.address) in told and raised.value.path == BACKLOG.format(0)
    assert "enable_syphon" in raised.value.hint
    assert not pair.primary.is_paired


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("known", ["client", "allowed"])
async def test_a_syphon_without_send_on_the_primary_is_refused(
    make: Make, servicebus_pair: NamespacePairFixture, driver: Any, known: str
) -> None:
    """P18: where a destination is known, because it is used or because no other is allowed."""
    orders = servicebus_pair.primary.queue("orders")
    allowed = ("orders", "b*") if known == "allowed" else ("*",)
    pair = await make(driver, primary=Claim.LISTEN, allowed_destinations=allowed)
    if known == "client":
        pair.primary.create_queue_client(orders)
    with pytest.raises(AccessRefused) as raised:
        await pair.primary.pair_namespace(pair.options)
    told = str(raised.value)
    assert "Send claim" in told and repr(orders) in told
    assert str(pair.primary.address) in told


@pytest.mark.parametrize("driver", DRIVERS)
async def test_who_hosts_no_syphon_needs_neither(make: Make, driver: Any) -> None:
    """P18: a sender may do with Send."""
    pair = await make(driver, secondary=Claim.SEND, enable_syphon=False)
    await pair.primary.pair_namespace(pair.options)
    assert pair.options.backlog_queue_count == 2


async def test_a_destination_that_is_not_allowed_is_not_asked(
    make: Make, servicebus_pair: NamespacePairFixture
) -> None:
    """P18: the syphon would never send there."""
    orders = servicebus_pair.primary.queue("orders")
    pair = await make(primary=Claim.LISTEN, allowed_destinations=("bills*",))
    pair.primary.create_queue_client(orders)
    await pair.primary.pair_namespace(pair.options)


async def test_a_destination_that_refuses_is_told_with_the_first_message(
    make: Make, servicebus_pair: NamespacePairFixture
) -> None:
    """P18: nobody knew it before; not after a minute, and with the cause."""
    orders = servicebus_pair.primary.queue("orders")
    pair = await make(primary=Claim.LISTEN)
    await pair.primary.pair_namespace(pair.options)
    sender = pair.primary.create_message_sender(orders)
    pair.primary.force_failover(orders)
    began_s = time.monotonic()
    await sender.send(BrokeredMessage(b"1"))
    await pair.until_told("claim-missing")
    assert time.monotonic() - began_s < 10
    facts = next(each for each in pair.told if each.name == "claim-missing").to_dict()
    assert facts["claim"] == "Send" and facts["path"] == orders
    assert facts["namespace"] == str(pair.primary.address)
    await asyncio.sleep(2.5)
    assert pair.names.count("claim-missing") == 1


async def test_a_claim_that_is_taken_away_is_told_once_for_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P18: soon, and not after a minute of standstill."""
    monkeypatch.setattr("twinbus.mover.mover.STALL_CHECK_S", 0.02)
    away, queue = FakeNamespace("fabrikam"), "contoso/x-servicebus-transfer/0"
    told: list[tuple[str, str]] = []
    options = MoverOptions(
        rules=DeliveryRules(primary_name="contoso"),
        poll_s=0.02,
        backoff=Backoff(first_s=0.02, last_s=0.05),
    )
    syphon = LocalSyphon(
        FakeNamespace("contoso"),
        away,
        [queue],
        options,
        on_refused=lambda *missing: told.append(missing),
    )
    syphon.start()
    for times in (1, 2):
        away.refuses_to_listen = True
        await eventually(lambda times=times: told == [(queue, "Listen")] * times)  # type: ignore[misc]
        await asyncio.sleep(0.2)
        assert len(told) == times
        away.refuses_to_listen = False
        await asyncio.sleep(1.5)
    await syphon.stop()


async def test_a_pair_that_completes_itself_does_so_without_its_syphon(
    open_fake_pair: OpenFakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P18, P19: sends are worth more than the syphon; the missing claim is an event."""
    monkeypatch.setattr("twinbus.pairing.pair_completion.PAUSE_S", 0.02)
    pair = await open_fake_pair(is_paired=False, enable_syphon=True, require_secondary=False)
    pair.away.answer("*", CommunicationError("nobody answers", was_sent=False))
    await pair.primary.pair_namespace(pair.options)
    pair.away.answer("*", None)
    pair.away.refuses_to_listen = True
    await pair.until_told("backlog-ready")
    await pair.until_told("claim-missing")
    assert pair.options.backlog_queue_count == 3
    assert pair.told[-1].to_dict()["claim"] == "Listen"

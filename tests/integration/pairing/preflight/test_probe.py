"""Looking at real namespaces: what is seen, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.access import connection_string_with
from twinbus.broker.access.rules import Claim
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.administration import AdministrationClient
from twinbus.drivers.amqp import AmqpDriver
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityNotFound,
)
from twinbus.pairing.backlog_queues import backlog_paths, backlog_queue
from twinbus.pairing.preflight import (
    ExpectedLoad,
    NamespaceAccess,
    Observations,
    collect_observations,
    probe,
    run_checks,
)
from twinbus.pairing.preflight.model import Severity
from twinbus.testing.namespaces import NamespaceFixture, NamespacePairFixture

EXPECTATION = ExpectedLoad(backlog_queue_count=2)
PATHS = backlog_paths("primary", 2)


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def ends(stack: AsyncExitStack, connection_string: str) -> NamespaceAccess:
    driver = AmqpDriver.from_connection_string(connection_string)
    stack.push_async_callback(driver.close)
    parsed = parse_connection_string(connection_string)
    return NamespaceAccess(
        driver, AdministrationClient.from_connection_string(parsed, timeout_s=10)
    )


async def seen(stack: AsyncExitStack, primary: str, secondary: str, **options: Any) -> Observations:
    return await collect_observations(
        ends(stack, primary),
        ends(stack, secondary),
        expectation=EXPECTATION,
        timeout_s=10,
        **options,
    )


async def provide_backlog(stack: AsyncExitStack, bus: NamespaceFixture) -> None:
    for path in PATHS:
        await ends(stack, bus.connection_string).management.create_queue(backlog_queue(path))


def texts(pair: NamespacePairFixture) -> tuple[str, str]:
    return pair.primary.connection_string, pair.secondary.connection_string


async def test_a_good_pair_is_ready(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    servicebus_pair.primary.queue("orders")
    servicebus_pair.primary.topic("news")
    await provide_backlog(opened, servicebus_pair.secondary)

    facts = await seen(opened, *texts(servicebus_pair))

    assert facts.primary_name == "primary"
    assert [each.path for each in facts.entities] == ["orders", "news"]
    assert [each.path for each in facts.backlog] == list(PATHS)
    assert [ping.was_seen for ping in facts.pings] == [False], "M7: our broker swallows pings"
    report = run_checks(facts)
    assert report.is_ready, report
    # Both are on this machine, which a test cannot help.
    warnings = [each.check for each in report.findings if each.severity is Severity.WARNING]
    assert warnings == ["same-place"]


async def test_nothing_is_left_behind(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    queue = servicebus_pair.primary.queue("orders")
    await seen(opened, *texts(servicebus_pair), entities=["orders"])
    client = ends(opened, servicebus_pair.primary.connection_string).management
    assert [each.path async for each in client.list_queues()] == ["orders"]
    assert queue.active_message_count == 0
    other = ends(opened, servicebus_pair.secondary.connection_string).management
    assert [each.path async for each in other.list_queues()] == []


async def test_claims_are_seen_one_by_one(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    """P5: which claim is missing where."""
    await provide_backlog(opened, servicebus_pair.secondary)
    servicebus_pair.primary.queue("orders")
    listener = connection_string_with(servicebus_pair.primary, Claim.LISTEN)
    sender = connection_string_with(servicebus_pair.secondary, Claim.SEND)

    facts = await seen(opened, listener, sender, entities=["orders"], primary_name="primary")

    assert facts.primary.amqp is None and facts.secondary.amqp is None
    assert isinstance(facts.primary.management, AccessRefused)
    assert isinstance(facts.entities[0].send, AccessRefused)
    assert [each.send for each in facts.backlog] == [None, None]
    assert all(isinstance(each.listen, AccessRefused) for each in facts.backlog)
    problems = {
        each.check for each in run_checks(facts).findings if each.severity is Severity.PROBLEM
    }
    assert problems == {"entities", "claims"}


async def test_a_named_queue_is_pinged_when_none_can_be_made(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    queue = servicebus_pair.primary.queue("orders")
    worker = connection_string_with(servicebus_pair.primary, Claim.SEND | Claim.LISTEN)
    facts = await seen(
        opened,
        worker,
        servicebus_pair.secondary.connection_string,
        entities=["orders"],
        primary_name="primary",
    )
    assert [(ping.path, ping.was_seen) for ping in facts.pings] == [("orders", False)]
    assert queue.active_message_count == 0


async def test_a_ping_that_is_handed_out_is_found(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: a service that takes a ping for a message."""
    # Given a message that our broker does not take for a ping
    real = probe.ping
    other = b"application/vnd.ms-servicebus-pong"
    monkeypatch.setattr(
        probe, "ping", lambda mark: real(mark).replace(b"application/vnd.ms-servicebus-ping", other)
    )
    facts = await seen(opened, *texts(servicebus_pair))
    assert [ping.was_seen for ping in facts.pings] == [True]


async def test_pings_can_be_left_out(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    facts = await seen(opened, *texts(servicebus_pair), may_ping=False)
    assert facts.pings == ()


async def test_missing_queues_and_entities_are_seen(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    facts = await seen(opened, *texts(servicebus_pair), entities=["nothing"])
    assert isinstance(facts.entities[0].send, EntityNotFound)
    assert all(isinstance(each.send, EntityNotFound) for each in facts.backlog)


@pytest.mark.parametrize("role", ["primary", "secondary"])
async def test_a_namespace_that_is_away_is_seen_to_be(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack, role: str
) -> None:
    """F5: cannot contact."""
    bus: NamespaceFixture = getattr(servicebus_pair, role)
    with bus.outage("refused"):
        facts = await seen(opened, *texts(servicebus_pair), primary_name="primary")
    namespace = facts.primary if role == "primary" else facts.secondary
    assert isinstance(namespace.amqp, CommunicationError)
    assert isinstance(namespace.management, CommunicationError)
    assert namespace.clock_ahead_s is None
    assert not run_checks(facts).is_ready


async def test_a_wrong_key_is_seen_to_be(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    primary, secondary = texts(servicebus_pair)
    key = parse_connection_string(secondary).shared_access_key or ""
    facts = await seen(opened, primary, secondary.replace(key, "bm90IHRoZSBrZXk="))
    assert isinstance(facts.secondary.amqp, AuthenticationFailed)
    assert not run_checks(facts).is_ready
    told = str(run_checks(facts).to_json())
    assert "bm90IHRoZSBrZXk=" not in told and key not in told


async def test_one_namespace_twice_is_seen(
    servicebus_pair: NamespacePairFixture, opened: AsyncExitStack
) -> None:
    """P3: pairing with itself is refused."""
    primary, _ = texts(servicebus_pair)
    report = run_checks(await seen(opened, primary, primary))
    assert [each.check for each in report.findings if each.severity is Severity.PROBLEM] == [
        "same-place"
    ]

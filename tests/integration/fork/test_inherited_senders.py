"""Senders, factories and clients that a child has from its parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fork.conftest import RunProgram, bodies
from tests.support.broker_process import BrokerProcess
from twinbus.testing import NamespacePairFixture

MESSAGES = 12
SENDERS = ("child 0", "child 1", "parent after", "parent before", "parent beside")


@pytest.mark.parametrize("how", ["whole", "hard"])
@pytest.mark.parametrize("kind", ["drop-in", "servicebus", "amqp"])
def test_what_parent_and_children_send_is_stored_once(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram, kind: str, how: str
) -> None:
    """P27: by one sender that all of them use; nothing is printed, however a child ends."""
    servicebus_pair.primary.queue("orders")
    run_program("senders", kind, how)
    expected = sorted(f"{who} {number}" for who in SENDERS for number in range(MESSAGES))
    assert bodies(servicebus_pair.primary, "orders") == expected


@pytest.mark.parametrize("kind", ["drop-in", "amqp"])
def test_children_send_to_the_backlog_once_while_the_primary_is_away(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram, kind: str
) -> None:
    """P27, P17: they begin as processes that start during an outage."""
    servicebus_pair.primary.queue("orders")
    with servicebus_pair.primary.outage("refused"):
        run_program("senders", kind, "whole")
    expected = sorted(f"{who} {number}" for who in SENDERS for number in range(MESSAGES))
    assert _backlog(servicebus_pair) == expected


@pytest.mark.parametrize("kind", ["drop-in", "servicebus", "amqp"])
def test_a_child_with_a_new_client_prints_nothing_while_the_backlog_holds_messages(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram, kind: str
) -> None:
    """P27: what the parent was doing when it forked ends without a word."""
    servicebus_pair.primary.queue("orders")
    with servicebus_pair.primary.outage("refused"):
        run_program("new_client", kind)
    assert _backlog(servicebus_pair) == ["child", "parent", "parent again"]


@pytest.mark.parametrize("kind", ["drop-in", "servicebus", "amqp"])
def test_a_parent_may_fork_while_its_threads_send(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram, kind: str
) -> None:
    """P27: whatever lock a thread held at that moment."""
    orders = servicebus_pair.primary.queue("orders")
    count = int(run_program("busy_parent", kind))
    assert orders.active_message_count == count


@pytest.mark.parametrize(
    "what", ["receiver", "events", "embedded", "closed", "loop", "loop_drop_in"]
)
def test_what_else_a_child_inherits(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram, what: str
) -> None:
    """P27: see the program, where each of them is a function."""
    servicebus_pair.primary.queue("orders")
    run_program("inherited", what)


def _backlog(pair: NamespacePairFixture) -> list[str]:
    return sorted(
        body
        for index in range(2)
        for body in bodies(pair.secondary, f"home/x-servicebus-transfer/{index}")
    )


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
def test_the_connection_of_the_parent_outlives_its_children(
    environment: dict[str, str], run_program: RunProgram, tmp_path: Path, driver: str
) -> None:
    """P27: over TLS, where one byte from a child, or its goodbye, would be the end of it."""
    with BrokerProcess(tmp_path / "data", queues=("orders",)) as broker:
        environment["SERVICEBUS_CONNECTION_STRING"] = broker.tls_connection_string
        assert run_program("connections", driver, str(broker.ca_path)) == "4\n"

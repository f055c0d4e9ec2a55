"""Batches that fit, pings that are pings, and destinations that are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.roundtrip import BACKLOG
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.amqp.message.message import DataSections, Message
from twinbus.broker.server.ingest import ingest
from twinbus.common.clock import Instant
from twinbus.encoding.batching import (
    BATCH_ENVELOPE_BYTES_MAX,
    ranges_that_fit,
    size_in_batch,
    split_to_fit,
)
from twinbus.encoding.ping import ping
from twinbus.errors import EnvelopeError
from twinbus.mover.planning.chunk_plan import check_destination

# --- batches -----------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 6_000), max_size=60), limit=st.integers(3_000, 20_000))
def test_every_message_is_in_one_batch_and_every_batch_fits(sizes: list[int], limit: int) -> None:
    """P13: a batch that outgrows the limit is split, in order."""
    ranges = ranges_that_fit(sizes, limit)

    assert [index for part in ranges for index in part] == list(range(len(sizes)))
    for part in ranges:
        size = BATCH_ENVELOPE_BYTES_MAX + sum(size_in_batch(sizes[index]) for index in part)
        assert len(part) == 1 or size <= limit


def test_a_batch_is_as_large_as_it_can_be() -> None:
    """P13: it is split where it must be and nowhere else."""
    room = 10 * size_in_batch(1_000)
    messages = [b"x" * 1_000] * 25

    batches = split_to_fit(messages, BATCH_ENVELOPE_BYTES_MAX + room)

    assert [len(batch) for batch in batches] == [10, 10, 5]


def test_a_message_that_no_batch_can_hold_stands_alone() -> None:
    """P13: so that the refusal concerns nobody else."""
    small, large = b"x", b"x" * 5_000

    assert split_to_fit([small, large, small, small], 4_000) == [[small], [large], [small, small]]
    assert split_to_fit([], 4_000) == []


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_the_size_in_a_batch_is_what_a_data_section_takes(size: int) -> None:
    """P13: the heads count as well."""
    batch = Message(body=DataSections((b"x" * size, b"y" * size))).encode()

    assert len(batch) == 2 * size_in_batch(size)


# --- pings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ["s-1", "é" * 128])
def test_our_broker_takes_a_ping_for_a_ping(session_id: str) -> None:
    """M7: it is counted and nothing is stored."""
    now = Instant(monotonic_s=0.0, wall_ms=0)

    taken = ingest(ping(session_id), 0, BACKLOG, DEFAULT_LIMITS, now)

    assert (taken.ping_count, taken.messages) == (1, [])


# --- destinations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "$management",
        "$cbs",
        "orders/$deadletterqueue",
        "orders/$Management",
        "../other",
        "orders/../other",
        "/orders",
        "orders/",
        "sb://evil.example/orders",
        "amqps://evil.example:5671/orders",
        "//evil.example/orders",
        "user@evil.example",
        "evil.example:5671/orders",
        "orders?x=1",
        "orders\x00",
        "orders\r\nHost: evil",
        "%2e%2e/orders",
        "ordеrs",  # noqa: RUF001 - a Cyrillic letter is the point
        "q" * 261,
        "",
        "contoso/x-servicebus-transfer/0",
        "Fabrikam/X-ServiceBus-Transfer/7",
        "a/b/x-servicebus-transfer/0/c",
    ],
)
def test_a_destination_that_is_no_plain_entity_is_refused(path: str) -> None:
    """Y6: no host, nothing of the broker's own, no backlog queue, whoever asks for it."""
    with pytest.raises(EnvelopeError) as caught:
        check_destination(path, primary_name="contoso")

    assert caught.value.reason == "destination-not-allowed"
    assert caught.value.description.isascii()
    assert len(caught.value.description) < 400


def test_only_destinations_on_the_list_are_allowed() -> None:
    """Y6: compared without regard to case, and never by a part of the name."""
    allowed = ("Orders", "billing/*")

    assert check_destination("ORDERS", allowed=allowed, primary_name="contoso") == "orders"
    assert check_destination("billing/a/b", allowed=allowed, primary_name="c") == "billing/a/b"
    for path in ("orders2", "my/orders", "billing", "orders/x"):
        with pytest.raises(EnvelopeError, match="not on the list"):
            check_destination(path, allowed=allowed, primary_name="contoso")


def test_every_entity_is_allowed_unless_a_list_says_otherwise() -> None:
    """Y6: the list is the operator's to write."""
    assert check_destination("Any/Thing", primary_name="contoso") == "any/thing"
    with pytest.raises(EnvelopeError):
        check_destination("anything", allowed=(), primary_name="contoso")


def test_a_hostile_path_cannot_make_the_patterns_slow() -> None:
    """Y6: the time is linear, whatever the pattern and the path."""
    path = "a" * 260

    with pytest.raises(EnvelopeError):
        check_destination(path, allowed=("*a*a*a*a*a*a*a*a*b",), primary_name="contoso")

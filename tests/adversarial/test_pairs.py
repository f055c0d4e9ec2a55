"""Pairs that cannot be, and messages that fit the primary and no backlog queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.common.connection_string import parse_connection_string
from twinbus.encoding.brokered_message import encode_message
from twinbus.encoding.envelope import overhead_bytes
from twinbus.errors import ConfigurationError, MessageTooLarge, TooLargeForBacklog

MESSAGE_BYTES_MAX = 262_144
KEY = "SharedAccessKeyName=root;SharedAccessKey=a2V5"
# The envelope's overhead is between these two, for any message and any path.
OVERHEAD_BYTES_MIN, OVERHEAD_BYTES_MAX = 26, 463


def paired_options(secondary: MessagingFactory, *arguments: Any, **options: Any) -> Any:
    return SendAvailabilityPairedNamespaceOptions(None, secondary, *arguments, **options)


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("sb://contoso.example", "sb://contoso.example"),
        ("sb://contoso.example", "sb://CONTOSO.example/"),
        ("sb://contoso.example", "sb://contoso.example:5671"),
        ("amqps://contoso.example", "sb://contoso.example"),
        ("amqp://localhost", "amqp://localhost:5672"),
        ("sb://[::1]:5671", "sb://[0:0:0:0:0:0:0:1]"),
        ("amqp://localhost:5673", "amqp://127.0.0.1:5673"),
    ],
)
async def test_case_13_a_namespace_is_never_its_own_secondary(
    first: str, second: str, driver: Any
) -> None:
    """P3: however its address is written, and before anything is contacted."""
    primary, secondary = (
        MessagingFactory.from_connection_string(f"Endpoint={each};{KEY}", driver=driver)
        for each in (first, second)
    )
    with pytest.raises(ConfigurationError, match="another namespace"):
        await primary.pair_namespace(paired_options(secondary))
    assert not primary.is_paired and not secondary.is_secondary
    await primary.close()
    await secondary.close()


@pytest.mark.parametrize(
    "count",
    [0, -1, 10**9, float("nan"), float("inf"), 1.5, True, "10", None],
    ids=lambda count: f"case-24-{count!r}",
)
async def test_a_number_of_backlog_queues_is_one_that_can_be_made(count: Any) -> None:
    """P2: refused when the options are built, not queue by queue on the secondary."""
    secondary = MessagingFactory.from_connection_string(f"Endpoint=sb://h;{KEY}", driver="amqp")
    with pytest.raises(ConfigurationError, match="backlog_queue_count"):
        paired_options(secondary, count)
    await secondary.close()


# -- sizes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secondary_broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(None, namespace="secondary") as running:
        yield running


@pytest.fixture(params=["amqp", "servicebus"])
async def primary(
    request: pytest.FixtureRequest, broker: BrokerProcess, secondary_broker: BrokerProcess
) -> AsyncIterator[MessagingFactory]:
    """A paired factory."""
    strings = (broker.connection_string, secondary_broker.connection_string)
    home, away = (
        MessagingFactory.from_connection_string(text, driver=request.param) for text in strings
    )
    async with home, away, NamespaceManager.from_connection_string(strings[1]) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            manager, away, 1, namespace_name=f"size-{request.param}"
        )
        await home.pair_namespace(options)
        yield home


def message_of(size_bytes: int) -> BrokeredMessage:
    """A message that is so many bytes long when it is encoded."""
    message = BrokeredMessage(bytes(size_bytes - 200), message_id="size")
    return BrokeredMessage(
        bytes(size_bytes - 200 + size_bytes - len(encode_message(message))), message_id="size"
    )


@pytest.mark.parametrize("is_diverted", [False, True], ids=["at home", "diverted"])
@pytest.mark.parametrize("below", [0, 1, 25, 26, 27, 70, 90, 110, 331, 332, 333, 462, 463, 464])
async def test_case_26_what_no_backlog_queue_takes_is_refused_in_every_state(
    primary: MessagingFactory, broker: BrokerProcess, below: int, is_diverted: bool
) -> None:
    """P13: typed, with the limit, the size and the overhead; never only in an outage."""
    queue = broker.fresh_queue()
    message = message_of(MESSAGE_BYTES_MAX - below)
    encoded = encode_message(message)
    assert len(encoded) == MESSAGE_BYTES_MAX - below
    backlog = primary.routing.backlog
    assert backlog is not None and backlog.owner
    overhead = overhead_bytes(encoded, queue, backlog.owner)
    assert OVERHEAD_BYTES_MIN <= overhead <= OVERHEAD_BYTES_MAX
    sender = primary.create_message_sender(queue)
    if is_diverted:
        primary.force_failover(queue)

    if below >= overhead:
        await sender.send(message)
    else:
        with pytest.raises(TooLargeForBacklog) as refused:
            await sender.send(message)
        error = refused.value
        assert isinstance(error, MessageTooLarge)
        assert (error.limit_bytes, error.size_bytes) == (MESSAGE_BYTES_MAX, len(encoded))
        assert error.overhead_bytes == overhead
    stored = broker.queue(queue)["active_message_count"]
    assert stored == (below >= overhead and not is_diverted)


async def test_case_26_an_unpaired_sender_may_fill_its_message_to_the_brim(
    broker: BrokerProcess,
) -> None:
    """P13: the overhead counts for those who want a way round."""
    queue = broker.fresh_queue()
    parsed = parse_connection_string(broker.connection_string)
    factory = MessagingFactory.from_connection_string(parsed.to_text(), driver="amqp")
    async with factory:
        await factory.create_message_sender(queue).send(message_of(MESSAGE_BYTES_MAX))
    assert broker.queue(queue)["active_message_count"] == 1

"""Pings (rule M7), sent with the stock client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, bodies, nothing_comes, receive

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def ping(body: bytes | None = b"", **properties: Any) -> ServiceBusMessage:
    settings: dict[str, Any] = {"time_to_live": timedelta(seconds=1), **properties}
    return ServiceBusMessage(body, content_type=PING_CONTENT_TYPE, **settings)


async def test_a_ping_is_accepted_and_handed_to_nobody(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M7: not by receive, peek, counts or dead-letter; a session id changes nothing."""
    queue = make_queue(dead_lettering_on_expiration=True)
    before = broker.counts(queue)
    receiver = sdk.receiver(queue)

    await sdk.send(queue, ping(), ping(None), ping(session_id="session"), [ping(), ping()])

    assert broker.counts(queue) == before
    assert await receiver.peek_messages(10) == []
    assert await nothing_comes(receiver)
    # A second later it is not in the dead-letter queue either
    assert await nothing_comes(sdk.dead_letters(queue))
    assert broker.counts(queue) == before


async def test_a_ping_takes_no_place_in_the_sequence(sdk: Sdk, queue: str) -> None:
    """M7: messages sent with pings in one batch arrive as if there were none."""
    await sdk.send(queue, ping(), [ping(), ServiceBusMessage("a"), ping(), ServiceBusMessage("b")])

    received = await receive(sdk.receiver(queue), 2)
    assert bodies(received) == ["a", "b"]
    assert [message.sequence_number for message in received] == [1, 2]


async def test_what_only_looks_like_a_ping_is_refused(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M7: with a body it would be a message, and swallowing it would lose it."""
    sender = sdk.sender(queue)
    pretender = ping(b"content")

    for message in (pretender, [pretender], [ServiceBusMessage("fine"), pretender]):
        with pytest.raises(ServiceBusError, match="ping"):
            await sender.send_messages(message, timeout=SEND_TIMEOUT_S)
    # A batch is taken whole or not at all
    assert broker.queue(queue)["active_message_count"] == 0
    await sender.send_messages(ServiceBusMessage("goes on"), timeout=SEND_TIMEOUT_S)
    assert broker.queue(queue)["active_message_count"] == 1


async def test_a_ping_is_refused_where_a_message_would_be(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M7: it is treated like any message, so that its success means something."""
    with pytest.raises(ServiceBusError):
        await sdk.send(make_queue(status="SendDisabled"), ping())


async def test_the_content_type_alone_decides(sdk: Sdk, queue: str) -> None:
    """M7: other messages may be empty and short-lived, or speak of the content type."""
    await sdk.send(
        queue,
        ServiceBusMessage(b"", time_to_live=timedelta(minutes=1)),
        ServiceBusMessage(PING_CONTENT_TYPE, subject=PING_CONTENT_TYPE),
        ServiceBusMessage(b"", content_type=f"{PING_CONTENT_TYPE}er"),
    )
    assert len(await receive(sdk.receiver(queue), 3)) == 3

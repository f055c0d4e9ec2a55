"""Times and counts at their limits and beyond (cases 89 to 91)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.adversarial.guards import wait_until
from tests.adversarial.talk import put, take
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Timestamp
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Header, Properties

YEAR_9999_MS = 253_402_300_799_999
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    return broker.fresh_queue()


def with_ttl(ttl_ms: int, *, created_ms: int | None = None, expires_ms: int | None = None) -> bytes:
    properties = Properties(creation_time=created_ms, absolute_expiry_time=expires_ms)
    return Message(header=Header(ttl_ms=ttl_ms), properties=properties, body=b"x").encode()


UINT32_MAX = 2**32 - 1
# A time to live of more than 49 days travels as the largest uint and two timestamps.
SHORTEST: dict[str, Callable[[], bytes]] = {
    "case-89-zero": lambda: with_ttl(0),
    "case-89-negative": lambda: with_ttl(UINT32_MAX, created_ms=10**13, expires_ms=10**12),
    "case-89-most-negative": lambda: with_ttl(
        UINT32_MAX, created_ms=INT64_MAX, expires_ms=INT64_MIN
    ),
}


@pytest.mark.parametrize("kind", SHORTEST)
@pytest.mark.parametrize("dead_letters", [False, True], ids=["dropped", "dead-lettered"])
def test_a_message_with_no_time_to_live_is_never_handed_out(
    broker: BrokerProcess, client: WireClient, kind: str, dead_letters: bool
) -> None:
    """M3: it is accepted and has expired at once."""
    queue = broker.fresh_queue(dead_lettering_on_expiration=dead_letters)
    receiver = client.attach_receiver(queue)
    receiver.grant(10)
    assert client.send(client.attach_sender(queue), SHORTEST[kind]()) == Accepted()
    wait_until(
        lambda: broker.queue(queue)["active_message_count"] == 0,
        lambda: f"it did not expire: {broker.counts(queue)}",
    )
    client.pump()
    assert not [event for event in client.events if isinstance(event, DeliveryReceived)]
    assert broker.queue(queue)["dead_letter_message_count"] == dead_letters


@pytest.mark.parametrize(
    ("created_ms", "expires_ms"),
    [
        pytest.param(None, None, id="case-89-largest-uint"),
        pytest.param(0, INT64_MAX, id="case-89-2-to-the-63"),
        pytest.param(INT64_MIN, INT64_MAX, id="case-89-2-to-the-64"),
        pytest.param(None, INT64_MAX, id="case-89-no-creation"),
    ],
)
def test_a_time_to_live_beyond_the_calendar_is_for_ever(
    client: WireClient, queue: str, created_ms: int | None, expires_ms: int | None
) -> None:
    """M3: no overflow on the way in or out."""
    payload = with_ttl(UINT32_MAX, created_ms=created_ms, expires_ms=expires_ms)
    assert client.send(client.attach_sender(queue), payload) == Accepted()
    (event,) = take(client, queue)
    assert Message.decode(event.payload).body == b"x"
    client.complete(event.delivery_id)


def test_case_89_a_message_can_expire_before_it_is_due(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: the time to live begins when it becomes visible, also in the last second there is."""
    message = Message(
        header=Header(ttl_ms=1),
        message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(YEAR_9999_MS)},
        body=b"x",
    )
    assert client.send(client.attach_sender(queue), message.encode()) == Accepted()
    assert broker.counts(queue)["scheduled_message_count"] == 1


BAD_PROPERTIES = {
    "case-89-default-ttl-zero": {"default_ttl_ms": 0},
    "case-89-default-ttl-negative": {"default_ttl_ms": -1},
    "case-89-default-ttl-2-to-the-63": {"default_ttl_ms": 2**63},
    "case-89-default-ttl-10-to-the-400": {"default_ttl_ms": 10**400},
    "case-89-default-ttl-float": {"default_ttl_ms": 1.5},
    "case-89-default-ttl-infinite": {"default_ttl_ms": float("inf")},
    "case-89-default-ttl-nan": {"default_ttl_ms": float("nan")},
    "case-89-default-ttl-text": {"default_ttl_ms": "PT1S"},
    "case-90-lock-of-1-ms": {"lock_duration_ms": 1},
    "case-90-lock-below-a-second": {"lock_duration_ms": 999},
    "case-90-lock-above-5-min": {"lock_duration_ms": 300_001},
    "case-90-lock-zero": {"lock_duration_ms": 0},
    "case-90-lock-negative": {"lock_duration_ms": -60_000},
    "case-90-lock-2-to-the-63": {"lock_duration_ms": 2**63},
    "case-90-lock-float": {"lock_duration_ms": 60_000.5},
    "case-90-lock-null": {"lock_duration_ms": None},
    "case-90-lock-boolean": {"lock_duration_ms": True},
    "case-91-delivery-count-zero": {"max_delivery_count": 0},
    "case-91-delivery-count-beyond-int": {"max_delivery_count": 2**31},
    "case-91-delivery-count-float": {"max_delivery_count": 1e9},
}


@pytest.mark.parametrize("kind", BAD_PROPERTIES)
def test_a_queue_with_an_impossible_property_is_not_made(broker: BrokerProcess, kind: str) -> None:
    """M2, M3: 400, naming the property and its range."""
    name = f"queue-{uuid4().hex[:12]}"
    token = broker.token(port=broker.admin_port)
    body: dict[str, Any] = BAD_PROPERTIES[kind]
    status, told = broker.http("PUT", f"/namespaces/demo/queues/{name}", body, token=token)
    assert status == 400
    assert_well_put(told["error"])
    assert next(iter(body)) in told["error"]
    assert name not in str(broker.admin("GET", "/namespaces/demo/queues"))


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"lock_duration_ms": 1_000}, id="case-90-one-second"),
        pytest.param({"lock_duration_ms": 300_000}, id="case-90-five-minutes"),
        pytest.param({"max_delivery_count": 2**31 - 1}, id="case-91-int-max"),
        pytest.param({"default_ttl_ms": 922_337_203_685_477}, id="case-89-longest-timespan"),
    ],
)
def test_a_property_at_its_limit_works(
    broker: BrokerProcess, client: WireClient, properties: dict[str, int]
) -> None:
    """M2, M3: not only is it kept, messages go in and out."""
    queue = broker.fresh_queue(**properties)
    assert broker.queue(queue).items() >= properties.items()
    put(client, queue, b"x")
    client.complete(take(client, queue)[0].delivery_id)

"""Messages that pretend to be pings (case 116): whoever swallowed one would lose it in silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adversarial.backlog import SEND_ONLY, Backlog
from tests.support.mover.brokers import TIMEOUT_S
from tests.support.wire_client import connected
from twinbus.amqp.codec.types import Long
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import MessageRefused

PING = "application/vnd.ms-servicebus-ping"


def message(name: str, body: bytes, ttl_ms: int | None, **aliases: Any) -> bytes:
    properties = {key.replace("_", "-"): each for key, each in aliases.items()}
    return Message(
        header=None if ttl_ms is None else Header(ttl_ms=ttl_ms),
        properties=Properties(message_id=name, content_type=PING),
        application_properties=properties or None,
        body=body,
    ).encode()


def test_case_116_a_backlog_queue_takes_no_message_that_looks_like_a_ping(
    backlog: Backlog,
) -> None:
    """M7: refused when it is sent, unless it is a ping: empty, and for a second."""
    secondary, queue = backlog.pair.secondary, backlog.queues[0]
    with connected(secondary.port, secondary.token(path=queue, rule=SEND_ONLY)) as client:
        sender = client.attach_sender(queue)
        for body, ttl_ms in ((b"real", 1_000), (b"real", None), (b"", 1_001), (b"", None)):
            state = client.send(sender, message("m", body, ttl_ms, x_ms_path="orders"))
            assert isinstance(state, Rejected), (body, ttl_ms)
        assert client.send(sender, message("m", b"", 1_000, x_ms_path="orders")) == Accepted()
    assert backlog.left() == 0


async def test_case_116_a_detour_makes_no_ping_of_a_message(backlog: Backlog) -> None:
    """M7, P12: an application that uses the content type hears of it, in an outage too."""
    sender = backlog.driver(backlog.pair.secondary).sender(backlog.queues[0])
    for body, ttl_ms in ((b"real", None), (b"", 1_000)):
        detoured = OutgoingMessage(alias(message("m", body, ttl_ms), "orders"))
        with pytest.raises(MessageRefused):
            await sender.send([detoured], timeout_s=TIMEOUT_S)
    assert backlog.left() == 0


@pytest.mark.parametrize("engine", ["mover", "shift"])
async def test_case_116_what_would_be_swallowed_at_home_is_not_brought_home(
    backlog: Backlog, engine: str
) -> None:
    """M7, Y4: a secondary may let such messages in; here a rule gives them their content type."""
    secondary, orders = backlog.pair.secondary, backlog.destination()
    topic = secondary.fresh_topic()
    rule = {
        "name": "disguise",
        "filter": {"kind": "sql", "expression": "1 = 1"},
        "action": {"expression": f"SET sys.ContentType = '{PING}'"},
    }
    secondary.create_subscription(topic, "s", forward_to=backlog.queues[0], rules=[rule])
    disguised = {
        "empty": (b"", {"x-ms-timetolive": Long(1_000)}),
        "lasting": (b"", {}),
        "real": (b"real", {"x-ms-timetolive": Long(1_000)}),
    }
    sender = backlog.driver(secondary).sender(topic)
    for name, (body, aliases) in disguised.items():
        plain = Message(
            properties=Properties(message_id=name),
            application_properties={"x-ms-path": orders, **aliases},
            body=body,
        )
        await sender.send([OutgoingMessage(plain.encode())], timeout_s=TIMEOUT_S)
    good = backlog.surround(orders)
    await backlog.syphon(engine)

    buried = await backlog.buried(3)
    assert {name: each.reason for name, each in buried.items()} == {
        "empty": "looks-like-a-ping",
        "lasting": "message-refused",
        "real": "message-refused",
    }
    assert all(orders in each.description for each in buried.values())
    assert set(await backlog.arrived(orders)) == set(good)
    assert backlog.sent_home() == {orders: len(good)}

"""Bad connection strings at every door of the client: refused by key, and no value is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from twinbus.aio import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.errors import ConnectionStringError

SECRET = "Y2FuYXJ5LWluLXRoZS1jb2FsLW1pbmU="
CREDENTIAL = f"SharedAccessKeyName=root;SharedAccessKey={SECRET}"

DOORS: dict[str, Callable[[str], Any]] = {
    "amqp": lambda text: MessagingFactory.from_connection_string(text, driver="amqp"),
    "servicebus": lambda text: MessagingFactory.from_connection_string(text, driver="servicebus"),
    "manager": NamespaceManager.from_connection_string,
}

# What is wrong, and the key that the error must name; None where there is no key to name.
REFUSED: dict[str, tuple[str, str | None]] = {
    "case-1-empty": ("", None),
    "case-1-only-semicolons": (";;;", None),
    "case-2-no-endpoint": (CREDENTIAL, "Endpoint"),
    "case-3-http": (f"Endpoint=http://h;{CREDENTIAL}", "Endpoint"),
    "case-3-file": (f"Endpoint=file:///etc/passwd;{CREDENTIAL}", "Endpoint"),
    "case-3-ldap": (f"Endpoint=ldap://h;{CREDENTIAL}", "Endpoint"),
    "case-4-a-key-twice": (
        f"Endpoint=sb://h;{CREDENTIAL};SharedAccessKey={SECRET}",
        "SharedAccessKey",
    ),
    "case-6-a-semicolon-inside": (
        f"Endpoint=sb://h;SharedAccessKeyName=root;SharedAccessKey={SECRET};{SECRET}",
        None,
    ),
    "case-6-a-line-feed-inside": (
        f"Endpoint=sb://h;SharedAccessKeyName=root;SharedAccessKey={SECRET}\r\n{SECRET}",
        "SharedAccessKey",
    ),
    "case-7-key-and-signature": (
        f"Endpoint=sb://h;{CREDENTIAL};SharedAccessSignature={SECRET}",
        "SharedAccessKey",
    ),
    "case-9-a-user-before-the-host": (f"Endpoint=sb://a@evil;{CREDENTIAL}", "Endpoint"),
    "case-10-port-0": (f"Endpoint=sb://h:0;{CREDENTIAL}", "Endpoint"),
    "case-10-port-65536": (f"Endpoint=sb://h:65536;{CREDENTIAL}", "Endpoint"),
    "case-10-port-abc": (f"Endpoint=sb://h:abc;{CREDENTIAL}", "Endpoint"),
    "case-11-homoglyph": (f"Endpoint=sb://\u0440aypal.com;{CREDENTIAL}", "Endpoint"),
    "case-11-nul": (f"Endpoint=sb://h\0.com;{CREDENTIAL}", "Endpoint"),
    "case-12-a-megabyte": (f"Endpoint=sb://h;{CREDENTIAL};x={'y' * (1 << 20)}", None),
    "case-14-plain-text-to-elsewhere": (f"Endpoint=amqp://far.example;{CREDENTIAL}", "Endpoint"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_connection_string_opens_no_door(text: str, door: str) -> None:
    written, key = REFUSED[text]
    with pytest.raises(ConnectionStringError) as refused:
        DOORS[door](written)
    assert isinstance(refused.value, ValueError)
    assert refused.value.key == key
    assert key is None or key in str(refused.value)
    assert SECRET not in f"{refused.value} {refused.value!r}"


@pytest.mark.parametrize("door", DOORS)
def test_case_5_an_unknown_key_is_a_warning_without_its_value(door: str) -> None:
    with pytest.warns(UserWarning, match="transporttype") as caught:
        DOORS[door](f"Endpoint=sb://h;{CREDENTIAL};TransportType=canary")
    assert "canary" not in str(caught[0].message)


@pytest.mark.parametrize("door", DOORS)
def test_no_door_shows_the_key_that_opens_it(door: str) -> None:
    assert SECRET not in repr(DOORS[door](f"Endpoint=sb://h;{CREDENTIAL}"))


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_case_6_a_key_that_ends_with_equals_signs_opens_the_door(
    broker: BrokerProcess, driver: Any
) -> None:
    assert broker.root_rule[1].endswith("=")
    queue = broker.fresh_queue()
    factory = MessagingFactory.from_connection_string(broker.connection_string, driver=driver)
    async with factory:
        await factory.create_message_sender(queue).send(BrokeredMessage(b"x"))
    assert broker.queue(queue)["active_message_count"] == 1


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_case_8_a_string_of_one_entity_is_used_for_no_other(driver: Any) -> None:
    text = f"Endpoint=sb://localhost:9;{CREDENTIAL};EntityPath=Orders;UseDevelopmentEmulator=true"
    factory = MessagingFactory.from_connection_string(text, driver=driver)
    factory.create_message_sender("orders")
    factory.create_message_receiver("orders/$DeadLetterQueue")
    factory.create_subscription_client("orders", "all")
    for create in (
        lambda: factory.create_message_sender("bills"),
        lambda: factory.create_topic_client("orders2"),
        lambda: factory.create_message_receiver("bills"),
        lambda: factory.create_queue_client("bills"),
        lambda: factory.create_subscription_client("bills", "orders"),
    ):
        with pytest.raises(ConnectionStringError) as refused:
            create()
        assert refused.value.key == "EntityPath"
    await factory.close()

"""TLS, uvloop and real claims, against a broker in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.support.broker_process import BrokerProcess
from tests.support.parcels import bodies, parcel
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
)

SOON_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("amqp") / "data"
    with BrokerProcess(data, arguments=("--tls-port", "0")) as running:
        yield running


async def round_trip(driver: AmqpDriver, queue: str, count: int = 30) -> None:
    """Send, receive and complete, and leave nothing behind."""
    sender, receiver = driver.sender(queue), driver.receiver(queue, prefetch=10)
    sent = [b"%d" % number for number in range(count)]
    await asyncio.gather(*(sender.send([parcel(body)], timeout_s=SOON_S) for body in sent))
    seen: list[bytes] = []
    while len(seen) < count:
        messages = await receiver.receive(10, wait_s=SOON_S)
        assert await receiver.complete(messages, timeout_s=SOON_S) == []
        seen += bodies(messages)
    await driver.close()
    assert sorted(seen) == sorted(sent)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_tls_with_an_authority_that_is_named(broker: BrokerProcess) -> None:
    options = AmqpOptions(ca_file=broker.ca_path)
    driver = AmqpDriver.from_connection_string(broker.tls_connection_string, options)
    await round_trip(driver, broker.fresh_queue())


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(broker: BrokerProcess) -> None:
    driver = AmqpDriver.from_connection_string(broker.tls_connection_string)
    with pytest.raises(CommunicationError) as caught:
        await driver.sender("orders").attach(timeout_s=SOON_S)
    assert "ca_file" in str(caught.value)
    assert not caught.value.is_transient and not caught.value.is_ambiguous
    await driver.close()


def test_a_missing_authority_is_told_when_the_driver_is_made(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    options = AmqpOptions(ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError):
        AmqpDriver.from_connection_string(broker.tls_connection_string, options)


def test_the_loop_may_be_uvloop(broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()

    async def main() -> None:
        await round_trip(AmqpDriver.from_connection_string(broker.connection_string), queue, 200)

    uvloop.run(main())


KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


async def test_a_claim_that_is_missing_is_an_access_refused(broker: BrokerProcess) -> None:
    """M6, P5: somebody who may only listen cannot send, and the other way round."""
    rules = [
        {"name": "sender", "claims": ["Send"], "primary_key": KEY, "secondary_key": KEY},
        {"name": "listener", "claims": ["Listen"], "primary_key": KEY, "secondary_key": KEY},
    ]
    queue = broker.fresh_queue(authorization_rules=rules)
    root, key = broker.root_rule
    as_root = f"SharedAccessKeyName={root};SharedAccessKey={key}"
    drivers = {
        name: AmqpDriver.from_connection_string(
            broker.connection_string.replace(
                as_root, f"SharedAccessKeyName={name};SharedAccessKey={KEY}"
            )
        )
        for name in ("sender", "listener")
    }
    await drivers["sender"].sender(queue).send([parcel(b"x")], timeout_s=SOON_S)
    assert len(await drivers["listener"].receiver(queue).receive(1, wait_s=SOON_S)) == 1
    with pytest.raises(AccessRefused):
        await drivers["listener"].sender(queue).send([parcel(b"x")], timeout_s=SOON_S)
    with pytest.raises(AccessRefused):
        await drivers["sender"].receiver(queue).receive(1, wait_s=SOON_S)
    for driver in drivers.values():
        await driver.close()


async def test_a_signature_opens_what_it_was_made_for(broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()
    for expires_in_s, outcome in ((60, None), (-60, AuthenticationFailed)):
        signature = broker.token(path=queue, expires_in_s=expires_in_s)
        driver = AmqpDriver.from_connection_string(
            f"Endpoint=sb://localhost:{broker.port};SharedAccessSignature={signature};"
            "UseDevelopmentEmulator=true"
        )
        if outcome is None:
            await driver.sender(queue).attach(timeout_s=SOON_S)
        else:
            with pytest.raises(outcome):
                await driver.sender(queue).attach(timeout_s=SOON_S)
        await driver.close()

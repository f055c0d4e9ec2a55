"""A key that is changed while links are open, with a broker that really checks it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.parcels import parcel
from twinbus.broker.access.rules import Claim
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.amqp.token_refresh import TokenRefresher
from twinbus.errors import AccessRefused, AuthenticationFailed, LinkDetached

SOON_S = 20.0
RULE = "RootManageSharedAccessKey"


@pytest.fixture
async def namespace() -> AsyncIterator[RunningNamespace]:
    async with Broker(BrokerOptions()) as broker:
        yield await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))


@pytest.fixture
async def driver(namespace: RunningNamespace) -> AsyncIterator[AmqpDriver]:
    opened = AmqpDriver.from_connection_string(namespace.connection_string)
    yield opened
    await opened.close()


async def test_a_sender_whose_key_was_changed_cannot_authenticate(
    driver: AmqpDriver, namespace: RunningNamespace
) -> None:
    """P7: its credential has worked before, which "access refused" would not tell a pair."""
    sender = driver.sender("orders")
    await sender.send([parcel(b"before")], timeout_s=SOON_S)
    await sender.schedule([parcel(b"before")], timeout_s=SOON_S)
    namespace.regenerate_key(RULE, "primary")
    # The first one may be on its way when the link is taken away
    with pytest.raises((LinkDetached, AuthenticationFailed)):
        await sender.send([parcel(b"at once")], timeout_s=SOON_S)
    with pytest.raises(AuthenticationFailed):
        await sender.send([parcel(b"after")], timeout_s=SOON_S)
    with pytest.raises(AuthenticationFailed):
        await sender.schedule([parcel(b"later")], timeout_s=SOON_S)


async def test_a_receiver_whose_key_was_changed_cannot_authenticate(
    driver: AmqpDriver, namespace: RunningNamespace
) -> None:
    receiver = driver.receiver("orders")
    assert await receiver.receive(1, wait_s=0.1) == []
    assert await receiver.peek(1, timeout_s=SOON_S) == []
    namespace.regenerate_key(RULE, "primary")
    with pytest.raises(AuthenticationFailed):
        await receiver.receive(1, wait_s=5.0)
    with pytest.raises(AuthenticationFailed):
        await receiver.peek(1, timeout_s=SOON_S)


async def test_who_lacks_a_claim_is_told_so_after_one_token(
    namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: a caller's error, with a new token as with the first."""
    namespace.add_rule("listener", Claim.LISTEN)
    driver = AmqpDriver.from_connection_string(namespace.connection_string_for("listener"))
    shown: list[str] = []
    show = TokenRefresher._send_token

    async def counted(authority: TokenRefresher, path: str) -> None:
        shown.append(path)
        await show(authority, path)

    monkeypatch.setattr(TokenRefresher, "_send_token", counted)
    with pytest.raises(AccessRefused):
        await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    assert len(shown) == 1
    await driver.close()

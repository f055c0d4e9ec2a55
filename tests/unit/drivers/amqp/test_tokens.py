"""Who we are: tokens shown, renewed in time, and never printed."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import pytest

from tests.support.parcels import parcel
from tests.unit.drivers.amqp.rogue import Rogue
from twinbus.drivers.amqp import AmqpDriver, Endpoint
from twinbus.drivers.interface import NamespaceAddress
from twinbus.errors import ConfigurationError

SOON_S = 20.0


class Given(NamedTuple):
    token: str
    expires_on: float


class Purse:
    """Tokens with a number on them, good for a while: an identity of azure-identity's kind."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.count = 0
        self.is_empty = False

    async def get_token(self, *scopes: str, **_options: Any) -> Given:
        assert scopes == ("https://servicebus.azure.net/.default",)
        if self.is_empty:
            raise RuntimeError("the purse is empty")
        self.count += 1
        return Given(f"token {self.count}", time.time() + self.lifetime_s)


def driver_with(rogue: Rogue, credential: Purse) -> AmqpDriver:
    return AmqpDriver(Endpoint(host="127.0.0.1", port=rogue.port, uses_tls=False), credential)


async def until(is_so: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_a_token_is_shown_again_before_it_expires(rogue: Rogue) -> None:
    # Given tokens that are good for a second and a half
    purse = Purse(1.5)
    driver = driver_with(rogue, purse)
    sender = driver.sender("orders")
    await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert len(rogue.tokens) == 1

    # Then a second one follows by itself, on the same connection
    await until(lambda: len(rogue.tokens) >= 2)
    assert len(rogue.visits) == 1
    shown = rogue.tokens[1].application_properties or {}
    assert shown["operation"] == "put-token"
    assert shown["name"] == f"sb://127.0.0.1:{rogue.port}/orders"

    # And none when nobody needs it any more
    await sender.close()
    count = purse.count
    await asyncio.sleep(1.6)
    assert purse.count == count
    await driver.close()


async def test_a_renewal_that_fails_is_tried_again(
    rogue: Rogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("twinbus.drivers.amqp.token_refresh.RENEW_RETRY_S", 0.1)
    monkeypatch.setattr("twinbus.drivers.amqp.token_refresh.RENEW_PERIOD_S_MIN", 0.1)
    purse = Purse(1.0)
    driver = driver_with(rogue, purse)
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    purse.is_empty = True
    await until(lambda: "could not be renewed" in caplog.text)
    purse.is_empty = False
    await until(lambda: len(rogue.tokens) >= 2)
    assert "token 1" not in caplog.text
    await driver.close()


async def test_a_token_that_ran_out_unseen_is_shown_again_for_the_next_link(rogue: Rogue) -> None:
    """A machine that slept has missed its timers."""
    purse = Purse(0.2)
    driver = driver_with(rogue, purse)
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    await asyncio.sleep(0.3)
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    assert purse.count == 2
    await driver.close()


async def test_an_identity_is_shown_as_a_jwt(rogue: Rogue) -> None:
    driver = driver_with(rogue, Purse(3600))
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    shown = rogue.tokens[0]
    assert shown.application_properties is not None
    assert shown.application_properties["type"] == "jwt"
    await driver.close()


async def test_a_namespace_is_named_by_its_host() -> None:
    driver = AmqpDriver.for_namespace("Orders.servicebus.windows.net", Purse(3600))
    assert str(driver.address) == "orders.servicebus.windows.net:5671"
    await driver.close()


async def test_a_host_may_have_a_port_and_must_be_a_host() -> None:
    driver = AmqpDriver.for_namespace("Bus.example.com:5999", Purse(3600))
    assert driver.address == NamespaceAddress("bus.example.com", 5999)
    await driver.close()
    with pytest.raises(ConfigurationError, match="host name"):
        AmqpDriver.for_namespace("sb://bus..example.com", Purse(3600))

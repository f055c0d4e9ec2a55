"""What the log says of messages on their way: those that came home, and those that were left."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.pairing.pairs import eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.pairing import pair as pair_module
from twinbus.testing.namespaces import NamespacePairFixture


async def paired(
    pair: NamespacePairFixture, **options: Any
) -> tuple[MessagingFactory, MessagingFactory]:
    primary = MessagingFactory.from_connection_string(pair.primary.connection_string)
    secondary = MessagingFactory.from_connection_string(pair.secondary.connection_string)
    manager = NamespaceManager.from_connection_string(pair.secondary.connection_string)
    await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            manager, secondary, backlog_queue_count=2, failover_interval=0, **options
        )
    )
    return primary, secondary


async def send_away(primary: MessagingFactory, count: int) -> None:
    primary.force_failover("orders")
    sender = primary.create_message_sender("orders")
    for number in range(count):
        await sender.send(BrokeredMessage(b"x", message_id=str(number)))


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if words in each.getMessage()]


@pytest.mark.parametrize("first", ["primary", "secondary"])
async def test_closing_a_pair_says_how_many_messages_stay_and_what_to_do(
    servicebus_pair: NamespacePairFixture, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    """L2: whichever factory is closed first, and once."""
    servicebus_pair.primary.queue("orders")
    primary, secondary = await paired(servicebus_pair)
    await send_away(primary, 3)
    await (primary if first == "primary" else secondary).close()
    (told,) = lines(caplog, "`twinbus syphon`")
    assert "3 messages" in told and str(secondary.address) in told
    assert "--spool" in told
    await primary.close()
    await secondary.close()
    assert len(lines(caplog, "`twinbus syphon`")) == 1


async def test_closing_a_pair_without_messages_says_nothing_and_asks_nothing(
    servicebus_pair: NamespacePairFixture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P0: a pair that was well costs no operations at its end."""
    servicebus_pair.primary.queue("orders")
    primary, secondary = await paired(servicebus_pair)
    pair = primary._pair
    assert pair is not None
    await eventually(lambda: not pair.monitor.may_hold_messages, "the first look")

    async def read() -> list[Any]:
        raise AssertionError("asked")

    monkeypatch.setattr(pair.reader, "read", read)
    await primary.create_message_sender("orders").send(BrokeredMessage(b"x"))
    await primary.close()
    await secondary.close()
    assert lines(caplog, "`twinbus syphon`") == []


async def test_a_hosted_syphon_logs_what_it_moved(
    servicebus_pair: NamespacePairFixture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y1: a line for those of a while, and the rest when it ends."""
    caplog.set_level(logging.INFO, logger="twinbus.pairing")
    orders = servicebus_pair.primary.queue("orders")
    monkeypatch.setattr(pair_module, "MOVED_LOG_INTERVAL_S", 0.05)
    primary, _secondary = await paired(
        servicebus_pair, enable_syphon=True, syphon=SyphonHosting("local")
    )
    await send_away(primary, 4)
    await eventually(lambda: bool(lines(caplog, "Syphon: ")), "the line")

    def moved() -> int:
        return sum(int(line.split()[1]) for line in lines(caplog, "Syphon: "))

    monkeypatch.setattr(pair_module, "MOVED_LOG_INTERVAL_S", 3_600)
    await send_away(primary, 5)
    await eventually(lambda: orders.active_message_count == 9, "the messages")
    await primary.close()
    assert moved() == 9
    assert lines(caplog, "`twinbus syphon`") == []

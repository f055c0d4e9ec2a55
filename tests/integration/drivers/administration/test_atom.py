"""Entities as ATOM, through a running broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.integration.sdk_administration.clients import Administration
from tests.support.broker_process import BrokerProcess
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.administration import (
    AdministrationClient,
    QueueProperties,
)


async def test_the_stock_client_sees_the_queue_that_we_described() -> None:
    """M10: both speak of the same queue."""
    wanted = QueueProperties(
        path="orders",
        lock_duration=timedelta(seconds=45),
        max_size_in_megabytes=2048,
        requires_session=True,
        default_message_time_to_live=timedelta(days=2),
        enable_dead_lettering_on_message_expiration=True,
        max_delivery_count=5,
        enable_batched_operations=False,
        user_metadata="a note",
    )
    with BrokerProcess(None) as broker:
        parsed = parse_connection_string(broker.connection_string)
        made = await AdministrationClient.from_connection_string(parsed).create_queue(wanted)
        stock = Administration("sync", broker)
        seen = await stock.get_queue("orders")
        await stock.close()
    assert replace(made, max_message_size_in_kilobytes=None) == wanted
    assert seen.dead_lettering_on_message_expiration is True
    for name in (
        "lock_duration",
        "max_size_in_megabytes",
        "requires_session",
        "default_message_time_to_live",
        "max_delivery_count",
        "enable_batched_operations",
        "user_metadata",
    ):
        assert getattr(seen, name) == getattr(wanted, name)

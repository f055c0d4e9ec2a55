"""Lists, pages, the namespace and runtime counts through the stock administration client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, receive

QUEUE_COUNT = 250


@pytest.fixture(scope="module")
def crowded() -> Iterator[BrokerProcess]:
    """A namespace of its own with 250 queues."""
    names = tuple(f"queue-{number:03}" for number in range(QUEUE_COUNT))
    with BrokerProcess(None, queues=names) as running:
        yield running


@pytest.mark.parametrize("flavour", ["sync", "aio"])
@pytest.mark.parametrize("page_size", [None, 7, 1000])
async def test_a_list_comes_in_pages_and_is_whole(
    crowded: BrokerProcess, flavour: str, page_size: int | None
) -> None:
    """M5: every queue once, in order, however large a page is asked for."""
    admin = Administration(flavour, crowded)
    options = {} if page_size is None else {"max_page_size": page_size}
    listed = await admin.all("queues", **options)
    assert [queue.name for queue in listed] == [f"queue-{n:03}" for n in range(QUEUE_COUNT)]
    if page_size is None:
        runtime = await admin.all("queues_runtime_properties")
        assert [each.name for each in runtime] == [queue.name for queue in listed]
        assert {each.total_message_count for each in runtime} == {0}
        assert await admin.all("queues", start_index=240) == listed[240:]
    await admin.close()


def test_a_page_says_where_the_next_one_is_and_the_last_does_not(crowded: BrokerProcess) -> None:
    """M5: an empty page is a page."""
    token = {"Authorization": crowded.token(port=crowded.admin_port)}

    def links(query: str) -> tuple[int, int]:
        status, _told, body = crowded.raw_http("GET", f"/$Resources/queues?{query}", headers=token)
        assert status == 200
        return body.count(b"<entry "), body.count(b'rel="next"')

    assert links("$skip=0&$top=100") == (100, 1)
    assert links("$skip=200&$top=100") == (50, 0)
    assert links("$skip=150&$top=100") == (100, 0)
    assert links("$skip=9999") == (0, 0)
    assert links("$top=999999999") == (100, 1)


async def test_the_namespace_says_its_name(admin: Administration, broker: BrokerProcess) -> None:
    """M5, P4: the name that backlog queues are called by."""
    told = await admin.get_namespace_properties()
    assert (told.name, told.messaging_sku) == (broker.namespace, "Standard")
    assert told.created_at_utc is not None and told.modified_at_utc is not None


async def test_counts_follow_the_messages(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M5: active, scheduled, dead-lettered and deferred ones, and their size."""
    name = fresh()
    await admin.create_queue(name, max_delivery_count=1)
    await fill(Sdk(admin.flavour, broker.connection_string), name)
    told = await admin.get_queue_runtime_properties(name)
    assert told.active_message_count == 3
    assert told.dead_letter_message_count == 1
    assert told.scheduled_message_count == 1
    assert told.total_message_count == 5
    assert told.transfer_message_count == told.transfer_dead_letter_message_count == 0
    assert 5 * 100 < told.size_in_bytes < 5 * 1000
    (listed,) = [each for each in await admin.all("queues_runtime_properties") if each.name == name]
    assert listed.active_message_count == 3


async def fill(sdk: Sdk, name: str) -> None:
    """Two active messages, a deferred, a dead-lettered and a scheduled one."""
    await sdk.send(name, *(ServiceBusMessage("x" * 100) for _ in range(4)))
    later = datetime.now(UTC) + timedelta(hours=1)
    await sdk.sender(name).schedule_messages(ServiceBusMessage("x" * 100), later)
    receiver = sdk.receiver(name)
    first, second = await receive(receiver, 2)
    await receiver.defer_message(first)
    await receiver.dead_letter_message(second)
    await sdk.close()


async def test_a_list_cannot_be_filtered(admin: Administration) -> None:
    """M5, case 108: a filter that is not applied would be a lie."""
    with pytest.raises(HttpResponseError) as refused:
        await admin.all("queues", params={"$filter": "startswith(path, '(a+)+$')"})
    assert refused.value.status_code == 400

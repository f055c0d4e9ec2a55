"""Queues through the stock administration client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess

NEVER = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)


async def test_a_queue_is_created_with_the_service_s_defaults(
    admin: Administration, fresh: FreshName
) -> None:
    """M5, M10: what is not asked for has the value that Azure gives it."""
    name = fresh()
    made = await admin.create_queue(name)
    read = await admin.get_queue(name)
    for queue in (made, read):
        assert queue.name == name
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.max_size_in_megabytes == 1024
        assert queue.max_delivery_count == 10
        assert queue.default_message_time_to_live == NEVER
        assert queue.auto_delete_on_idle == NEVER
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.status == "Active"
        assert queue.availability_status == "Available"
        assert queue.enable_batched_operations is True
        assert queue.requires_session is False
        assert queue.requires_duplicate_detection is False
        assert queue.dead_lettering_on_message_expiration is False
        assert queue.enable_partitioning is False
        assert queue.enable_express is False
        assert queue.forward_to is None
        assert queue.user_metadata is None
        assert queue.authorization_rules is None
        assert queue.max_message_size_in_kilobytes == 256


PLAIN_PROPERTIES: dict[str, Any] = {
    "lock_duration": timedelta(seconds=13),
    "max_size_in_megabytes": 3072,
    "max_delivery_count": 14,
    "default_message_time_to_live": timedelta(days=2, hours=3, milliseconds=250),
    "dead_lettering_on_message_expiration": True,
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_express": True,
    "user_metadata": " <b>ä & \"quoted\" 'one' \U0001f98a</b>\n",
    "max_message_size_in_kilobytes": 128,
    "auto_delete_on_idle": timedelta(minutes=10),
}
FOR_LIFE: dict[str, Any] = {
    "requires_session": True,
    "requires_duplicate_detection": True,
    "enable_partitioning": True,
}
EVERY_PROPERTY = {**PLAIN_PROPERTIES, **FOR_LIFE}


async def test_a_queue_has_every_property_that_it_was_created_with(
    admin: Administration, fresh: FreshName
) -> None:
    """M5: and a second reader sees the same."""
    name = f"{fresh('Area')}/Inbox"
    made = await admin.create_queue(name, status="SendDisabled", **EVERY_PROPERTY)
    (listed,) = [each for each in await admin.all("queues") if each.name == name]
    for queue in (made, await admin.get_queue(name.lower()), listed):
        assert {key: queue[key] for key in EVERY_PROPERTY} == EVERY_PROPERTY
        assert queue.status == "SendDisabled"


async def test_what_is_for_life_stays_when_an_update_leaves_it_out(
    admin: Administration, fresh: FreshName
) -> None:
    """M5: a client that does not know of sessions cannot take them away."""
    queue = await admin.create_queue(fresh(), **FOR_LIFE)
    for name in FOR_LIFE:
        queue[name] = None
    await admin.update_queue(queue, max_delivery_count=5)
    read = await admin.get_queue(queue.name)
    assert {key: read[key] for key in FOR_LIFE} == FOR_LIFE
    assert read.max_delivery_count == 5
    for name in FOR_LIFE:
        with pytest.raises(HttpResponseError):
            await admin.update_queue(read, **{name: False})


async def test_durations_may_be_given_as_text(admin: Administration, fresh: FreshName) -> None:
    """M5: ISO 8601, as the client documents."""
    queue = await admin.create_queue(
        fresh(), lock_duration="PT30S", default_message_time_to_live="P1DT2H"
    )
    assert queue.lock_duration == timedelta(seconds=30)
    assert queue.default_message_time_to_live == timedelta(days=1, hours=2)


async def test_an_update_changes_what_it_says(admin: Administration, fresh: FreshName) -> None:
    """M5: get, change one property, update; then many by keyword."""
    queue = await admin.create_queue(fresh())
    queue.lock_duration = timedelta(minutes=2)
    await admin.update_queue(queue)
    read = await admin.get_queue(queue.name)
    assert read.lock_duration == timedelta(minutes=2)
    await admin.update_queue(read, status="ReceiveDisabled", **PLAIN_PROPERTIES)
    changed = await admin.get_queue(queue.name)
    assert {key: changed[key] for key in PLAIN_PROPERTIES} == PLAIN_PROPERTIES
    assert changed.status == "ReceiveDisabled"


async def test_an_update_takes_back_what_it_leaves_out(
    admin: Administration, fresh: FreshName
) -> None:
    """M5: PUT replaces. Clearing a property in the client leaves its element out."""
    queue = await admin.create_queue(fresh(), user_metadata="note", lock_duration="PT30S")
    queue.user_metadata = None
    queue.lock_duration = None
    await admin.update_queue(queue)
    read = await admin.get_queue(queue.name)
    assert (read.user_metadata, read.lock_duration) == (None, timedelta(minutes=1))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"requires_session": True}, id="sessions"),
        pytest.param({"requires_duplicate_detection": True}, id="duplicate detection"),
        pytest.param({"enable_partitioning": True}, id="partitioning"),
        pytest.param({"lock_duration": timedelta(days=25)}, id="a lock of days"),
        pytest.param({"max_delivery_count": 0}, id="no delivery"),
        pytest.param({"max_message_size_in_kilobytes": 102_400}, id="large messages"),
        pytest.param({"status": "Sleeping"}, id="unknown status"),
        pytest.param({"forward_to": "sb://elsewhere.example.com/orders"}, id="another host"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    admin: Administration, fresh: FreshName, change: dict[str, Any]
) -> None:
    """M5: with a sentence that says why."""
    queue = await admin.create_queue(fresh(), max_delivery_count=7)
    with pytest.raises(HttpResponseError) as refused:
        await admin.update_queue(queue, **change)
    assert refused.value.status_code == 400
    assert_well_put(refused.value.message)
    assert await admin.get_queue(queue.name) == queue


async def test_a_name_is_taken_once(admin: Administration, fresh: FreshName) -> None:
    """M5: in whatever letters it is written."""
    name = fresh()
    await admin.create_queue(name)
    for spelling in (name, name.upper()):
        with pytest.raises(ResourceExistsError):
            await admin.create_queue(spelling)


async def test_a_queue_forwards_to_another_and_stops(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M3, M5: told as a URL of the namespace; clearing it in the client ends it."""
    name, target, dead = fresh(), fresh(), fresh()
    for each in (target, dead):
        await admin.create_queue(each)
    url = f"sb://localhost:{broker.port}"
    queue = await admin.create_queue(
        name, forward_to=target, forward_dead_lettered_messages_to=f"{url}/{dead}"
    )
    for told in (queue, await admin.get_queue(name)):
        assert told.forward_to == f"{url}/{target}"
        assert told.forward_dead_lettered_messages_to == f"{url}/{dead}"
    await admin.update_queue(queue, max_delivery_count=3)
    assert (await admin.get_queue(name)).forward_to == f"{url}/{target}"
    queue.forward_to = queue.forward_dead_lettered_messages_to = None
    await admin.update_queue(queue)
    read = await admin.get_queue(name)
    assert (read.forward_to, read.forward_dead_lettered_messages_to) == (None, None)


async def test_what_does_not_exist_is_not_found(admin: Administration, fresh: FreshName) -> None:
    """M5: not for reading, updating, deleting."""
    name = fresh()
    for operation in (admin.get_queue, admin.get_queue_runtime_properties, admin.delete_queue):
        with pytest.raises(ResourceNotFoundError):
            await operation(name)
    queue = await admin.create_queue(name)
    queue.name = fresh()
    with pytest.raises(ResourceNotFoundError):
        await admin.update_queue(queue)


@pytest.mark.parametrize(
    "name", ["a//b", "-a", "a$", "$cbs", "a b", "ä", "x" * 261, "a.*b", "(a+)+$"]
)
async def test_a_name_that_no_queue_can_have_is_refused(admin: Administration, name: str) -> None:
    """M5: also what would be a pattern elsewhere."""
    with pytest.raises(HttpResponseError) as refused:
        await admin.create_queue(name)
    assert refused.value.status_code in (400, 404)


async def test_a_deleted_queue_is_gone_and_its_name_free(
    admin: Administration, fresh: FreshName
) -> None:
    """M5"""
    name = fresh()
    await admin.create_queue(name, max_delivery_count=3)
    await admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue(name)
    assert (await admin.create_queue(name)).max_delivery_count == 10


async def test_times_of_a_queue_are_told(admin: Administration, fresh: FreshName) -> None:
    """M5: when it was made, and last changed."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    queue = await admin.create_queue(fresh())
    made = await admin.get_queue_runtime_properties(queue.name)
    await admin.update_queue(queue, max_delivery_count=4)
    changed = await admin.get_queue_runtime_properties(queue.name)
    assert before < made.created_at_utc <= made.updated_at_utc
    assert changed.created_at_utc == made.created_at_utc
    assert changed.updated_at_utc >= made.updated_at_utc


async def test_older_versions_of_the_protocol_are_spoken(
    broker: BrokerProcess, fresh: FreshName
) -> None:
    """M10: the client can be told to use one."""
    for version in ("2017-04", "2021-05"):
        admin = Administration("sync", broker, api_version=version)
        queue = await admin.create_queue(fresh(), max_delivery_count=5)
        read = await admin.get_queue(queue.name)
        assert read.max_delivery_count == 5
        assert read.max_message_size_in_kilobytes == (None if version == "2017-04" else 256)
        await admin.close()

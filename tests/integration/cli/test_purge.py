"""``twinbus queue purge``, ``subscription purge``, ``topic purge`` and ``rule purge``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.access import connection_string_of, connection_string_with, entity_rule
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.broker.access.rules import Claim
from twinbus.testing.namespaces import NamespaceFixture

COUNT = 30


def fill(bus: NamespaceFixture, path: str, **fields: Any) -> None:
    """30 active messages, and unless they have sessions a deferred, a scheduled, a dead one."""

    async def send() -> None:
        async with MessagingFactory.from_connection_string(bus.connection_string) as factory:
            sender = factory.create_message_sender(path)
            if fields:
                for number in range(COUNT):
                    await sender.send(BrokeredMessage(b"x", session_id=f"s{number % 3}"))
                return
            await sender.send_batch([BrokeredMessage(b"x") for _ in range(COUNT + 2)])
            receiver = factory.create_message_receiver(path)
            deferred, dead = await receiver.receive_batch(2)
            await deferred.defer()
            await dead.dead_letter(reason="test")
            later = datetime.now(UTC) + timedelta(hours=1)
            await sender.send(BrokeredMessage(b"later", scheduled_enqueue_time_utc=later))

    asyncio.run(send())


def test_a_queue_is_emptied_of_everything_but_its_dead_letters(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M5: active, deferred and scheduled; the dead letters when they are asked for."""
    queue = servicebus.queue("orders")
    fill(servicebus, queue)
    assert typed.json("queue", "purge", "orders", "--dry-run")["would_remove"] >= COUNT + 1
    assert queue.active_message_count == COUNT
    assert "--yes" in typed.refused("queue", "purge", "orders")
    assert typed.json("queue", "purge", "orders", "--yes") == {"removed": COUNT + 2, "left": 0}
    assert queue.active_message_count == queue.deferred_message_count == 0
    assert queue.scheduled_message_count == 0 and queue.dead_letter_message_count == 1

    done = typed("queue", "purge", "orders", "--dead-letters", "--yes")
    assert done == "1 message removed from the dead-letter queue of 'orders'\n"
    assert queue.dead_letter_message_count == 0


def test_what_is_to_be_kept_is_kept_and_told(typed: Any, servicebus: NamespaceFixture) -> None:
    """M5: deferred and scheduled messages."""
    queue = servicebus.queue("orders")
    fill(servicebus, queue)
    done = typed.json("queue", "purge", "orders", "--keep-deferred", "--keep-scheduled", "--yes")
    assert done == {"removed": COUNT, "left": 2}
    assert queue.deferred_message_count == queue.scheduled_message_count == 1


def test_all_sessions_are_emptied(typed: Any, servicebus: NamespaceFixture) -> None:
    """M3: of a queue that wants sessions."""
    queue = servicebus.queue("orders", requires_session=True)
    fill(servicebus, queue, session=True)
    assert typed.json("queue", "purge", "orders", "--yes") == {"removed": COUNT, "left": 0}


def test_a_subscription_is_emptied_and_its_neighbour_is_not(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M5: with the claim Listen alone, too."""
    one, other = servicebus.subscription("news", "a"), servicebus.subscription("news", "b")
    typed("topic", "show", "news")

    async def send() -> None:
        async with MessagingFactory.from_connection_string(servicebus.connection_string) as factory:
            await factory.create_message_sender("news").send_batch(
                [BrokeredMessage(b"x") for _ in range(COUNT)]
            )

    asyncio.run(send())
    assert typed.json("subscription", "purge", "news", "a", "--yes") == {
        "removed": COUNT,
        "left": 0,
    }
    assert one.active_message_count == 0 and other.active_message_count == COUNT


def test_listen_is_enough(typed_with: Callable[[str], Any], servicebus: NamespaceFixture) -> None:
    """M6: nothing is asked of the management that it could do without."""
    queue = servicebus.queue("orders")
    fill(servicebus, queue)
    listening = typed_with(connection_string_with(servicebus, Claim.LISTEN))
    assert listening.json("queue", "purge", "orders", "--dry-run") == {"would_remove": COUNT + 2}
    done = listening.json("queue", "purge", "orders", "--keep-scheduled", "--yes")
    assert done == {"removed": COUNT + 1, "left": 1}


def test_listen_on_the_queue_alone_is_enough(
    typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: the management of the namespace does not know such a key."""
    queue = servicebus.queue("orders", authorization_rules=entity_rule(Claim.LISTEN))
    fill(servicebus, queue)
    listening = typed_with(connection_string_of(servicebus, "orders"))
    assert listening.json("queue", "purge", "orders", "--dry-run") == {"would_remove": COUNT + 2}
    done = listening.json("queue", "purge", "orders", "--keep-scheduled", "--yes")
    assert done == {"removed": COUNT + 1, "left": 1}


def test_a_topic_is_emptied_by_its_subscriptions(typed: Any, servicebus: NamespaceFixture) -> None:
    """M5: all of them; another topic's are left alone."""
    places = [servicebus.subscription(*each) for each in (("news", "a"), ("news", "b"))]
    other = servicebus.subscription("weather", "a")
    for topic in ("news", "weather"):
        typed("send", topic, "x", "--count", "3")
    assert typed.json("topic", "purge", "news", "--dry-run") == {"would_remove": 6}
    assert "--yes" in typed.refused("topic", "purge", "news")
    done = typed("topic", "purge", "news", "--yes")
    assert done == "6 messages removed from the subscriptions of 'news'\n"
    assert [each.active_message_count for each in (*places, other)] == [0, 0, 3]
    assert "Topic 'missing'" in typed.refused("topic", "purge", "missing", "--yes")


def test_the_rules_of_a_subscription_are_removed_at_once(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M4: it takes nothing then."""
    red = servicebus.subscription("news", "red")
    typed("rule", "create", "news", "red", "more", "--sql", "colour = 'red'")
    would = typed.json("rule", "purge", "news", "red", "--dry-run")
    assert sorted(would["would_delete"]) == ["$Default", "more"]
    assert "--yes" in typed.refused("rule", "purge", "news", "red")
    assert typed("rule", "purge", "news", "red", "--yes").startswith("2 rules of subscription")
    assert typed.json("rule", "list", "news", "red") == []
    typed("send", "news", "x", "--property", "colour=red")
    assert red.active_message_count == 0
    assert "missing" in typed.refused("rule", "purge", "news", "missing", "--yes")

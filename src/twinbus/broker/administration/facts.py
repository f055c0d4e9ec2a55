"""What only the broker can know about an entity: counts, sizes and times."""

from __future__ import annotations

from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.vocabulary import COUNT_DETAILS
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Topic

__all__ = ["count_details", "queue_facts", "topic_facts"]


def queue_facts(queue: Queue) -> dict[str, str]:
    """The runtime elements of a queue's or a subscription's description.

    A locked or deferred message counts as an active one: it is still in the queue.
    """
    dead = 0 if queue.dead_letters is None else queue.dead_letters.message_count
    return {
        "SizeInBytes": str(queue.used_bytes),
        "MessageCount": str(queue.message_count + queue.scheduled_count + dead),
        "AccessedAt": time_text(queue.accessed_at_ms),
        "SupportOrdering": "true",
        "CountDetails": count_details(
            active=queue.message_count, dead=dead, scheduled=queue.scheduled_count
        ),
    }


def topic_facts(topic: Topic) -> dict[str, str]:
    """The runtime elements of a topic's description; its messages are its subscriptions'."""
    compared = topic.book.correlation_filter_count
    return {
        "SizeInBytes": str(topic.used_bytes),
        "AccessedAt": time_text(topic.accessed_at_ms),
        "CountDetails": count_details(active=0, dead=0, scheduled=topic.scheduled_count),
        "SubscriptionCount": str(len(topic.subscriptions)),
        "SqlFilterCount": str(len(topic.book) - compared),
        "CorrelationFilterCount": str(compared),
    }


def count_details(*, active: int, dead: int, scheduled: int) -> str:
    """The counts by state, each in the namespace that the clients look in."""
    counts = {
        "ActiveMessageCount": active,
        "DeadLetterMessageCount": dead,
        "ScheduledMessageCount": scheduled,
        # What is forwarded waits in its source, as active or dead-lettered.
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }
    return "".join(
        f'<d2p1:{name} xmlns:d2p1="{COUNT_DETAILS}">{count}</d2p1:{name}>'
        for name, count in counts.items()
    )

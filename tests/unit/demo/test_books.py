"""The demo's books: what counts as sent, delivered, lost, twice and from nowhere."""

from __future__ import annotations

from twinbus.demo.scenario import DeliveryCheck

DESTINATIONS = {
    "orders": ("orders",),
    "events": ("events/subscriptions/a", "events/subscriptions/b"),
}


def books_with(*ids: str, entity: str = "orders", is_diverted: bool = False) -> DeliveryCheck:
    books = DeliveryCheck(DESTINATIONS)
    books.attempt(entity, ids)
    books.acknowledge(entity, ids, is_diverted=is_diverted)
    return books


def test_what_was_acknowledged_and_arrived_is_delivered() -> None:
    books = books_with("o1", "o2")
    books.arrive("orders", "o1")
    books.arrive("orders", "o2")
    assert (books.sent, books.delivered, books.lost, books.unexpected) == (2, 2, [], [])


def test_what_was_acknowledged_and_did_not_arrive_is_lost_and_named() -> None:
    books = books_with("o1", "o2")
    books.arrive("orders", "o1")
    assert (books.sent, books.delivered, books.lost) == (2, 1, ["o2"])


def test_a_message_to_a_topic_is_delivered_when_every_subscription_has_it() -> None:
    books = books_with("e1", entity="events", is_diverted=True)
    books.arrive("events/subscriptions/a", "e1")
    assert (books.delivered, books.lost, books.diverted_missing) == (0, ["e1"], 1)
    books.arrive("events/subscriptions/b", "e1")
    assert (books.delivered, books.lost, books.diverted_missing) == (1, [], 0)


def test_a_second_copy_is_a_duplicate_and_a_copy_in_each_subscription_is_not() -> None:
    books = books_with("e1", entity="events")
    for place in DESTINATIONS["events"]:
        books.arrive(place, "e1")
    assert books.duplicates == 0
    books.arrive("events/subscriptions/a", "e1")
    assert (books.duplicates, books.copies, books.delivered) == (1, 3, 1)


def test_what_nobody_sent_there_is_unexpected() -> None:
    books = books_with("o1")
    books.arrive("orders", "o1")
    books.arrive("events/subscriptions/a", "o1")
    assert books.unexpected == ["o1"]


def test_a_send_that_failed_may_arrive_and_is_not_lost_when_it_does_not() -> None:
    books = DeliveryCheck(DESTINATIONS)
    books.attempt("orders", ["o1", "o2"])
    books.fail(2)
    books.arrive("orders", "o1")
    assert (books.sent, books.failed_sends, books.lost, books.unexpected) == (0, 2, [], [])

"""The numbers of messages that wait for their destination."""

from __future__ import annotations

from twinbus.amqp.codec.types import Int
from twinbus.amqp.message.message import Message
from twinbus.mover.planning.deferred_messages import DeferredMessages, is_deferred


def test_numbers_come_back_in_the_order_in_which_they_were_set_aside() -> None:
    deferred = DeferredMessages()
    deferred.add("orders", [3, 1, 2])
    deferred.add("news", [9])
    assert len(deferred) == 4
    assert deferred.take("orders", 2) == [3, 1]
    assert deferred.take("orders", 5) == [2]
    assert not deferred.holds("orders")
    assert deferred.paths() == ["news"]


def test_what_failed_again_is_tried_after_the_others() -> None:
    deferred = DeferredMessages()
    deferred.add("orders", [1, 2, 3])
    deferred.add("orders", deferred.take("orders", 1))
    assert deferred.take("orders", 3) == [2, 3, 1]


def test_a_number_is_remembered_once() -> None:
    deferred = DeferredMessages()
    deferred.add("orders", [1, 2])
    deferred.add("orders", [2, 3])
    assert deferred.take("orders", 9) == [1, 2, 3]
    assert len(deferred) == 0


def test_the_memory_has_an_end() -> None:
    deferred = DeferredMessages(numbers_max=3)
    deferred.add("orders", range(10))
    deferred.add("news", range(10))
    assert (len(deferred), deferred.paths()) == (3, ["orders"])


def test_a_peeked_message_says_whether_it_is_deferred() -> None:
    deferred = Message(message_annotations={"x-opt-message-state": Int(1)}, body=b"x").encode()
    assert is_deferred(deferred)
    assert not is_deferred(Message(body=b"x").encode())
    assert not is_deferred(Message(message_annotations={"x-opt-other": 1}, body=b"x").encode())
    assert not is_deferred(b"garbage")


def test_a_destination_can_be_held_by_numbers_that_somebody_else_knows() -> None:
    deferred = DeferredMessages()
    deferred.hold(["orders"])
    assert deferred.holds("orders")
    assert deferred.count("orders") == 0
    assert deferred.paths() == []


def test_all_numbers_can_be_written_down() -> None:
    deferred = DeferredMessages()
    deferred.add("orders", [3, 1])
    deferred.add("news", [2])
    assert deferred.numbers() == {"orders": (3, 1), "news": (2,)}

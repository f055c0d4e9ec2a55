"""The numbers of messages that wait for their destination."""

from __future__ import annotations

from twinbus.amqp.message import Message
from twinbus.amqp.types import Int
from twinbus.core.chunk_aside import SetAside, is_set_aside


def test_numbers_come_back_in_the_order_in_which_they_were_set_aside() -> None:
    aside = SetAside()
    aside.add("orders", [3, 1, 2])
    aside.add("news", [9])
    assert len(aside) == 4
    assert aside.take("orders", 2) == [3, 1]
    assert aside.take("orders", 5) == [2]
    assert not aside.holds("orders")
    assert aside.paths() == ["news"]


def test_what_failed_again_is_tried_after_the_others() -> None:
    aside = SetAside()
    aside.add("orders", [1, 2, 3])
    aside.add("orders", aside.take("orders", 1))
    assert aside.take("orders", 3) == [2, 3, 1]


def test_a_number_is_remembered_once() -> None:
    aside = SetAside()
    aside.add("orders", [1, 2])
    aside.add("orders", [2, 3])
    assert aside.take("orders", 9) == [1, 2, 3]
    assert len(aside) == 0


def test_the_memory_has_an_end() -> None:
    aside = SetAside(numbers_max=3)
    aside.add("orders", range(10))
    aside.add("news", range(10))
    assert (len(aside), aside.paths()) == (3, ["orders"])


def test_a_peeked_message_says_whether_it_is_deferred() -> None:
    deferred = Message(message_annotations={"x-opt-message-state": Int(1)}, body=b"x").encode()
    assert is_set_aside(deferred)
    assert not is_set_aside(Message(body=b"x").encode())
    assert not is_set_aside(Message(message_annotations={"x-opt-other": 1}, body=b"x").encode())
    assert not is_set_aside(b"garbage")


def test_a_destination_can_be_held_by_numbers_that_somebody_else_knows() -> None:
    aside = SetAside()
    aside.hold(["orders"])
    assert aside.holds("orders")
    assert aside.count("orders") == 0
    assert aside.paths() == []


def test_all_numbers_can_be_written_down() -> None:
    aside = SetAside()
    aside.add("orders", [3, 1])
    aside.add("news", [2])
    assert aside.numbers() == {"orders": (3, 1), "news": (2,)}

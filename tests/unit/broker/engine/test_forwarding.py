"""Where messages may be forwarded to, and what they look like when they arrive."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.broker.access.sas import Audience
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.forwarding import check_forwarding, target_path, targets_first
from twinbus.errors import ConfigurationError


def queue(path: str, forward_to: str | None = None, **properties: Any) -> QueueDescription:
    return QueueDescription(path=path, forward_to=forward_to, **properties)


def subscription(path: str, forward_to: str | None = None) -> SubscriptionDescription:
    return SubscriptionDescription(path=path, forward_to=forward_to)


def refusal(new: QueueDescription, *others: QueueDescription) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check_forwarding(new, others)
    return str(caught.value)


def test_the_target_must_be_there_and_take_messages() -> None:
    """M3: a queue or a topic of the same namespace."""
    topic = TopicDescription(path="t")
    check_forwarding(queue("a", "b"), [queue("b")])
    check_forwarding(queue("a", "t"), [topic])
    assert "'b'" in refusal(queue("a", "b"))
    part = subscription("t/subscriptions/s")
    assert "'t/subscriptions/s'" in refusal(queue("a", "t/subscriptions/s"), topic, part)
    assert "itself" in refusal(queue("a", "a"))
    dead = queue("a", forward_dead_lettered_messages_to="a")
    assert "itself" in refusal(dead)


def test_a_description_names_a_path_and_no_host() -> None:
    """M3: it does not know under which hosts its namespace is reached."""
    assert queue("a", "Target/One").forward_to == "target/one"
    assert queue("a", "").forward_to is None
    for odd in (5, "a//b", "sb://host", "$cbs", "sb://localhost/target"):
        with pytest.raises(ConfigurationError):
            QueueDescription(path="a", forward_to=odd)  # type: ignore[arg-type]


def test_a_url_of_this_namespace_names_its_path() -> None:
    """M3: stock clients write the address of the namespace in front."""
    here = Audience(frozenset({"localhost", "bus.example"}), 5672, any_name=True)
    for said in ("Target/One", "sb://localhost/Target/One", " sb://BUS.example:5671/target/one/ "):
        assert target_path(said, here) == "target/one"


@pytest.mark.parametrize(
    "said", ["sb://elsewhere/target", "https://elsewhere.example:5672/target", "//elsewhere/target"]
)
def test_a_url_of_another_host_is_refused(said: str) -> None:
    """M14: also where a namespace is reached under names that it was not told."""
    here = Audience(frozenset({"localhost"}), 5672, any_name=True)
    with pytest.raises(ConfigurationError, match="'elsewhere"):
        target_path(said, here)


@pytest.mark.parametrize("said", ["sb://localhost", "http://[x/orders", "sb://localhost:x/orders"])
def test_a_url_without_a_path_or_host_is_refused(said: str) -> None:
    with pytest.raises(ConfigurationError):
        target_path(said, Audience(frozenset({"localhost"}), 5672))


def test_a_circle_is_refused_whatever_way_it_takes() -> None:
    """M3: through queues, through a topic, through dead letters."""
    assert "loop" in refusal(queue("a", "b"), queue("b", "c"), queue("c", "a"))
    topic, part = TopicDescription(path="t"), subscription("t/subscriptions/s", "a")
    assert "loop" in refusal(queue("a", "t"), topic, part, queue("a"))
    assert "loop" in refusal(part, topic, queue("a", "t"))
    dead = queue("b", forward_dead_lettered_messages_to="a")
    assert "loop" in refusal(queue("a", "b"), dead)


def test_a_way_has_four_forwards_at_most() -> None:
    """M3: counted from every beginning, not only from the new entity on."""
    four = [queue("d", "e"), queue("c", "d"), queue("b", "c"), queue("e")]
    check_forwarding(queue("a", "b"), four)
    assert "more than 4" in refusal(queue("z", "a"), *four, queue("a", "b"))
    # The middle becomes longer
    assert "more than 4" in refusal(queue("e", "f"), *four, queue("a", "b"), queue("f"))


def test_a_queue_with_sessions_does_not_forward() -> None:
    """M3: as in Azure; its dead letters may."""
    assert "sessions" in refusal(queue("a", "b", requires_session=True), queue("b"))
    check_forwarding(
        queue("a", requires_session=True, forward_dead_lettered_messages_to="b"), [queue("b")]
    )


def test_entities_are_put_into_an_order_in_which_they_can_be_made() -> None:
    """M3: a file may name a queue before its target."""
    wanted = [
        (queue("a", "t"), 1),
        (subscription("t/subscriptions/s", "b"), 2),
        (queue("b", "c"), 3),
        (TopicDescription(path="t"), 4),
        (queue("c"), 5),
    ]
    made: list[QueueDescription] = []
    for description, _rest in targets_first(wanted):
        check_forwarding(description, made)
        made.append(description)
    assert len(made) == len(wanted)
    circle = [(queue("a", "b"), 1), (queue("b", "a"), 2)]
    assert targets_first(circle) == circle

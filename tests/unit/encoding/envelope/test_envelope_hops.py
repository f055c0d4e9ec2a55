"""The counter of a message that brokers forward into backlog queues."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.amqp.codec.types import Int, Long, Timestamp, UByte
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.envelope import restore
from twinbus.errors import EnvelopeError

HOPS = "x-opt-twinbus-hops"
FORWARDED = {"x-opt-enqueue-sequence-number": Long(4)}


def hops_after(annotations: dict[str, Any], **aliases: Any) -> Any:
    """The annotations of a restored message."""
    delivered = Message(
        message_annotations=annotations,
        properties=Properties(message_id="m"),
        application_properties={"x-ms-path": "orders", **aliases},
        body=b"x",
    )
    return Message.decode(restore(delivered.encode(), now_ms=0).encoded).message_annotations


def test_a_message_that_was_sent_to_the_backlog_is_not_counted() -> None:
    """P12: home unchanged; some brokers say 0 where nothing was forwarded.

    What a sender writes into the counter is its own affair: nobody counts it, nobody refuses it.
    """
    assert hops_after({"x-own": "kept"}) == {"x-own": "kept"}
    assert hops_after({HOPS: Int(-128), "x-own": "kept"}) == {HOPS: -128, "x-own": "kept"}
    assert hops_after({HOPS: UByte(8)}) == {HOPS: 8}
    assert hops_after({"x-opt-enqueue-sequence-number": Long(0)}) is None


def test_each_time_that_a_message_was_forwarded_counts() -> None:
    """Y6: also together with a schedule."""
    assert hops_after(FORWARDED) == {HOPS: 1}
    assert hops_after({**FORWARDED, HOPS: UByte(7)}) == {HOPS: 8}
    assert hops_after({HOPS: Int(1), **FORWARDED, "x-own": "kept"}) == {"x-own": "kept", HOPS: 2}
    due = {"x-ms-scheduledenqueuetimeutc": Timestamp(5)}
    assert hops_after(FORWARDED, **due) == {"x-opt-scheduled-enqueue-time": 5, HOPS: 1}


@pytest.mark.parametrize(
    ("hops", "reason"),
    [
        (UByte(8), "too-many-hops"),
        (Long(1 << 40), "too-many-hops"),
        (Int(-1), "invalid-property-value"),
        ("8", "invalid-property-type"),
        (True, "invalid-property-type"),
        (None, "invalid-property-type"),
    ],
)
def test_the_ninth_time_and_a_counter_that_is_none_are_refused(hops: Any, reason: str) -> None:
    """Y6: at most eight."""
    with pytest.raises(EnvelopeError) as refused:
        hops_after({**FORWARDED, HOPS: hops})
    assert refused.value.reason == reason

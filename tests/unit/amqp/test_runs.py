"""Runs of transfers: taken together, they are what they would be one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import (
    ConnectionClosed,
    DeliveriesReceived,
    DeliveryReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    SessionEnded,
)
from twinbus.amqp.frames import PROTOCOL_AMQP, PROTOCOL_SASL, encode_frame
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from twinbus.amqp.transfer_runs import RUN_COUNT_MAX
from twinbus.amqp.transfers import encode_transfer

LIMITS = AmqpLimits(incoming_window=48, batch_size_bytes_max=600)


def opened() -> Connection:
    """A server's connection with one session and two links that the peer sends on."""
    connection = Connection(Role.SERVER, ConnectionOptions(container_id="runs", limits=LIMITS))
    init = encode_performative(SaslInit("ANONYMOUS", b""))
    connection.receive(PROTOCOL_SASL)
    connection.receive(encode_frame(0, init, frame_type=1))
    connection.receive(PROTOCOL_AMQP)
    connection.receive(encode_frame(0, encode_performative(Open("peer"))))
    connection.receive(encode_frame(0, encode_performative(Begin(None, 0, 1000, 1000))))
    for handle in (0, 1):
        attach = Attach(
            f"link-{handle}", handle, False, source=Source("s"), target=Target("t"),
            initial_delivery_count=0,
        )  # fmt: skip
        for event in connection.receive(encode_frame(0, encode_performative(attach))):
            assert isinstance(event, LinkAttached)
            event.link.accept(source=None, target=None)
    connection.take_output()
    return connection


def told(events: list[Event]) -> list[object]:
    """What happened, deliveries one by one."""
    said: list[object] = []
    for event in events:
        singles = event.singles() if isinstance(event, DeliveriesReceived) else [event]
        for each in singles:
            match each:
                case DeliveryReceived():
                    said.append(
                        (each.link.name, each.delivery_id, each.message_format, each.payload,
                         each.settled, each.is_repeat)
                    )  # fmt: skip
                case LinkDetachedEvent() | SessionEnded() | ConnectionClosed():
                    said.append((type(each).__name__, str(each.error)))
                case _:
                    said.append(type(each).__name__)
    return said


@dataclass
class Sender:
    """Builds the frames of a peer; every choice comes from hypothesis."""

    frames: list[bytes] = field(default_factory=list)
    next_id: int = 0

    def transfer(self, choice: tuple[int, int, int, int, bool, bool]) -> None:
        style, handle, step, size, settled, more = choice
        self.next_id = (self.next_id + step) & 0xFFFFFFFF
        tag = self.next_id.to_bytes(4, "big")[style % 3 :]
        payload = bytes([self.next_id & 0xFF]) * size
        if style < 3:
            body = encode_transfer(handle, self.next_id, tag, 0, settled, more)
        else:
            body = encode_performative(
                Transfer(handle, self.next_id, tag, 0x80013700 * (style & 1), settled, more)
            )
        self.frames.append(encode_frame(0, body, payload))


choices = st.tuples(
    st.integers(0, 5),
    st.sampled_from([0, 0, 0, 0, 1, 7]),
    st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]),
    st.sampled_from([0, 1, 50, 50, 50, 600, 601]),
    st.booleans(),
    st.sampled_from([False] * 7 + [True]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.tuples(choices, st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(1, 5000),
)
def test_frames_mean_the_same_together_and_one_by_one(
    first_id: int, runs: list[tuple[tuple[int, int, int, int, bool, bool], int]], cut: int
) -> None:
    # Given frames that repeat a shape a few times, then another
    sender = Sender(next_id=first_id)
    for choice, count in runs:
        for _ in range(count):
            sender.transfer(choice)
    data = b"".join(sender.frames)

    # When one connection gets them in large pieces and another one frame by frame
    together, singly = opened(), opened()
    events: list[Event] = []
    for start in range(0, len(data), cut):
        events += together.receive(data[start : start + cut])
    expected: list[Event] = []
    for frame in sender.frames:
        # The first byte alone: no run can begin before the frame is whole.
        expected += singly.receive(frame[:1])
        expected += singly.receive(frame[1:])

    # Then both saw the same, and the links and the session count alike
    assert told(events) == told(expected)
    for ours, theirs in zip(together.sessions.values(), singly.sessions.values(), strict=True):
        assert [(link.name, link.delivery_count, link.credit) for link in ours.links.values()] == [
            (link.name, link.delivery_count, link.credit) for link in theirs.links.values()
        ]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param((0, 1, 1, 50, False, False), id="another link"),
        pytest.param((0, 0, 1, 601, False, False), id="too large"),
        pytest.param((1, 0, 1, 50, False, False), id="a shorter tag"),
        pytest.param((0, 0, 1, 50, True, False), id="settled"),
        pytest.param((0, 0, 1, 50, False, True), id="the first part of two"),
        pytest.param((0, 0, 2, 50, False, False), id="an id left out"),
        pytest.param((0, 0, 0, 50, False, False), id="an id again"),
        pytest.param((0, 7, 1, 50, False, False), id="no such link"),
        pytest.param((5, 0, 1, 50, False, False), id="a batch"),
    ],
)
def test_one_odd_frame_in_a_run_is_seen_for_what_it_is(
    odd: tuple[int, int, int, int, bool, bool],
) -> None:
    # Given equal frames, one that differs in a single way, and equal ones again
    usual = (0, 0, 1, 50, False, False)
    sender = Sender(next_id=1000)
    for choice in [usual] * 5 + [odd] + [usual] * 5:
        sender.transfer(choice)

    # When one connection gets them at once and another one by one
    together, singly = opened(), opened()
    events = together.receive(b"".join(sender.frames))
    expected: list[Event] = []
    for frame in sender.frames:
        expected += singly.receive(frame[:1])
        expected += singly.receive(frame[1:])

    # Then both saw the same
    assert any(isinstance(event, DeliveriesReceived) for event in events)
    assert told(events) == told(expected)


def test_a_run_does_not_reach_a_link_that_was_detached() -> None:
    # Given a link in the middle of a run
    connection = opened()
    events = connection.receive(plain_frames(5))
    assert isinstance(events[0], DeliveryReceived)

    # When it is detached from our side and the peer, who does not know yet, goes on
    events[0].link.detach()
    later = connection.receive(plain_frames(5, first_id=5))

    # Then nothing of it is delivered
    assert later == []


def plain_frames(count: int, *, first_id: int = 0) -> bytes:
    return b"".join(
        encode_frame(0, encode_transfer(0, first_id + n, n.to_bytes(4, "big")), b"payload")
        for n in range(count)
    )


def test_a_pipelined_sender_is_read_in_runs() -> None:
    # Given forty transfers of one shape in one piece
    connection = opened()

    # When they arrive
    events = connection.receive(plain_frames(40))

    # Then the first two are decoded and the others are taken together
    assert [type(event) for event in events] == [
        DeliveryReceived,
        DeliveryReceived,
        DeliveriesReceived,
    ]
    assert isinstance(events[2], DeliveriesReceived)
    assert (events[2].first_id, len(events[2].payloads)) == (2, 38)


def test_a_run_stops_at_the_window_of_the_session() -> None:
    # Given a window of 48 transfers and a sender that sends 60 at once
    connection = opened()

    # When they arrive
    events = connection.receive(plain_frames(60))

    # Then 48 are taken and the session ends for the others
    taken = [each for each in told(events) if isinstance(each, tuple) and each[0] == "link-0"]
    assert len(taken) == 48
    assert isinstance(events[-1], SessionEnded)
    assert events[-1].error is not None
    assert events[-1].error.condition == "amqp:session:window-violation"


def test_a_run_is_no_longer_than_a_turn() -> None:
    # Given a wide window
    connection = opened()
    session = connection.sessions[0]
    session._incoming_left = 1000

    # When two hundred transfers arrive at once
    events = connection.receive(plain_frames(200))

    # Then no run is longer than what one turn may take
    runs = [event for event in events if isinstance(event, DeliveriesReceived)]
    assert max(len(run.payloads) for run in runs) == RUN_COUNT_MAX
    assert sum(len(run.payloads) for run in runs) == 198


def test_another_frame_between_transfers_is_seen_in_its_place() -> None:
    # Given transfers with a flow between them
    connection = opened()
    flow = encode_frame(0, encode_performative(Flow(0, 100, 0, 100, echo=True)))

    # When all arrive at once
    events = connection.receive(plain_frames(10) + flow + plain_frames(10, first_id=10))

    # Then every delivery came once and the flow was answered
    ids = [each[1] for each in told(events) if isinstance(each, tuple)]
    assert ids == list(range(20))
    assert connection.has_output

"""Sessions and links without a socket: windows, credit, deliveries in parts, limits, late ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.amqp.in_memory import (
    Pair,
    Server,
    frame,
    frames_in,
    receiving_attach,
    sending_attach,
)
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    CreditChanged,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetachedEvent,
    SessionEnded,
    WindowOpened,
)
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.link import serial_is_after
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
)

UINT_MAX = 2**32 - 1


def flow(**fields: Any) -> Flow:
    """A flow whose session part changes nothing on a fresh session."""
    numbers = {"next_incoming_id": 0, "incoming_window": 100}
    return Flow(**{**numbers, "next_outgoing_id": 0, "outgoing_window": 100, **fields})


def ended_with(server: Server) -> str:
    event = server.take(SessionEnded)
    assert server.session.is_ended and not server.connection.is_closed
    return str(event.error.condition)


def detached_with(server: Server) -> str:
    event = server.take(LinkDetachedEvent)
    assert event.link.is_detached and not server.session.is_ended
    return str(event.error.condition)


# -- both ends ------------------------------------------------------------------------------------


def test_a_client_sends_and_the_server_settles() -> None:
    pair = Pair()
    pair.begun()
    ours, theirs = pair.link(sending_attach(3))
    theirs.grant(10)
    pair.settle()
    assert ours.credit == 10

    delivery_id = ours.send(b"payload", b"tag", settled=False, message_format=7)
    pair.settle()
    (received,) = pair.server_events
    assert isinstance(received, DeliveryReceived)
    assert (received.link, received.payload, received.message_format) == (theirs, b"payload", 7)

    theirs.session.send(Disposition(True, delivery_id, delivery_id, True, Accepted()))
    pair.settle()
    answered = pair.client_events[-1]
    assert isinstance(answered, DispositionReceived)
    assert (answered.role, answered.first, answered.state) == (True, delivery_id, Accepted())
    assert (ours.credit, theirs.credit) == (9, 9)


def test_a_client_receives_as_much_as_it_grants() -> None:
    pair = Pair()
    pair.begun()
    ours, theirs = pair.link(receiving_attach(0))
    ours.grant(2)
    pair.settle()
    assert isinstance(pair.server_events[-1], CreditChanged) and theirs.credit == 2

    for body in (b"one", b"two"):
        theirs.send(body, b"t", settled=True)
    pair.settle()

    assert theirs.credit == 0
    assert [event.payload for event in pair.client_events] == [b"one", b"two"]


@pytest.mark.parametrize("size", [0, 1, 383, 384, 385, 768, 100_000])
def test_a_delivery_is_cut_to_the_frames_its_receiver_takes(size: int) -> None:
    """Smallest frames: 384 bytes of payload each, and the whole comes out at the other end."""
    pair = Pair(server_limits=AmqpLimits(frame_size_bytes_max=512))
    pair.begun()
    ours, theirs = pair.link(sending_attach(0))
    theirs.grant(10)
    pair.settle()
    body = bytes(number % 251 for number in range(size))

    ours.send(body, b"tag", settled=False)
    carried = pair.client.take_output()
    assert all(
        len(frame(each, 0, payload)) <= 512 for _channel, each, payload in frames_in(carried)
    )
    pair.server_events += pair.server.receive(carried)

    (event,) = (event for event in pair.server_events if isinstance(event, DeliveryReceived))
    assert event.payload == body
    assert theirs.delivery_count == 1


def test_links_and_sessions_end_on_both_sides() -> None:
    pair = Pair()
    session = pair.begun()
    ours, theirs = pair.link(sending_attach(0))

    theirs.detach(AmqpError(Condition.NOT_FOUND, "It was deleted."))
    pair.settle()
    (event,) = pair.client_events
    assert isinstance(event, LinkDetachedEvent) and event.link is ours
    assert event.error is not None and event.error.condition == Condition.NOT_FOUND

    session.end()
    pair.settle()
    assert isinstance(pair.server_events[-1], SessionEnded)
    assert not pair.client.sessions and not pair.server.sessions


# -- credit ---------------------------------------------------------------------------------------


def test_messages_that_cross_a_flow_are_counted_once() -> None:
    """Credit is absolute: what was sent since the receiver counted is subtracted."""
    server = Server().begun()
    link = server.outgoing_link()
    server.say(flow(handle=0, delivery_count=0, link_credit=5))
    for _ in range(3):
        link.send(b"x", b"t", settled=True)

    server.say(flow(handle=0, delivery_count=0, link_credit=10, next_incoming_id=0))

    assert link.credit == 7


@pytest.mark.parametrize(
    ("credit", "behind", "left"), [(10, 3, 7), (3, 3, 0), (2, 3, 0), (0, 0, 0), (UINT_MAX, 1, None)]
)
def test_credit_is_never_negative(credit: int, behind: int, left: int | None) -> None:
    """Case 68: a receiver that took its credit back while messages were on their way."""
    server = Server().begun()
    link = server.outgoing_link()
    link.credit = behind
    for _ in range(behind):
        link.send(b"x", b"t", settled=True)

    server.say(flow(handle=0, delivery_count=0, link_credit=credit))

    assert link.credit == (UINT_MAX - 1 if left is None else left)


def test_a_count_of_deliveries_that_were_never_sent_ends_the_link() -> None:
    server = Server().begun()
    server.outgoing_link()
    server.say(flow(handle=0, delivery_count=1, link_credit=1))

    assert detached_with(server) == Condition.INVALID_FIELD


def test_a_drain_is_answered_by_giving_the_credit_back() -> None:
    """Case 68, and the count wraps around."""
    server = Server().begun()
    link = server.outgoing_link()
    link.credit = 2
    for _ in range(2):
        link.send(b"x", b"t", settled=True)
    server.say(flow(handle=0, delivery_count=2, link_credit=UINT_MAX, drain=True))
    assert link.is_draining

    link.complete_drain()

    (told,) = server.said()[-1:]
    assert isinstance(told, Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (1, 0, True)
    server.say(flow(handle=0, delivery_count=1, link_credit=3))
    assert link.credit == 3


def test_an_echo_is_answered_for_the_link_or_for_the_session() -> None:
    server = Server().begun()
    server.incoming_link(0, credit=9)

    (of_link,) = server.say(flow(handle=0, echo=True))
    (of_session,) = server.say(flow(echo=True))

    assert isinstance(of_link, Flow) and (of_link.handle, of_link.link_credit) == (0, 9)
    assert isinstance(of_session, Flow) and of_session.handle is None


def test_credit_is_topped_up_at_half() -> None:
    server = Server().begun()
    link = server.incoming_link(0, credit=4)
    for number in range(2):
        server.say(Transfer(0, number, b"t"))
        link.replenish()

    (told,) = server.said()
    assert isinstance(told, Flow) and (told.delivery_count, told.link_credit) == (2, 4)


def test_a_sender_may_overshoot_its_credit() -> None:
    """The Azure SDK assumes 10,000 credits before it has seen any."""
    server = Server().begun()
    server.incoming_link(0, credit=1)
    for number in range(5):
        server.say(Transfer(0, number, b"t"))

    assert len(server.events) == 5 and not server.session.is_ended


# -- windows --------------------------------------------------------------------------------------


def test_what_does_not_fit_the_peers_window_waits_for_it() -> None:
    """Case 70: a window of 2, then of 0, then open again."""
    server = Server().begun(incoming_window=2)
    link = server.outgoing_link()
    link.credit = 5
    for number in range(5):
        link.send(b"%d" % number, b"t", settled=True)
    assert len(server.said()) == 2 and server.session.is_blocked

    assert server.say(flow(next_incoming_id=2, incoming_window=0)) == []
    assert not server.events
    said = server.say(flow(next_incoming_id=2, incoming_window=1))
    assert len(said) == 1 and not server.events
    said = server.say(flow(next_incoming_id=3, incoming_window=100))
    assert len(said) == 2
    assert server.events == [WindowOpened(server.session)]


def test_transfers_on_their_way_use_the_window_up() -> None:
    server = Server().begun(incoming_window=10)
    link = server.outgoing_link()
    link.credit = 100
    for _ in range(8):
        link.send(b"x", b"t", settled=True)
    server.said()

    # The peer has seen two of them when it says that it takes ten more.
    server.say(flow(next_incoming_id=2, incoming_window=10))
    for _ in range(6):
        link.send(b"x", b"t", settled=True)

    assert len(server.said()) == 4


@pytest.mark.parametrize("next_incoming_id", [1, 5_000, 2**31 - 1])
def test_a_flow_that_counts_transfers_never_sent_ends_the_session(next_incoming_id: int) -> None:
    server = Server().begun()
    server.say(flow(next_incoming_id=next_incoming_id))

    assert ended_with(server) == Condition.INVALID_FIELD


def test_the_window_may_be_used_up_to_the_last_transfer_and_not_beyond() -> None:
    """Case 70, at the limit and one above it: nothing was said in between."""
    limits = AmqpLimits(incoming_window=8)
    for count, is_ended in ((8, False), (9, True)):
        server = Server(limits).begun()
        server.incoming_link()
        server.hear(b"".join(frame(Transfer(0, number, b"t")) for number in range(count)))
        assert server.session.is_ended is is_ended
    assert ended_with(server) == Condition.SESSION_WINDOW_VIOLATION


def test_a_window_counts_from_when_the_peer_was_told() -> None:
    limits = AmqpLimits(incoming_window=8)
    server = Server(limits).begun()
    link = server.incoming_link()
    four = b"".join(frame(Transfer(0, number, b"t")) for number in range(4))

    # A flow is written and not sent yet; four transfers come that the peer was allowed before.
    server.connection.receive(four)
    link.grant(50)
    server.connection.receive(four)
    # The first flow would allow 8 from number 4 on. There is a newer one, of the moment of sending.
    told = [each for each in server.said() if isinstance(each, Flow)]
    assert (told[-1].next_incoming_id, told[-1].incoming_window) == (8, 8)
    server.connection.receive(four * 2)
    assert not server.session.is_ended
    server.connection.receive(four)
    assert server.session.is_ended


def test_transfers_between_a_flow_and_its_sending_use_the_new_window() -> None:
    server = Server(AmqpLimits(incoming_window=8)).begun()
    link = server.incoming_link()
    three = b"".join(frame(Transfer(0, number, b"t")) for number in range(3))
    link.grant(50)
    server.connection.receive(three)
    server.said()

    # The flow allowed eight from before those three.
    server.connection.receive(three + frame(Transfer(0, 9, b"t")) * 2)
    assert not server.session.is_ended
    server.connection.receive(frame(Transfer(0, 9, b"t")))
    assert server.session.is_ended


def test_transfer_numbers_wrap_around() -> None:
    server = Server(AmqpLimits(incoming_window=4)).begun(next_outgoing_id=UINT_MAX - 1)
    server.incoming_link()
    for number in range(10):
        said = server.say(Transfer(0, number, b"t"))
    told = [each for each in said if isinstance(each, Flow)]

    assert told[-1].next_incoming_id == 8
    assert not server.session.is_ended


# -- deliveries in parts --------------------------------------------------------------------------


def parts(server: Server, handle: int, *payloads: bytes, last: bool = False) -> None:
    for number, payload in enumerate(payloads):
        is_last = last and number == len(payloads) - 1
        server.say(Transfer(handle, 0, b"t", more=not is_last), payload=payload)


def test_parts_are_joined_and_later_ones_need_no_id() -> None:
    server = Server().begun()
    server.incoming_link()
    server.say(Transfer(0, 5, b"t", message_format=3, more=True), payload=b"one ")
    server.say(Transfer(0, None, None, more=True), payload=b"two ")
    server.say(Transfer(0, 5, b"t", settled=True), payload=b"three")

    event = server.take(DeliveryReceived)
    assert (event.delivery_id, event.message_format) == (5, 3)
    assert (event.payload, event.settled) == (b"one two three", True)


def test_an_aborted_delivery_is_forgotten_and_counted() -> None:
    server = Server().begun()
    link = server.incoming_link(credit=10)
    parts(server, 0, b"lost")
    server.say(Transfer(0, None, None, aborted=True))
    server.say(Transfer(0, 1, b"t", aborted=True))
    server.say(Transfer(0, 2, b"t"), payload=b"kept")

    assert [event.payload for event in server.events] == [b"kept"]
    assert (link.delivery_count, link.credit) == (3, 7)


@pytest.mark.parametrize(
    ("transfer", "condition"),
    [
        (Transfer(0, None, b"t"), Condition.INVALID_FIELD),
        (Transfer(0, 0, None), Condition.INVALID_FIELD),
        (Transfer(0, 0, b"t" * 33), Condition.INVALID_FIELD),
    ],
    ids=["no delivery id", "no tag", "tag of 33 bytes"],
)
def test_the_first_frame_of_a_delivery_says_which_it_is(transfer: Transfer, condition: str) -> None:
    """Case 71."""
    server = Server().begun()
    server.incoming_link()
    server.say(transfer)

    assert detached_with(server) == condition


def test_a_tag_may_have_32_bytes() -> None:
    server = Server().begun()
    server.incoming_link()
    server.say(Transfer(0, 0, b"t" * 32))

    assert server.take(DeliveryReceived)


def test_a_delivery_begun_within_another_ends_the_link() -> None:
    server = Server().begun()
    server.incoming_link()
    parts(server, 0, b"unfinished")
    server.say(Transfer(0, 1, b"u"))

    assert detached_with(server) == Condition.NOT_ALLOWED


@pytest.mark.parametrize("cut", [1, 60, 99, 100])
def test_a_delivery_may_be_as_large_as_its_link_allows_and_no_larger(cut: int) -> None:
    """Case 31: in two frames or in one."""
    body = bytes(101)
    for size, is_whole in ((100, True), (101, False)):
        server = Server().begun()
        server.incoming_link().message_size_bytes_max = 100
        parts(server, 0, body[:cut], body[cut:size], last=True)
        if is_whole:
            assert len(server.take(DeliveryReceived).payload) == 100
        else:
            assert detached_with(server) == Condition.LINK_MESSAGE_SIZE_EXCEEDED


def test_unfinished_deliveries_share_the_allowance_of_their_connection() -> None:
    """Case 31: at the limit, one byte above it, and again after each way to give bytes back."""
    server = Server(AmqpLimits(partial_bytes_per_connection_max=100)).begun()
    for handle in range(4):
        server.incoming_link(handle)
    parts(server, 0, bytes(60))
    parts(server, 1, bytes(40))
    assert not server.events
    parts(server, 2, b"x")
    assert detached_with(server) == Condition.RESOURCE_LIMIT_EXCEEDED

    # A finished delivery, a detached link and an ended session give their bytes back.
    parts(server, 1, b"", last=True)
    assert server.take(DeliveryReceived)
    parts(server, 1, bytes(40))
    server.say(Detach(0, True))
    assert server.take(LinkDetachedEvent).error is None
    parts(server, 3, bytes(60))
    assert not server.events
    server.say(End())
    server.say(Begin(None, 0, 100, 100))
    server.events.clear()
    server.incoming_link(0)
    parts(server, 0, bytes(100))
    assert not server.events


def test_a_link_that_failed_gives_its_bytes_back() -> None:
    server = Server(AmqpLimits(partial_bytes_per_connection_max=100)).begun()
    server.incoming_link(0).message_size_bytes_max = 80
    server.incoming_link(1)
    parts(server, 0, bytes(80), b"x")
    assert detached_with(server) == Condition.LINK_MESSAGE_SIZE_EXCEEDED

    parts(server, 1, bytes(100))
    assert not server.events


def test_an_id_that_is_not_new_is_marked() -> None:
    """Case 71: what to do about it is for the user of the link to decide."""
    server = Server().begun()
    server.incoming_link()
    for delivery_id in (5, 5, 6, 4, UINT_MAX, 7):
        server.say(Transfer(0, delivery_id, b"t"))

    marks = [event.is_repeat for event in server.events if isinstance(event, DeliveryReceived)]
    assert marks == [False, True, False, True, True, False]


def test_ids_wrap_around_without_being_marked() -> None:
    server = Server().begun()
    server.incoming_link()
    for delivery_id in (UINT_MAX - 1, UINT_MAX, 0, 1):
        server.say(Transfer(0, delivery_id, b"t"))

    assert not any(event.is_repeat for event in server.events)


# -- attach and detach ----------------------------------------------------------------------------


@pytest.mark.parametrize("handle", [0, 1_023])
def test_every_handle_up_to_the_limit_can_be_used(handle: int) -> None:
    server = Server().begun()
    server.say(sending_attach(handle))

    assert server.take(LinkAttached).link.handle == handle


BAD_ATTACHES = {
    "handle in use": (sending_attach(0, "other"), Condition.SESSION_HANDLE_IN_USE),
    "name in use": (sending_attach(1, "link-0"), Condition.NOT_ALLOWED),
    "handle above the limit": (sending_attach(1_024), Condition.NOT_ALLOWED),
}


@pytest.mark.parametrize(("attach", "condition"), BAD_ATTACHES.values(), ids=BAD_ATTACHES.keys())
def test_a_bad_attach_ends_the_session(attach: Attach, condition: str) -> None:
    """Case 67."""
    server = Server().begun()
    server.incoming_link(0)
    server.say(attach)

    assert ended_with(server) == condition


def test_the_same_name_may_be_used_in_both_directions() -> None:
    server = Server().begun()
    server.say(sending_attach(0, "cbs"))
    server.say(receiving_attach(1, "cbs"))

    assert [type(event) for event in server.events] == [LinkAttached, LinkAttached]


def test_links_are_limited_for_all_sessions_together() -> None:
    """Case 67, at the limit and one above it."""
    server = Server(AmqpLimits(links_per_connection_max=4)).begun()
    server.say(Begin(None, 0, 100, 100), channel=1)
    for handle in range(2):
        server.incoming_link(handle)
        server.say(sending_attach(handle), channel=1)
    server.events.clear()
    server.say(sending_attach(2), channel=1)

    event = server.take(SessionEnded)
    assert event.session is server.connection.sessions[1]
    assert event.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert not server.session.is_ended


def test_a_refused_attach_has_no_terminus_and_is_detached() -> None:
    """The Azure SDK reads the condition only from this form."""
    server = Server().begun()
    for attach, nothing in ((sending_attach(0), "target"), (receiving_attach(1), "source")):
        server.say(attach)
        server.take(LinkAttached).link.refuse(AmqpError(Condition.NOT_FOUND, "No such queue."))
        answered, detached = server.said()
        assert isinstance(answered, Attach) and getattr(answered, nothing) is None
        assert isinstance(detached, Detach) and detached.error is not None
        assert detached.error.condition == Condition.NOT_FOUND


def test_a_handle_that_we_detached_can_be_attached_again() -> None:
    server = Server().begun()
    for _ in range(3):
        server.say(sending_attach(0, "the same name"))
        link = server.take(LinkAttached).link
        link.refuse(AmqpError(Condition.NOT_FOUND, "No such queue."))

    assert not server.session.is_ended and server.connection.link_count == 0


def test_late_frames_for_a_link_that_we_detached_are_ignored() -> None:
    """Case 75."""
    server = Server().begun()
    link = server.incoming_link()
    link.detach()
    server.said()

    for late in (Transfer(0, 0, b"t"), flow(handle=0, link_credit=1), Detach(0, True)):
        assert server.say(late) == []
    assert not server.events
    # Its detach has answered ours. What comes now has no link at all.
    server.say(Detach(0, True))
    assert ended_with(server) == Condition.SESSION_UNATTACHED_HANDLE


@pytest.mark.parametrize(
    "said", [Transfer(7, 0, b"t"), flow(handle=7), Detach(7, True)], ids=lambda each: type(each)
)
def test_a_handle_that_was_never_attached_ends_the_session(said: Any) -> None:
    server = Server().begun()
    server.say(said)

    assert ended_with(server) == Condition.SESSION_UNATTACHED_HANDLE


def test_a_transfer_on_a_link_that_receives_ends_the_link() -> None:
    """Case 72."""
    server = Server().begun()
    server.outgoing_link()
    server.say(Transfer(0, 0, b"t"))

    assert detached_with(server) == Condition.NOT_ALLOWED


def test_a_link_that_is_gone_is_not_answered() -> None:
    """Whoever looks at an attach late finds that its link has come and gone."""
    server = Server().begun()
    server.say(sending_attach(0))
    link = server.take(LinkAttached).link
    server.say(Detach(0, True))

    link.accept(source=Source(), target=Target())
    link.refuse(AmqpError(Condition.NOT_FOUND, "No such queue."))

    assert server.said() == []


def test_nothing_is_said_on_a_session_that_ended() -> None:
    server = Server().begun()
    link = server.outgoing_link()
    link.credit = 10
    server.session.end(AmqpError(Condition.INTERNAL_ERROR, "It is over."))
    assert [type(each) for each in server.said()] == [End]

    link.detach()
    server.session.send_flow()

    assert server.said() == []


# -- dispositions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "is_taken"),
    [
        (5, None, True),
        (5, 5, True),
        (0, 2**31 - 1, True),
        (UINT_MAX, 3, True),
        (5, 4, False),
        (0, 2**31, False),
        (0, UINT_MAX, False),
    ],
)
def test_a_disposition_goes_forward(first: int, last: int | None, is_taken: bool) -> None:
    """Case 72: as serial numbers go, half of all numbers lie ahead."""
    server = Server().begun()
    server.say(Disposition(True, first, last, True, Accepted()))

    if is_taken:
        event = server.take(DispositionReceived)
        assert (event.first, event.last) == (first, first if last is None else last)
    else:
        assert ended_with(server) == Condition.INVALID_FIELD


def test_a_disposition_carries_its_state() -> None:
    server = Server().begun()
    server.say(Disposition(False, 1, 2, False, Rejected()))

    event = server.take(DispositionReceived)
    assert (event.role, event.settled, event.state) == (False, False, Rejected())


def test_serial_numbers_compare_across_the_wrap() -> None:
    assert serial_is_after(1, 0)
    assert serial_is_after(0, UINT_MAX)
    assert not serial_is_after(UINT_MAX, 0)
    assert not serial_is_after(3, 3)
    assert serial_is_after(2**31 - 1, 0)
    assert not serial_is_after(2**31, 0)

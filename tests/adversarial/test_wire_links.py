"""Right frames at the wrong moment or with the wrong numbers (cases 60, 67, 68, 70 to 73, 75)."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.adversarial.filling import filled_queue
from tests.adversarial.guards import VAULT_QUEUE, Guard, wait_until
from tests.adversarial.raw_peer import (
    CBS_REPLIES,
    FIRST_FREE_HANDLE,
    NOTHING,
    RawPeer,
    Stage,
    Verdict,
    closed,
    detached,
    ended,
    flow,
    frame,
    receiver,
    sender,
    transfer,
)
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
)

LINK = FIRST_FREE_HANDLE
UINT_MAX = 0xFFFFFFFF
NOT_ALLOWED = "amqp:not-allowed"
UNATTACHED = ended("amqp:session:unattached-handle")
INVALID = "amqp:invalid-field"
BEGIN = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
GOOD = Message(body=b"good").encode()


@pytest.fixture
def authorized(peer: RawPeer) -> RawPeer:
    """A peer with a valid token, from which the rest must be expected all the same."""
    return peer.to(Stage.AUTHORIZED)


def still_serves(peer: RawPeer) -> bool:
    """Whether the connection goes on: it can begin another session."""
    peer.say(frame(BEGIN, channel=200))
    peer.wait_for(Begin)
    return True


# -- case 60: channels ----------------------------------------------------------------------------

BAD_CHANNELS = {
    "case-60-channel-256": (frame(BEGIN, channel=256), closed(NOT_ALLOWED)),
    "case-60-channel-65535": (frame(BEGIN, channel=65_535), closed(NOT_ALLOWED)),
    "case-60-channel-in-use": (frame(BEGIN), closed(NOT_ALLOWED)),
    "case-60-65535-begins": (
        b"".join(frame(BEGIN, channel=number) for number in range(1, 65_536)),
        closed(NOT_ALLOWED),
    ),
    "case-60-frame-on-a-channel-that-was-never-begun": (
        frame(Detach(0, True), channel=77),
        closed(NOT_ALLOWED),
    ),
}


@pytest.mark.parametrize(("said", "verdict"), BAD_CHANNELS.values(), ids=BAD_CHANNELS.keys())
def test_channels_are_counted(authorized: RawPeer, said: bytes, verdict: Verdict) -> None:
    assert authorized.say(said).verdict() == verdict


def test_case_60_channel_255_is_the_last_one(authorized: RawPeer) -> None:
    authorized.say(frame(BEGIN, channel=255))

    assert authorized.wait_for(Begin).remote_channel == 255


def test_case_60_sessions_can_be_begun_and_ended_for_ever(authorized: RawPeer) -> None:
    for _ in range(20):
        authorized.say((frame(BEGIN, channel=9) + frame(End(), channel=9)) * 250)
        for _ in range(250):
            authorized.wait_for(End)

    assert still_serves(authorized)


# -- case 67: handles and names -------------------------------------------------------------------

BAD_ATTACHES = {
    "case-67-handle-in-use": (
        sender(VAULT_QUEUE, LINK) + sender(VAULT_QUEUE, LINK, name="other"),
        ended("amqp:session:handle-in-use"),
    ),
    "case-67-name-in-use": (
        sender(VAULT_QUEUE, LINK) + sender(VAULT_QUEUE, LINK + 1, name=f"link-{LINK}"),
        ended(NOT_ALLOWED),
    ),
    "case-67-handle-1024": (sender(VAULT_QUEUE, 1_024), ended(NOT_ALLOWED)),
    "case-67-handle-4-g": (sender(VAULT_QUEUE, UINT_MAX), ended(NOT_ALLOWED)),
    "case-67-no-target": (sender(None, LINK, target=None), detached(INVALID)),
    "case-67-no-source": (receiver(None, LINK, source=None), detached(INVALID)),
    "case-67-empty-address": (sender("", LINK), detached(INVALID)),
    "case-67-dynamic-node": (
        receiver(None, LINK, source=Source(address="x", dynamic=True)),
        detached("amqp:not-implemented"),
    ),
    "case-67-coordinator": (
        sender(None, LINK, target=Coordinator()),
        detached("amqp:not-implemented"),
    ),
    "case-67-unknown-filter": (
        receiver(VAULT_QUEUE, LINK, source=Source(VAULT_QUEUE, filter={Symbol("x"): "1=1"})),
        detached("amqp:not-implemented"),
    ),
    "case-67-send-to-dead-letters": (
        sender(f"{VAULT_QUEUE}/$deadletterqueue", LINK),
        detached(NOT_ALLOWED),
    ),
    "case-67-no-such-queue": (sender("no-such-queue", LINK), detached("amqp:not-found")),
    "case-67-address-of-1024-characters": (
        sender("q" * 1_024, LINK),
        detached("com.microsoft:argument-error"),
    ),
    "case-67-address-of-60-kb": (sender("q" * 60_000, LINK), ended("amqp:invalid-field")),
}


@pytest.mark.parametrize(("said", "verdict"), BAD_ATTACHES.values(), ids=BAD_ATTACHES.keys())
def test_a_bad_attach_is_refused(authorized: RawPeer, said: bytes, verdict: Verdict) -> None:
    assert authorized.say(said).verdict() == verdict


def test_case_67_a_handle_can_be_used_again_after_its_detach(authorized: RawPeer) -> None:
    for _ in range(20):
        said = sender(VAULT_QUEUE, LINK) + frame(Detach(LINK, True))
        authorized.say(said * 100)
        for _ in range(100):
            assert authorized.wait_for(Attach).handle == LINK
            assert authorized.wait_for(Detach).error is None

    assert still_serves(authorized)


def test_case_67_an_attach_and_its_detach_in_one_piece_are_answered_in_order(
    authorized: RawPeer,
) -> None:
    authorized.say(sender(VAULT_QUEUE, LINK) + frame(Detach(LINK, True)))
    heard = [authorized.next_frame()]
    while heard[-1] is not None and not isinstance(heard[-1], Detach):
        heard.append(authorized.next_frame())

    # The link to $cbs may be given credit at the same time.
    ours = [type(each) for each in heard if getattr(each, "handle", None) == LINK]
    assert ours == [Attach, Flow, Detach]


def test_case_67_a_handle_above_the_last_one_is_told_by_its_number(authorized: RawPeer) -> None:
    authorized.say(sender(VAULT_QUEUE, 1_023))

    assert authorized.wait_for(Attach).handle == 1_023


# -- cases 68 and 70: credit and windows ----------------------------------------------------------

FLOWS = {
    "case-68-zero-credit-and-drain": (
        receiver(VAULT_QUEUE, LINK) + flow(handle=LINK, link_credit=0, drain=True),
        NOTHING,
    ),
    "case-68-credit-without-a-count": (
        receiver(VAULT_QUEUE, LINK) + flow(handle=LINK, link_credit=0, delivery_count=None),
        NOTHING,
    ),
    "case-68-count-that-was-never-reached": (
        receiver(VAULT_QUEUE, LINK) + flow(handle=LINK, link_credit=1, delivery_count=5),
        detached(INVALID),
    ),
    "case-68-count-before-zero": (
        receiver(VAULT_QUEUE, LINK) + flow(handle=LINK, link_credit=0, delivery_count=UINT_MAX),
        NOTHING,
    ),
    "case-68-unknown-handle": (flow(handle=900, link_credit=1), UNATTACHED),
    "case-68-handle-4-g": (flow(handle=UINT_MAX, link_credit=1), UNATTACHED),
    "case-68-flow-on-a-link-that-sends-to-us": (
        sender(VAULT_QUEUE, LINK) + flow(handle=LINK, link_credit=UINT_MAX, delivery_count=9),
        NOTHING,
    ),
    "case-70-window-0": (flow(incoming_window=0), NOTHING),
    "case-70-window-4-g": (flow(incoming_window=UINT_MAX, outgoing_window=UINT_MAX), NOTHING),
    "case-70-transfers-that-were-never-sent": (flow(next_incoming_id=5_000), ended(INVALID)),
    "case-70-no-incoming-id": (flow(next_incoming_id=None), NOTHING),
    "case-70-echo-for-the-session": (flow(echo=True), NOTHING),
}


@pytest.mark.parametrize(("said", "verdict"), FLOWS.values(), ids=FLOWS.keys())
def test_the_numbers_of_a_flow_are_checked(
    authorized: RawPeer, said: bytes, verdict: Verdict
) -> None:
    authorized.say(said)
    if verdict == NOTHING:
        assert still_serves(authorized)
    else:
        assert authorized.verdict() == verdict


def test_case_68_a_drain_gives_the_credit_back(authorized: RawPeer, broker: BrokerProcess) -> None:
    queue = broker.fresh_queue()
    authorized.say(receiver(queue, LINK))
    authorized.wait_for(Attach)
    for credit in (10, UINT_MAX, 2**31):
        authorized.say(flow(handle=LINK, link_credit=0, delivery_count=0, echo=True))
        start = authorized.wait_for(Flow).delivery_count
        authorized.say(flow(handle=LINK, link_credit=credit, delivery_count=start, drain=True))
        answer = authorized.wait_for(Flow)

        assert answer.link_credit == 0
        assert answer.delivery_count == (start + credit) % 2**32
        # What follows starts from there again, as the counts wrap around.
        authorized.say(frame(Detach(LINK, True)) + receiver(queue, LINK))
        authorized.wait_for(Attach)


def test_case_70_whoever_ignores_the_window_loses_at_most_the_session(authorized: RawPeer) -> None:
    """Whether it is caught depends on what was read at once; the engine's own test decides that."""
    authorized.say(sender(VAULT_QUEUE, LINK))
    authorized.wait_for(Attach)

    verdict = authorized.say(transfer(LINK, 1, b"", more=True) * 20_000).verdict()

    assert verdict in (ended("amqp:session:window-violation"), NOTHING)
    assert still_serves(authorized)


def test_case_70_nothing_is_sent_into_a_closed_window(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = filled_queue(broker, 3)
    authorized.say(receiver(queue, LINK))
    authorized.wait_for(Attach)
    # The token's answer was one transfer of this session.
    authorized.say(flow(handle=LINK, link_credit=10, incoming_window=0, next_incoming_id=1))
    assert authorized.next_frame(0.2) is None

    authorized.say(flow(incoming_window=2, next_incoming_id=1))
    assert authorized.wait_for(Transfer).delivery_id == 1
    assert authorized.wait_for(Transfer).delivery_id == 2
    assert authorized.next_frame(0.2) is None


def test_a_delivery_of_a_run_that_is_sent_again_is_stored_once(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    """M10: deliveries that came together are remembered like single ones, before and after their
    acknowledgement."""
    queue = broker.fresh_queue()
    authorized.say(sender(queue, LINK))
    authorized.wait_for(Attach)
    # Only frames with ids of four bytes are taken together.
    ids = range(1_000, 1_040)
    frames = [transfer(LINK, each, Message(body=b"%d" % each).encode()) for each in ids]

    authorized.say(b"".join(frames) + frames[-1])
    last = 0
    while last < ids[-1]:
        last = authorized.wait_for(Disposition).last
    authorized.say(frames[-2])

    answer = authorized.wait_for(Disposition)
    assert (answer.first, answer.last, answer.state) == (ids[-2], ids[-2], Accepted())
    assert broker.queue(queue)["active_message_count"] == 40


# -- cases 72 and 73: dispositions ----------------------------------------------------------------

STATES = {
    "accepted": Accepted(),
    "released": Released(),
    "rejected": Rejected(),
    "modified": Modified(True, True),
    "none": None,
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 0), (0, 2**31 - 1), (5_000, 6_000), (2**31, UINT_MAX), (UINT_MAX, 5), (7, None)],
)
def test_case_72_a_disposition_of_what_was_never_delivered_changes_nothing(
    authorized: RawPeer, state: object, first: int, last: int | None
) -> None:
    said = frame(Disposition(True, first, last, True, state))

    assert authorized.say(said * 200) and still_serves(authorized)


@pytest.mark.parametrize(("first", "last"), [(9, 8), (0, UINT_MAX), (0, 2**31), (1, 0)])
def test_case_72_a_disposition_that_runs_backwards_ends_the_session(
    authorized: RawPeer, first: int, last: int
) -> None:
    said = frame(Disposition(True, first, last, False, Accepted()))

    assert authorized.say(said).verdict() == ended(INVALID)


def test_case_72_a_disposition_of_two_thousand_million_takes_no_longer_than_one(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = filled_queue(broker, 3)
    authorized.say(receiver(queue, LINK) + flow(handle=LINK, link_credit=10, next_incoming_id=1))
    for _ in range(3):
        authorized.wait_for(Transfer)

    authorized.say(frame(Disposition(True, 0, 2**31 - 1, False, Accepted())))
    settled: dict[int, type] = {}
    while len(settled) < 4:
        answer = authorized.wait_for(Disposition)
        settled |= dict.fromkeys(range(answer.first, answer.last + 1), type(answer.state))

    # Delivery 0 was the answer to the token; 1 to 3 are the messages.
    assert settled == {0: Rejected, 1: Accepted, 2: Accepted, 3: Accepted}
    assert broker.queue(queue)["active_message_count"] == 0


def test_case_72_settling_again_and_again_is_answered_once_for_each_frame(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    """M2: a lock settles once; a hundred locks that are lost are told in one range."""
    queue = filled_queue(broker, 100)
    authorized.say(receiver(queue, LINK))
    for number in range(100):
        authorized.say(flow(handle=LINK, link_credit=1, delivery_count=number, next_incoming_id=1))
        authorized.wait_for(Transfer)
    authorized.say(frame(Disposition(True, 1, 100, True, Accepted())))
    before = len(authorized.heard)

    authorized.say(frame(Disposition(True, 1, 100, False, Accepted())) * 50)
    answers = [authorized.wait_for(Disposition) for _ in range(50)]

    assert {(each.first, each.last) for each in answers} == {(1, 100)}
    assert {str(each.state.error.condition) for each in answers} == {
        "com.microsoft:message-lock-lost"
    }
    assert len(authorized.heard) - before < 50 * 300


def test_case_73_a_delivery_of_another_connection_cannot_be_settled(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    """M2: delivery ids mean something on their own session only."""
    queue = filled_queue(broker, 1)
    with connected(broker.port, broker.token()) as owner:
        link = owner.attach_receiver(queue)
        link.grant(1)
        event = owner.wait_for(DeliveryReceived, lambda received: received.link is link)

        for first in range(5):
            authorized.say(frame(Disposition(True, first, first, False, Accepted())))
        assert still_serves(authorized)

        assert broker.queue(queue)["locked_message_count"] == 1
        owner.complete(event.delivery_id)


def test_case_73_a_delivery_of_another_session_cannot_be_settled(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = filled_queue(broker, 1)
    authorized.say(receiver(queue, LINK) + flow(handle=LINK, link_credit=1, next_incoming_id=1))
    authorized.wait_for(Transfer)

    authorized.say(frame(BEGIN, channel=5))
    authorized.wait_for(Begin)
    authorized.say(frame(Disposition(True, 0, 5, True, Accepted()), channel=5))

    assert still_serves(authorized)
    assert broker.queue(queue)["active_message_count"] == 1


def test_case_72_a_transfer_on_a_link_that_receives_ends_the_link(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = broker.fresh_queue()
    authorized.say(receiver(queue, LINK))
    authorized.wait_for(Attach)

    assert authorized.say(transfer(LINK, 1, GOOD)).verdict() == detached(NOT_ALLOWED)
    assert broker.queue(queue)["active_message_count"] == 0


# -- case 75: ends ---------------------------------------------------------------------------------


def test_case_75_a_storm_of_detaches_ends_the_session_once(authorized: RawPeer) -> None:
    said = frame(Detach(CBS_REPLIES, True)) + frame(Detach(CBS_REPLIES, True)) * 10_000

    assert authorized.say(said).verdict() == Verdict("detach")
    assert authorized.verdict() == UNATTACHED
    assert still_serves(authorized)


def test_case_75_frames_for_a_link_that_we_detached_are_ignored(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    """They may have been on their way when the link was ended."""
    late = transfer(LINK, 2, GOOD) + flow(handle=LINK, link_credit=5) + frame(Detach(LINK, True))
    said = sender("no-such-queue", LINK) + late

    assert authorized.say(said).verdict() == detached("amqp:not-found")
    assert still_serves(authorized)


def test_case_75_an_end_in_the_middle_of_a_delivery_drops_the_delivery(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = broker.fresh_queue()
    authorized.say(sender(queue, LINK))
    authorized.wait_for(Attach)
    authorized.say(transfer(LINK, 1, GOOD[:4], more=True) + frame(End()))
    authorized.wait_for(End)

    # Frames that come too late for the session are ignored.
    authorized.say(transfer(LINK, 1, GOOD[4:]) + frame(Detach(LINK, True)) + flow())

    assert still_serves(authorized)
    assert broker.queue(queue)["active_message_count"] == 0


def test_case_75_a_detach_in_the_middle_of_a_delivery_drops_the_delivery(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = broker.fresh_queue()
    authorized.say(sender(queue, LINK))
    authorized.wait_for(Attach)
    for _ in range(100):
        said = transfer(LINK, 1, bytes(100_000), more=True) + frame(Detach(LINK, True))
        authorized.say(said + sender(queue, LINK))
        authorized.wait_for(Attach)

    assert authorized.say(transfer(LINK, 2, GOOD)).verdict() == Verdict("accepted")
    assert broker.queue(queue)["active_message_count"] == 1


def test_case_75_what_follows_a_close_is_not_read(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = broker.fresh_queue()
    authorized.say(sender(queue, LINK))
    authorized.wait_for(Attach)

    authorized.say(frame(Close()) + transfer(LINK, 1, GOOD) + frame(Close()) + b"garbage")

    assert authorized.wait_for(Close).error is None
    assert authorized.await_end() == b""
    assert broker.queue(queue)["active_message_count"] == 0


def test_case_75_a_message_that_was_sent_before_the_close_is_kept(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = broker.fresh_queue()
    authorized.say(sender(queue, LINK))
    authorized.wait_for(Attach)

    authorized.say(transfer(LINK, 1, GOOD) + frame(Close()))

    authorized.wait_for(Close)
    wait_until(
        lambda: broker.queue(queue)["active_message_count"] == 1, lambda: "the message is lost"
    )


def test_case_75_a_close_with_an_error_of_the_peers_own_words_is_not_logged(
    authorized: RawPeer, guard: Guard
) -> None:
    """What a peer says can hold line breaks, to look like lines of ours."""
    guard.log_lines_max = 0
    authorized.say(frame(Close(Error("x\n2026 CRITICAL the broker is on fire", "yes\r\n"))))

    assert authorized.verdict() == Verdict("close")


def test_case_75_a_reset_in_the_middle_of_everything_leaves_nothing_behind(
    broker: BrokerProcess, guard: Guard
) -> None:
    guard.log_lines_max = 0
    for _ in range(50):
        peer = RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED)
        peer.say(sender(VAULT_QUEUE, LINK) + transfer(LINK, 1, GOOD[:3], more=True))
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()


def test_the_target_of_a_link_may_be_anything_on_the_receiving_side(authorized: RawPeer) -> None:
    """Case 67: what we do not use is repeated, not judged."""
    authorized.say(receiver(VAULT_QUEUE, LINK, target=Target(address=None)))

    assert authorized.wait_for(Attach).source.address == VAULT_QUEUE

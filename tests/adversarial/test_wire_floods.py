"""Too much of what is allowed (cases 55, 67, 69 and the limits of the connection).

Each of these peers has a valid token and speaks correct AMQP. What bounds them is a named limit,
and what they are told when they reach it.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest

from tests.adversarial.filling import fill, filled_queue
from tests.adversarial.guards import VAULT_QUEUE, Guard
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    detached,
    ended,
    flow,
    frame,
    receiver,
    sender,
    transfer,
)
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.codec.types import Int, Long
from twinbus.amqp.frames import HEARTBEAT, PROTOCOL_SASL
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Rejected,
    Released,
    Transfer,
)

LINK = FIRST_FREE_HANDLE
UINT_MAX = 0xFFFFFFFF
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
BEGIN = Begin(next_outgoing_id=0, incoming_window=1_000_000, outgoing_window=1_000_000)
QUIET_S = 0.3
PATIENCE_S = 10.0


@pytest.fixture
def authorized(peer: RawPeer) -> RawPeer:
    return peer.to(Stage.AUTHORIZED)


def hears_exactly(peer: RawPeer, expected: int) -> bool:
    """Whether that many transfers come, and then no more."""
    count = 0
    while (heard := peer.next_frame(QUIET_S if count >= expected else PATIENCE_S)) is not None:
        count += isinstance(heard, Transfer)
    assert count == expected, f"{count} transfers came instead of {expected}"
    return True


def wide_open(handle: int, credit: int = 1_000_000) -> bytes:
    return flow(
        handle=handle, link_credit=credit, incoming_window=1_000_000_000, next_incoming_id=0
    )


# -- case 69: unsettled floods --------------------------------------------------------------------


def test_case_69_a_receiver_that_never_settles_is_given_2048(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    limit = DEFAULT_LIMITS.unsettled_per_link_max
    queue = filled_queue(broker, limit + 500)
    authorized.say(receiver(queue, LINK) + wide_open(LINK))

    assert hears_exactly(authorized, limit)

    # It is given as many more as it settles.
    authorized.say(frame(Disposition(True, 1, 100, True, Accepted())))
    assert hears_exactly(authorized, 100)
    authorized.say(frame(Disposition(True, 101, 101, True, Released())))
    assert hears_exactly(authorized, 1)


def test_case_69_a_connection_that_never_settles_is_given_16384(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    limit = DEFAULT_LIMITS.unsettled_per_connection_max
    queue = filled_queue(broker, limit + 1_000)
    link_count = 10
    authorized.say(
        *[receiver(queue, LINK + number) for number in range(link_count)],
        *[wide_open(LINK + number) for number in range(link_count)],
    )

    assert hears_exactly(authorized, limit)

    # Whoever settles makes room for all the links of the connection.
    authorized.say(frame(Disposition(True, 1, 300, True, Accepted())))
    assert hears_exactly(authorized, 300)


def test_case_69_a_link_that_comes_and_goes_does_not_get_more(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    """M2: locks outlive their link, and so they go on counting for the connection."""
    limit = DEFAULT_LIMITS.unsettled_per_connection_max
    queue = filled_queue(broker, limit + 1_000)
    for given in [DEFAULT_LIMITS.unsettled_per_link_max] * 8 + [0]:
        authorized.say(receiver(queue, LINK) + wide_open(LINK))
        assert hears_exactly(authorized, given)
        authorized.say(frame(Detach(LINK, True)))

    assert broker.queue(queue)["locked_message_count"] == limit


def test_case_69_the_locks_of_one_connection_do_not_count_for_another(
    authorized: RawPeer, broker: BrokerProcess
) -> None:
    queue = filled_queue(broker, DEFAULT_LIMITS.unsettled_per_link_max + 10)
    authorized.say(receiver(queue, LINK) + wide_open(LINK))
    assert hears_exactly(authorized, DEFAULT_LIMITS.unsettled_per_link_max)

    with RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED) as other:
        other.say(receiver(queue, LINK) + wide_open(LINK))
        assert hears_exactly(other, 10)


def test_case_69_a_connection_that_locks_and_leaves_leaves_only_its_locks(
    broker: BrokerProcess, guard: Guard
) -> None:
    """M2: the lock outlives the connection; what the connection held in memory does not."""
    guard.memory_growth_bytes_max = 4 << 20
    count = 100
    queue = filled_queue(broker, count)
    guard.rebase_memory()
    for _ in range(count):
        with RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED) as each:
            each.say(receiver(queue, LINK) + wide_open(LINK, 1) + HEARTBEAT * 12_000)
            each.wait_for(Transfer)

    assert broker.queue(queue)["locked_message_count"] == count


# -- case 67: link floods -------------------------------------------------------------------------


def test_case_67_a_connection_has_1024_links(authorized: RawPeer) -> None:
    free = DEFAULT_LIMITS.links_per_connection_max - FIRST_FREE_HANDLE
    authorized.say(*[sender(VAULT_QUEUE, LINK + number) for number in range(free)])
    for _ in range(free):
        assert authorized.wait_for(Attach).target is not None

    authorized.say(frame(BEGIN, channel=1))
    authorized.wait_for(Begin)
    said = sender(VAULT_QUEUE, 0)
    authorized.say(said[:6] + b"\x00\x01" + said[8:])

    assert authorized.verdict() == ended(RESOURCE_LIMIT)


def test_case_67_a_flood_of_attaches_to_nowhere_is_refused_one_by_one(
    authorized: RawPeer, guard: Guard
) -> None:
    guard.log_lines_max = 0
    for _ in range(30):
        authorized.say(sender("no-such-queue", LINK) * 100)
        for _ in range(100):
            assert str(authorized.wait_for(Detach).error.condition) == "amqp:not-found"


def test_case_67_a_flood_of_attaches_and_detaches_at_the_limit(authorized: RawPeer) -> None:
    """The thousandth link costs no more than the first."""
    full = [sender(VAULT_QUEUE, LINK + number) for number in range(1_000)]
    authorized.say(*full)
    for _ in range(1_000):
        authorized.wait_for(Attach)
    said = sender(VAULT_QUEUE, LINK + 1_000) + frame(Detach(LINK + 1_000, True))
    for _ in range(20):
        authorized.say(said * 100)
        for _ in range(100):
            authorized.wait_for(Detach)


def test_case_67_links_of_ended_sessions_do_not_count(authorized: RawPeer) -> None:
    """A limit that is reached by coming and going would lock honest clients out."""
    attach = sender(VAULT_QUEUE, 0)
    on_channel_1 = attach[:6] + b"\x00\x01" + attach[8:]
    begin, end = frame(BEGIN, channel=1), frame(End(), channel=1)
    for _ in range(15):
        authorized.say((begin + on_channel_1 + end) * 100)
        for _ in range(100):
            assert authorized.wait_for(End).error is None


# -- peers that do not read -----------------------------------------------------------------------


def test_a_peer_that_asks_and_does_not_read_is_not_listened_to(
    authorized: RawPeer, guard: Guard
) -> None:
    """Case 68: every flow asks for an echo; nothing of it is read. Memory is what counts."""
    guard.memory_growth_bytes_max = 24 << 20
    echo = flow(echo=True, incoming_window=1_000) * 2_000
    sent = 0
    authorized.socket.settimeout(0.5)
    try:
        while sent < 100_000_000:
            sent += authorized.socket.send(echo)
    except TimeoutError:
        pass

    assert sent < 50_000_000, "the broker went on reading"
    # Once it is read from, it is listened to again.
    heard = 0
    while (answer := authorized.next_frame(0.3)) is not None and heard < 10_000:
        heard += isinstance(answer, Flow)
    assert heard == 10_000


def test_a_receiver_that_does_not_read_is_given_no_more(
    authorized: RawPeer, broker: BrokerProcess, guard: Guard
) -> None:
    """Case 69: a thousand messages of 100 KB, a hundred links, and nobody who reads."""
    guard.memory_growth_bytes_max = 48 << 20
    queue = filled_queue(broker, 1_000, bytes(100_000))
    guard.rebase_memory()
    link_count = 100
    authorized.say(
        *[receiver(queue, LINK + number) for number in range(link_count)],
        *[wide_open(LINK + number, 10) for number in range(link_count)],
    )
    time.sleep(1)

    assert broker.queue(queue)["locked_message_count"] < 200
    assert hears_exactly(authorized, 1_000)


def test_a_receiver_with_a_closed_window_is_given_no_more(
    authorized: RawPeer, broker: BrokerProcess, guard: Guard
) -> None:
    """Case 70: the same with a session window of 0: what waits for it is bounded as well."""
    guard.memory_growth_bytes_max = 48 << 20
    queue = filled_queue(broker, 1_000, bytes(100_000))
    guard.rebase_memory()
    for number in range(100):
        authorized.say(receiver(queue, LINK + number) + shut(handle=LINK + number, link_credit=100))
        authorized.wait_for(Attach)

    assert broker.queue(queue)["locked_message_count"] < 100


def test_a_window_that_is_closed_before_messages_come_stops_all_its_links(
    authorized: RawPeer, broker: BrokerProcess, guard: Guard
) -> None:
    """Case 70: every link had credit and room when it was opened."""
    guard.memory_growth_bytes_max = 48 << 20
    queue = broker.fresh_queue()
    for number in range(300):
        authorized.say(receiver(queue, LINK + number) + wide_open(LINK + number, 10))
        authorized.wait_for(Attach)
    authorized.say(shut(echo=True))
    authorized.wait_for(Flow)

    fill(broker, queue, 500, bytes(100_000))

    assert broker.queue(queue)["locked_message_count"] < 100


def shut(**fields: object) -> bytes:
    """A flow that closes the session's window; the answer to the token was one transfer."""
    return flow(incoming_window=0, next_incoming_id=1, **fields)


def peek(number: int) -> bytes:
    """A request for as many messages as a reply can hold."""
    return Message(
        properties=Properties(message_id=f"peek-{number}", reply_to="here"),
        application_properties={"operation": "com.microsoft:peek-message"},
        body=AmqpValue({"from-sequence-number": Long(1), "message-count": Int(1_000)}),
    ).encode()


@pytest.fixture
def curious(authorized: RawPeer, broker: BrokerProcess, guard: Guard) -> RawPeer:
    """A peer with links for requests (LINK) and replies (LINK + 1), and a megabyte to ask for."""
    queue = filled_queue(broker, 20, bytes(100_000))
    guard.rebase_memory()
    node = f"{queue}/$management"
    authorized.say(receiver(node, LINK + 1), sender(node, LINK))
    authorized.wait_for(Attach)
    authorized.wait_for(Attach)
    return authorized


def test_replies_that_nobody_takes_are_bounded(curious: RawPeer, guard: Guard) -> None:
    """Case 68: a megabyte for a hundred bytes, and no credit for it."""
    guard.memory_growth_bytes_max = 48 << 20
    curious.timeout_s = 10

    curious.say(*[transfer(LINK, number, peek(number), settled=True) for number in range(1, 300)])

    assert curious.verdict() == detached(RESOURCE_LIMIT)


def test_replies_into_a_closed_window_are_bounded(curious: RawPeer, guard: Guard) -> None:
    guard.memory_growth_bytes_max = 48 << 20
    curious.timeout_s = 10
    curious.say(flow(handle=LINK + 1, link_credit=UINT_MAX, incoming_window=0, next_incoming_id=1))

    curious.say(*[transfer(LINK, number, peek(number), settled=True) for number in range(1, 300)])

    assert curious.verdict() == detached(RESOURCE_LIMIT)


def test_replies_that_nobody_reads_are_bounded(curious: RawPeer, guard: Guard) -> None:
    guard.memory_growth_bytes_max = 48 << 20
    curious.say(wide_open(LINK + 1))
    curious.say(*[transfer(LINK, number, peek(number), settled=True) for number in range(1, 81)])
    time.sleep(1)

    assert hears_exactly(curious, 80)


def test_deferred_messages_are_asked_for_in_portions(
    authorized: RawPeer, broker: BrokerProcess, guard: Guard
) -> None:
    """Case 86: a thousand numbers are a short request; what lies behind them may be anything."""
    count = 400
    queue = filled_queue(broker, count, bytes(100_000))
    authorized.say(receiver(queue, LINK) + wide_open(LINK))
    assert hears_exactly(authorized, count)
    deferred = Modified(delivery_failed=True, undeliverable_here=True)
    authorized.say(frame(Disposition(True, 1, count, False, deferred)))
    authorized.wait_for(Disposition)
    guard.rebase_memory()
    node = f"{queue}/$management"
    authorized.say(receiver(node, LINK + 1), sender(node, LINK + 2), wide_open(LINK + 1))

    statuses = []
    for numbers in (range(1, count + 1), range(1, 11)):
        authorized.say(transfer(LINK + 2, numbers.stop, deferred_request(numbers), settled=True))
        reply = whole_reply(authorized)
        statuses.append(dict(reply.application_properties or {})["statusCode"])

    assert statuses == [400, 200]


def deferred_request(numbers: range) -> bytes:
    return Message(
        properties=Properties(message_id="deferred", reply_to="here"),
        application_properties={"operation": "com.microsoft:receive-by-sequence-number"},
        body=AmqpValue({"sequence-numbers": [Long(number) for number in numbers]}),
    ).encode()


def whole_reply(peer: RawPeer) -> Message:
    """The next reply, which may come in several frames."""
    payload = b""
    while True:
        part = peer.wait_for(Transfer)
        payload += peer.payload
        if not part.more:
            return Message.decode(payload)


# -- many connections -----------------------------------------------------------------------------

STOPS = {
    "case-55-nothing": b"",
    "case-55-one-byte": b"A",
    "case-55-half-a-header": PROTOCOL_SASL[:5],
    "case-55-a-header": PROTOCOL_SASL,
    "case-55-half-a-frame": PROTOCOL_SASL + b"\x00\x00\x00\x20\x02\x01",
}


@pytest.mark.parametrize("said", STOPS.values(), ids=STOPS.keys())
def test_two_hundred_peers_that_stop_in_the_middle(
    broker: BrokerProcess, guard: Guard, said: bytes
) -> None:
    guard.log_lines_max = 0
    peers = [RawPeer(broker.port).say(said) for _ in range(200)]
    guard.bystander.await_rounds(3)
    for each in peers:
        each.close()


def test_case_55_a_thousand_connections_one_after_the_other(
    broker: BrokerProcess, guard: Guard
) -> None:
    guard.log_lines_max = 0
    for _ in range(1_000):
        RawPeer(broker.port).close()


def test_a_flood_of_offences_is_not_a_flood_of_the_log(broker: BrokerProcess, guard: Guard) -> None:
    """Guard G5: at most ten lines in a second, and one that says how many were left out."""
    guard.log_lines_max = 60
    began = time.monotonic()
    for _ in range(500):
        with RawPeer(broker.port) as each:
            each.say(b"GET / HTTP/1.1\r\n\r\n")
            each.await_end()
    guard.log_lines_max = 11 * (2 + int(time.monotonic() - began))
    assert guard.log_lines_max < 400


def test_heartbeats_by_the_million_bytes_are_only_heartbeats(authorized: RawPeer) -> None:
    """Case 74."""
    for _ in range(20):
        authorized.say(HEARTBEAT * 10_000)

    authorized.say(frame(BEGIN, channel=3))
    assert authorized.wait_for(Begin).remote_channel == 3


# -- everything at once ---------------------------------------------------------------------------

FLOODS = {
    "begin-and-end": frame(BEGIN, channel=9) + frame(End(), channel=9),
    "attach-to-nowhere": sender("no-such-queue", LINK),
    "attach-and-detach": sender(VAULT_QUEUE, LINK) + frame(Detach(LINK, True)),
    "echo": flow(echo=True, incoming_window=1_000_000),
    "dispositions": frame(Disposition(True, 0, 2**31 - 1, False, Accepted())),
    "bad-messages": sender(VAULT_QUEUE, LINK)
    + transfer(LINK, 1, b"\x00\x53", settled=True) * 50
    + frame(Detach(LINK, True)),
}
FLOOD_S = 2.0


def test_six_peers_at_full_speed_leave_room_for_others(broker: BrokerProcess, guard: Guard) -> None:
    """Guard G2: each keeps the broker busy all the time; the bystander is served in between."""
    peers = {name: RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED) for name in FLOODS}
    heard_bytes = dict.fromkeys(FLOODS, 0)
    for peer in peers.values():
        peer.socket.setblocking(False)
    stop = time.monotonic() + FLOOD_S
    waiting = dict.fromkeys(FLOODS, b"")
    while time.monotonic() < stop:
        for name, peer in peers.items():
            waiting[name] = waiting[name] or FLOODS[name] * 200
            with suppress(BlockingIOError):
                waiting[name] = waiting[name][peer.socket.send(waiting[name]) :]
            with suppress(BlockingIOError):
                heard_bytes[name] += len(peer.socket.recv(1 << 18))
        time.sleep(0.001)
    for peer in peers.values():
        peer.close()

    # What was never delivered needs no answer.
    assert heard_bytes.pop("dispositions") == 0
    assert all(size > 1_000 for size in heard_bytes.values()), heard_bytes


# -- frames in any order --------------------------------------------------------------------------

CONNECTIONS_PER_SEED = 15
FRAMES_PER_CONNECTION = 40
# Links of a fuzzed connection: the queue in both directions, and its management.
SEND, RECEIVE, ASK, ANSWER = range(LINK, LINK + 4)


def links_to(queue: str) -> bytes:
    """Frames that open a link of every kind, with credit."""
    node = f"{queue}/$management"
    return b"".join(
        (
            sender(queue, SEND),
            receiver(queue, RECEIVE),
            sender(node, ASK),
            receiver(node, ANSWER),
            wide_open(RECEIVE, 50),
            wide_open(ANSWER, 50),
        )
    )


def any_frame(chance: random.Random, queue: str) -> bytes:
    """A correct frame that often makes sense and often has a number that does not."""
    number = chance.choice([0, 1, 2, 3, 255, 1_000, 1_001, 2**31 - 1, 2**31, UINT_MAX])
    handle = chance.choice([SEND, RECEIVE, ASK, ANSWER] * 5 + [0, 1, 9])
    state = chance.choice([Accepted(), Released(), Modified(True, True), Rejected(), None])
    is_settled = chance.random() < 0.5
    message = Message(body=chance.randbytes(chance.choice([0, 1, 5_000]))).encode()
    request = chance.choice([peek(1), deferred_request(range(1, 9)), message])
    said = chance.choices(
        [
            transfer(SEND, chance.randrange(1_000, 1_100), message, settled=is_settled),
            transfer(ASK, number, request, settled=is_settled),
            transfer(SEND, number, message[:3], more=is_settled),
            transfer(SEND, None, message[3:], aborted=is_settled),
            flow(handle=handle, link_credit=number, next_incoming_id=chance.choice([0, 1, 5])),
            flow(incoming_window=number, echo=is_settled),
            flow(handle=handle, link_credit=9, drain=True, echo=True),
            frame(Disposition(True, 0, chance.choice([3, number]), is_settled, state)),
            frame(Disposition(is_settled, number, None, True, state)),
            frame(Detach(handle, True)) + links_to(queue)[: chance.choice([0, 80])],
            sender(queue, handle),
            receiver(queue, handle),
            frame(BEGIN, channel=chance.randrange(1, 4)),
            frame(End(), channel=chance.randrange(1, 4)),
            HEARTBEAT,
            frame(Open("again")),
        ],
        weights=[8, 5, 2, 2, 6, 4, 3, 8, 3, 1, 1, 1, 1, 1, 1, 0.05],
    )[0]
    if chance.random() < 0.01:
        position = chance.randrange(len(said))
        said = said[:position] + chance.randbytes(1) + said[position + 1 :]
    return said


@pytest.mark.parametrize("seed", range(6))
def test_frames_in_any_order_only_hurt_who_sends_them(
    broker: BrokerProcess, guard: Guard, seed: int
) -> None:
    """Sequence fuzz over real sockets; the same seed says the same."""
    guard.log_lines_max = CONNECTIONS_PER_SEED
    chance = random.Random(seed)
    queue = filled_queue(broker, 20)
    heard: set[type] = set()
    for _ in range(CONNECTIONS_PER_SEED):
        with RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED) as each:
            each.say(links_to(queue))
            each.say(*[any_frame(chance, queue) for _ in range(FRAMES_PER_CONNECTION)])
            while (answer := each.next_frame(0.02)) is not None:
                heard.add(type(answer))

    assert heard >= {Attach, Flow, Transfer, Disposition}, "the fuzz does not get anywhere"

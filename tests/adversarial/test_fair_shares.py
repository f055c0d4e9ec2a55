"""One key's load is not another's (cases 125 to 139): memory, pending bytes, turns and batches.

Each case has a prober on another entity with another key; see prober.py for what it may see. What
takes no process is in ``tests/unit/broker/fairness/test_turns.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.adversarial.flood import Flood, flooding
from tests.adversarial.guards import KEPT_BYTES_MAX, wait_until
from tests.adversarial.prober import attacked
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    ended,
    sender,
    transfer,
)
from tests.adversarial.talk import BATCH, batch_of
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Attach, Disposition

KEYS = {"primary_key": "A" * 43 + "=", "secondary_key": "B" * 43 + "="}
ATTACK_S = 4.0
LINK = FIRST_FREE_HANDLE
LINK_COUNT = 1_000
# What a link costs, and what the allocator makes of a thousand of them.
LINK_BYTES_MAX = 16 << 10


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own: nobody else's load is in its figures."""
    with BrokerProcess(tmp_path_factory.mktemp("tenancy") / "data") as broker:
        yield broker
        assert broker.is_alive, broker.log()


@pytest.fixture(autouse=True)
def around(tenancy: BrokerProcess) -> Iterator[None]:
    """The prober is the guard of these cases; beside it, nothing strange in the log."""
    yield
    assert "Traceback" not in tenancy.log(), tenancy.log()[-4_000:]


def send_only(broker: BrokerProcess, **properties: object) -> tuple[str, str]:
    """A queue and a token that allows nothing but to send to it."""
    rule = {"name": "sender", "claims": ["Send"], **KEYS}
    queue = broker.fresh_queue(authorization_rules=[rule], **properties)
    return queue, broker.token(path=queue, rule=("sender", KEYS["primary_key"]))


def attack(broker: BrokerProcess, flood: Flood, **properties: object) -> str:
    """A flood by a key that can only send, and a prober beside it; the queue it went to."""
    queue, token = send_only(broker, **properties)
    with attacked(broker) as under, flooding(broker, queue, token, flood):
        under.lasted(ATTACK_S)
    return queue


# -- memory ---------------------------------------------------------------------------------------


def test_case_125_refused_deliveries_leave_nothing_in_memory(tenancy: BrokerProcess) -> None:
    """M13: what is kept of a refusal is its state, not the message that was refused."""
    queue = attack(tenancy, Flood(links=100, body_bytes=300_000))
    assert tenancy.queue(queue)["active_message_count"] == 0


def test_case_126_a_full_queue_refuses_a_crowd_without_remembering_it(
    tenancy: BrokerProcess,
) -> None:
    """M11: everybody is refused for as long as they like to try."""
    queue = attack(tenancy, Flood(connections=60, links=10), max_size_mb=1)
    assert tenancy.queue(queue)["size_in_bytes"] <= 1 << 20


def test_case_127_a_thousand_links_of_a_sender_are_small(tenancy: BrokerProcess) -> None:
    """M13: each of them has sent more than it remembers."""

    def memory_with(links: int) -> int:
        """In use while so many links are open that have sent 20,000 messages together."""
        queue, token = send_only(tenancy)
        flood = Flood(links=links, body_bytes=4_000, sends_max=20 * LINK_COUNT)
        with flooding(tenancy, queue, token, flood):
            wait_until(
                lambda: tenancy.queue(queue)["active_message_count"] == 20 * LINK_COUNT,
                lambda: "the flood was not taken in",
                60,
            )
            time.sleep(0.5)
            return tenancy.memory_bytes()

    # What the messages themselves take, in caches, is the same with few links.
    before = memory_with(links=10)
    used = memory_with(links=LINK_COUNT) - before
    assert used <= LINK_COUNT * LINK_BYTES_MAX, f"{used >> 20} MB for {LINK_COUNT} links"


def test_case_128_what_an_attach_says_is_not_kept(tenancy: BrokerProcess) -> None:
    """M13: 30 KB of properties in each of a thousand attaches."""
    queue, token = send_only(tenancy)
    before = tenancy.memory_bytes()
    wordy = {Symbol(f"key-{number}"): "x" * 90 for number in range(300)}
    with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
        for number in range(LINK_COUNT):
            peer.say(sender(queue, LINK + number, properties=wordy))
            peer.wait_for(Attach)
        used = tenancy.memory_bytes() - before
    assert used <= LINK_COUNT * LINK_BYTES_MAX, f"{used >> 20} MB for {LINK_COUNT} links"


def test_case_128_a_name_or_an_address_has_an_end(tenancy: BrokerProcess) -> None:
    queue, token = send_only(tenancy)
    with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
        peer.say(sender(queue, LINK, name="x" * 1_025))
        assert peer.verdict() == ended("amqp:invalid-field")


def test_case_130_a_peer_that_does_not_read_its_refusals_is_not_read_from(
    tenancy: BrokerProcess,
) -> None:
    """M13: output that waits for the peer counts, refusals too."""
    queue, token = send_only(tenancy, max_size_mb=1)
    before = tenancy.memory_bytes()
    sent = 0
    with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
        peer.say(sender(queue, LINK))
        peer.wait_for(Attach)
        peer.socket.settimeout(2.0)
        small = b"".join(transfer(LINK, number, b"not a message") for number in range(200))
        with suppress(TimeoutError):
            while sent < 400 << 20:
                sent += peer.socket.send(small)
        grown = tenancy.memory_bytes() - before
    assert sent < 400 << 20
    assert grown <= KEPT_BYTES_MAX, f"{grown >> 20} MB"


# -- fairness -------------------------------------------------------------------------------------


@pytest.mark.parametrize("connections", [40, 200])
def test_case_129_loud_connections_do_not_stall_a_neighbour(
    tenancy: BrokerProcess, connections: int
) -> None:
    """M13: pending bytes are shared by key."""
    attack(tenancy, Flood(connections=connections), max_size_mb=81_920)


@pytest.mark.parametrize("connections", [40, 200])
def test_case_131_a_flood_of_tiny_batches_does_not_stall_a_neighbour(
    tenancy: BrokerProcess, connections: int
) -> None:
    """M13: so are the turns."""
    flood = Flood(connections=connections, body_bytes=10, batch_count=100)
    attack(tenancy, flood, max_size_mb=81_920)


def test_case_132_a_quiet_connection_is_served_beside_loud_ones_of_its_own_key(
    tenancy: BrokerProcess,
) -> None:
    """M13: the prober shows the same key here."""
    queue = tenancy.fresh_queue(max_size_mb=81_920)
    flood = Flood(connections=40)
    with attacked(tenancy) as under, flooding(tenancy, queue, tenancy.token(), flood):
        under.lasted(ATTACK_S)


# -- batches --------------------------------------------------------------------------------------


def test_case_133_a_batch_of_more_than_4500_messages_is_refused(tenancy: BrokerProcess) -> None:
    """M13: with the condition that the Azure SDK shows as a message that is too large."""
    queue = tenancy.fresh_queue()
    message = Message(properties=Properties(), body=b"x").encode()
    with connected(tenancy.port, tenancy.token()) as client:
        link = client.attach_sender(queue)
        state = client.send(link, batch_of(*[message] * 4_501), message_format=BATCH)
        assert state.error.condition == "amqp:link:message-size-exceeded"
        assert tenancy.queue(queue)["active_message_count"] == 0
        assert client.send(link, batch_of(*[message] * 4_500), message_format=BATCH) == Accepted()
    assert tenancy.queue(queue)["active_message_count"] == 4_500


def test_case_133_a_batch_of_104000_empty_messages_is_refused_at_once(
    tenancy: BrokerProcess,
) -> None:
    queue, token = send_only(tenancy)
    payload = b"\x00\x53\x75\xa0\x05\x00\x53\x75\xa0\x00" * 104_000
    with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
        peer.say(sender(queue, LINK))
        peer.wait_for(Attach)
        peer.say(transfer(LINK, 0, payload[:1_000_000], message_format=BATCH))
        assert peer.wait_for(Disposition).state.error.condition == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("properties", [0, 10])
def test_case_134_full_batches_do_not_hold_the_loop(
    tenancy: BrokerProcess, properties: int
) -> None:
    """M13: a batch is taken in slices, and others have their turn between two of them."""
    count = 4_500 if not properties else 3_000
    flood = Flood(connections=10, body_bytes=10, batch_count=count, properties=properties)
    attack(tenancy, flood, max_size_mb=81_920)


def test_case_135_a_connection_with_a_thousand_links_is_lost_over_and_over(
    tenancy: BrokerProcess,
) -> None:
    """M13: coming and going costs the neighbours nothing."""
    queue, token = send_only(tenancy)
    attaches = b"".join(sender(queue, LINK + number) for number in range(LINK_COUNT))
    with attacked(tenancy) as under:
        while time.monotonic() < under.began_s + ATTACK_S:
            with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
                peer.say(attaches)
                for _ in range(LINK_COUNT):
                    peer.wait_for(Attach)


def test_case_136_a_frame_that_is_all_performative_is_small(tenancy: BrokerProcess) -> None:
    """M13: an attach of 200 KB is not even decoded."""
    queue, token = send_only(tenancy)
    wordy = {Symbol(f"key-{number}"): "x" * 200 for number in range(1_000)}
    with RawPeer(tenancy.port, token).to(Stage.AUTHORIZED) as peer:
        peer.say(sender(queue, LINK, properties=wordy))
        verdict = peer.verdict()
    assert verdict.level == "close"
    assert verdict.condition == "amqp:decode-error"

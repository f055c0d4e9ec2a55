"""Who may do what (cases 41 to 43, 47 and 51 to 53): a claim opens its own doors only.

Rules of a queue are used where one is enough; they go with the queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.adversarial.talk import ask, lock_token, longs, put, settling, take, uuids
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Int, Long, Symbol
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import ConnectionClosed, DeliveryReceived, LinkDetachedEvent
from twinbus.amqp.frames import PROTOCOL_AMQP, PROTOCOL_SASL, encode_frame
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import SaslInit, SaslOutcome, encode_performative
from twinbus.broker.access.sas import make_token

UNAUTHORIZED = "amqp:unauthorized-access"
SEND, LISTEN = ("sender", "s" * 44), ("listener", "l" * 44)
# A token ends on a whole second: this one lives for two seconds at least.
SHORT_LIFE_S = 3


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    """A queue with a rule that may only send and one that may only listen."""
    return broker.fresh_queue(
        authorization_rules=[
            {"name": name, "claims": [claim], "primary_key": key, "secondary_key": key * 2}
            for (name, key), claim in ((SEND, "Send"), (LISTEN, "Listen"))
        ]
    )


@pytest.fixture
def root(broker: BrokerProcess) -> Iterator[WireClient]:
    """A client that may do everything, to look and to prepare."""
    with connected(broker.port, broker.token()) as client:
        yield client


def assert_forbidden(client: WireClient, queue: str, operation: str, body: Any) -> None:
    told = ask(client, queue, operation, body)
    assert (told.status, told.condition) == (401, UNAUTHORIZED)


def test_case_41_a_token_that_may_send_cannot_receive(
    broker: BrokerProcess, root: WireClient, queue: str
) -> None:
    """M6: no receiver, no peek, no settling, no renewing, and nothing of the queue changes."""
    put(root, queue, b"one", b"two")
    held = lock_token(take(root, queue)[0])
    before = broker.counts(queue)
    with connected(broker.port, broker.token(path=queue, rule=SEND)) as client:
        for address in (queue, f"{queue}/$DeadLetterQueue"):
            error = client.detach_error(client.attach_receiver(address))
            assert error.condition == UNAUTHORIZED
            assert_well_put(error.description, SEND[1])
        peek = {"from-sequence-number": Long(1), "message-count": Int(10)}
        assert_forbidden(client, queue, "peek-message", peek)
        assert_forbidden(client, queue, "renew-lock", {"lock-tokens": uuids(held)})
        assert_forbidden(client, queue, "update-disposition", settling(held))
        by_number = {"sequence-numbers": longs(1), "receiver-settle-mode": Int(0)}
        assert_forbidden(client, queue, "receive-by-sequence-number", by_number)
        assert broker.counts(queue) == before
        put(client, queue, b"three")


def test_case_42_a_token_that_may_listen_cannot_send(
    broker: BrokerProcess, root: WireClient, queue: str
) -> None:
    """M6: neither now nor later."""
    with connected(broker.port, broker.token(path=queue, rule=LISTEN)) as client:
        error = client.detach_error(client.attach_sender(queue))
        assert error.condition == UNAUTHORIZED
        assert_well_put(error.description, LISTEN[1])
        message = {"message-id": "x", "message": Message(body=b"x").encode()}
        assert_forbidden(client, queue, "schedule-message", {"messages": [message]})
        numbers = {"sequence-numbers": longs(1)}
        assert_forbidden(client, queue, "cancel-scheduled-message", numbers)
        assert set(broker.counts(queue).values()) == {0}
        put(root, queue, b"for you")
        client.complete(take(client, queue)[0].delivery_id)


def test_case_42_a_token_that_may_listen_settles_nothing_of_another_queue(
    broker: BrokerProcess, root: WireClient, queue: str
) -> None:
    """M2, M6: the lock token is right, but for another queue."""
    other = broker.fresh_queue()
    put(root, other, b"theirs")
    held = lock_token(take(root, other)[0])
    before = broker.counts(other)
    with connected(broker.port, broker.token(path=queue, rule=LISTEN)) as client:
        told = ask(client, queue, "update-disposition", settling(held))
        assert (told.status, told.condition) == (410, "com.microsoft:message-lock-lost")
        link = client.attach_sender(f"{other}/$management")
        assert client.refusal(link) == UNAUTHORIZED
    assert broker.counts(other) == before


@pytest.mark.parametrize("claims", [["Send"], ["Listen"], ["Send", "Listen"]], ids="-".join)
def test_case_43_without_manage_nothing_is_administered(
    broker: BrokerProcess, queue: str, claims: list[str]
) -> None:
    """M6: 403, and neither the queue nor a new one is touched."""
    name, new = f"rule-{uuid4().hex[:8]}", f"new-{uuid4().hex[:8]}"
    rule = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": claims})
    token = broker.token(port=broker.admin_port, rule=(name, rule["primary_key"]))
    queues = "/namespaces/demo/queues"
    for method, path in [
        ("PUT", f"{queues}/{new}"),
        ("PUT", f"{queues}/{queue}"),
        ("GET", f"{queues}/{queue}"),
        ("GET", queues),
        ("DELETE", f"{queues}/{queue}"),
    ]:
        status, told = broker.http(method, path, {}, token=token)
        assert status == 403
        assert_well_put(told["error"], rule["primary_key"])
    listed = [each["path"] for each in broker.admin("GET", queues)]
    assert queue in listed and new not in listed
    broker.admin("DELETE", f"/namespaces/demo/rules/{name}")


def test_case_43_manage_on_one_queue_does_not_administer_the_namespace(
    broker: BrokerProcess,
) -> None:
    """M6: a rule of a queue signs for that queue only."""
    every = ["Send", "Listen", "Manage"]
    keys = {"primary_key": "m" * 44, "secondary_key": "n" * 44}
    queue = broker.fresh_queue(authorization_rules=[{"name": "owner", "claims": every, **keys}])
    for path, status in ((queue, 403), ("", 401)):
        token = broker.token(port=broker.admin_port, rule=("owner", "m" * 44), path=path)
        answered, told = broker.http("PUT", "/namespaces/demo/queues/taken-over", {}, token=token)
        assert answered == status
        assert_well_put(told["error"], "m" * 44)


def test_case_47_a_link_ends_with_its_token(
    broker: BrokerProcess, root: WireClient, queue: str
) -> None:
    """M2, M6: both links are detached, nothing more goes over them, and the lock lives on."""
    put(root, queue, b"held")
    began = time.time()
    with connected(broker.port, broker.token(path=queue, expires_in_s=SHORT_LIFE_S)) as client:
        client.timeout_s = 10.0
        sender, receiver = client.attach_sender(queue), client.attach_receiver(queue)
        receiver.grant(10)
        held = client.wait_for(DeliveryReceived)

        # When the token runs out
        for link in (sender, receiver):
            error = client.detach_error(link)
            assert error.condition == UNAUTHORIZED
            assert_well_put(error.description)
        assert time.time() - began <= SHORT_LIFE_S + 5

        # Then the message stays locked, and neither a disposition nor management moves it
        assert broker.queue(queue)["locked_message_count"] == 1
        state = client.settled(held.delivery_id, Accepted())
        assert isinstance(state, Rejected) and state.error is not None
        assert state.error.condition == UNAUTHORIZED
        error = client.detach_error(client.attach_sender(f"{queue}/$management"))
        assert error.condition == UNAUTHORIZED
        assert broker.queue(queue)["locked_message_count"] == 1

        # and no new message comes over the old link, although credit is left
        put(root, queue, b"new")
        assert not arrived(client)

        # A fresh token, and the lock token still settles what was held
        assert client.put_token(broker.token(path=queue)) == 202
        told = ask(client, queue, "update-disposition", settling(lock_token(held)))
        assert told.status == 200
    assert broker.counts(queue)["active_message_count"] == 1


def test_case_47_a_link_that_was_given_up_before_does_not_outlive_the_token(
    broker: BrokerProcess, root: WireClient, queue: str
) -> None:
    """M2, M6: a settlement needs the claim when it comes, not only when the link was opened."""
    put(root, queue, b"held")
    with connected(broker.port, broker.token(path=queue, expires_in_s=SHORT_LIFE_S)) as client:
        receiver = client.attach_receiver(queue)
        receiver.grant(1)
        held = client.wait_for(DeliveryReceived)
        receiver.detach()
        time.sleep(SHORT_LIFE_S)
        client.settle(held.delivery_id, held.delivery_id, Accepted())
        assert client.put_token(broker.token(path=queue)) == 202
        assert broker.queue(queue)["locked_message_count"] == 1


def arrived(client: WireClient) -> bool:
    """Whether any message comes within half a second."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        client.pump()
    return any(isinstance(event, DeliveryReceived) for event in client.events)


def test_case_47_a_transfer_after_the_end_of_the_token_is_not_stored(
    broker: BrokerProcess, queue: str
) -> None:
    """M6: it may have been on its way; it is dropped all the same."""
    with connected(broker.port, broker.token(path=queue, expires_in_s=SHORT_LIFE_S)) as client:
        sender = client.attach_sender(queue)
        client.wait_for(LinkDetachedEvent, lambda event: event.link is sender)
        sender.send(Message(body=b"late").encode(), b"late", settled=False)
        client.flush()
        client.pump()
    assert set(broker.counts(queue).values()) == {0}


def test_case_47_a_token_shown_in_time_keeps_the_link(broker: BrokerProcess, queue: str) -> None:
    """M6: as the SDKs do it, before the old one ends."""
    with connected(broker.port, broker.token(path=queue, expires_in_s=SHORT_LIFE_S)) as client:
        sender = client.attach_sender(queue)
        assert client.put_token(broker.token(path=queue)) == 202
        time.sleep(SHORT_LIFE_S)
        assert client.send(sender, Message(body=b"x").encode()) == Accepted()


SASL_INITS = {
    "case-51-unknown-mechanism": SaslInit(Symbol("SCRAM-SHA-256"), b"n,,n=root"),
    "case-51-plain": SaslInit(Symbol("PLAIN"), b"\0root\0secret"),
    "case-51-plain-empty-password": SaslInit(Symbol("PLAIN"), b"\0root\0"),
    "case-51-plain-nothing": SaslInit(Symbol("PLAIN"), b""),
    "case-51-plain-null": SaslInit(Symbol("PLAIN"), None),
    "case-51-external": SaslInit(Symbol("EXTERNAL"), b"root"),
    "case-51-other-case": SaslInit(Symbol("anonymous"), b""),
    "case-51-empty-mechanism": SaslInit(Symbol(""), b""),
}


@pytest.mark.parametrize("init", list(SASL_INITS.values()), ids=list(SASL_INITS))
def test_a_sasl_mechanism_that_is_not_offered_is_refused(
    broker: BrokerProcess, init: SaslInit
) -> None:
    """M6: outcome 1 (auth), then the connection is closed; what follows it is not looked at."""
    with WireClient(broker.port) as client:
        client.connection.take_output()
        client.socket.sendall(
            PROTOCOL_SASL + encode_frame(0, encode_performative(init), frame_type=1) + PROTOCOL_AMQP
        )
        heard = read_to_end(client)
    refused = encode_frame(0, encode_performative(SaslOutcome(1)), frame_type=1)
    assert heard.startswith(PROTOCOL_SASL) and heard.endswith(refused)


def test_case_51_a_sasl_response_of_a_megabyte_is_not_waited_for(broker: BrokerProcess) -> None:
    """M6: a SASL frame has at most 512 bytes, so its announced size is enough to hang up."""
    init = encode_performative(SaslInit(Symbol("ANONYMOUS"), b"x" * 1_000_000))
    frame = encode_frame(0, init, frame_type=1)
    with WireClient(broker.port) as client:
        client.connection.take_output()
        client.socket.sendall(PROTOCOL_SASL + frame[:100])
        heard = read_to_end(client)
    ok = encode_frame(0, encode_performative(SaslOutcome(0)), frame_type=1)
    assert ok not in heard and PROTOCOL_AMQP not in heard


def read_to_end(client: WireClient) -> bytes:
    """Everything until the broker hangs up."""
    client.socket.settimeout(5)
    heard = b""
    while True:
        try:
            part = client.socket.recv(65_536)
        except ConnectionResetError:
            return heard
        if not part:
            return heard
        heard += part


@pytest.mark.parametrize(
    ("container_id", "hostname", "properties"),
    [
        pytest.param("localhost", "localhost", {}, id="case-52-host"),
        pytest.param("127.0.0.1", "127.0.0.1", {}, id="case-52-address"),
        pytest.param("twinbus", "::1", {}, id="case-52-our-own-container"),
        pytest.param("RootManageSharedAccessKey", None, {}, id="case-52-rule-as-container"),
        pytest.param(
            "x",
            "localhost",
            {Symbol("x-forwarded-for"): "127.0.0.1", Symbol("user"): "root"},
            id="case-52-properties",
        ),
    ],
)
def test_saying_that_one_is_local_opens_nothing(
    broker: BrokerProcess, container_id: str, hostname: str | None, properties: dict[Any, Any]
) -> None:
    """M6: there is no trusted address; only a token counts."""
    with pretending(broker, container_id, hostname, properties) as client:
        for link in (client.attach_sender("vault"), client.attach_receiver("vault")):
            assert client.refusal(link) == UNAUTHORIZED


def test_case_52_a_token_for_another_host_is_not_good_because_its_bearer_says_so(
    broker: BrokerProcess,
) -> None:
    """M6: whoever got a token that was made out to them cannot pass it on to us."""
    with pretending(broker, "x", "evil.example", {}) as client:
        status, text = client.show_token(made_out_to("evil.example", broker))
        assert status == 401
        assert_well_put(text, broker.root_rule[1])
        assert client.refusal(client.attach_sender("vault")) == UNAUTHORIZED


def made_out_to(host: str, broker: BrokerProcess) -> str:
    """A token that our own key signed, for somebody else's address."""
    name, key = broker.root_rule
    expires_s = int(time.time()) + 60
    return make_token(resource=f"sb://{host}/", rule_name=name, key=key, expires_s=expires_s)


def pretending(
    broker: BrokerProcess, container_id: str, hostname: str | None, properties: dict[Any, Any]
) -> WireClient:
    """A client that introduces itself as it likes."""
    client = WireClient(broker.port)
    client.connection = Connection(
        Role.CLIENT,
        ConnectionOptions(container_id=container_id, hostname=hostname, properties=properties),
    )
    return client.open()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost"},
        {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost"},
        {"X-Forwarded-Host": "evil.example"},
        {"Forwarded": "for=127.0.0.1;host=localhost"},
        {"Origin": "http://evil.example"},
    ],
    ids=lambda headers: "case-52-" + "-".join(headers),
)
def test_headers_decide_nothing_over_http(broker: BrokerProcess, headers: dict[str, str]) -> None:
    """M6: only the token does."""
    rules = "/namespaces/demo/rules"
    status, told = broker.http("GET", rules, headers=headers)
    assert status == 401
    assert_well_put(told["error"])
    status, told = broker.http("GET", "/health", headers=headers)
    assert (status, told["status"]) == (200, "ok")
    assert broker.root_rule[1] not in str(told)
    token = broker.token(port=broker.admin_port)
    assert broker.http("GET", rules, headers=headers, token=token)[0] == 200
    for other in (broker.token(port=1), made_out_to("evil.example", broker)):
        assert broker.http("GET", rules, headers=headers, token=other)[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1"])
def test_case_52_a_page_that_got_here_under_another_name_sees_nothing(
    broker: BrokerProcess, host: str
) -> None:
    """M6: DNS rebinding; also with a token that was made out to that name."""
    for token in (None, broker.token(port=broker.admin_port), made_out_to("evil.example", broker)):
        for path in ("/health", "/namespaces/demo/rules"):
            status, told = broker.http("GET", path, headers={"Host": host}, token=token)
            assert status == 421
            assert_well_put(told["error"])


ENDS = ConnectionClosed | LinkDetachedEvent


def flood(client: WireClient, token: str, count: int, reply_credit: int) -> list[int]:
    """Put a token many times without waiting; the status codes of the answers that came."""
    requests, replies = client.node("$cbs")
    replies.grant(reply_credit)
    payload = client.token_request(token).encode()
    sent = 0
    deadline = time.monotonic() + 30
    statuses: list[int] = []
    while len(statuses) < count and time.monotonic() < deadline:
        while sent < count and requests.credit > 0:
            requests.send(payload, sent.to_bytes(4, "big"), settled=True)
            sent += 1
        client.pump()
        events, client.events = client.events, []
        statuses += [status_of(event) for event in events if isinstance(event, DeliveryReceived)]
        client.events = [event for event in events if isinstance(event, ENDS)]
        if client.events:
            break
    return statuses


STATUS_CODE = encode_value("status-code")


def status_of(event: DeliveryReceived) -> int:
    """Found by its key, because decoding ten thousand answers would slow the bystander down."""
    start = event.payload.index(STATUS_CODE) + len(STATUS_CODE)
    status, _end = decode_value(event.payload, start, len(event.payload), Budget())
    return int(status)


def test_case_53_a_flood_of_tokens_is_answered_with_busy(broker: BrokerProcess, queue: str) -> None:
    """M6, M11: 600 a minute, then 503; what the connection had before goes on."""
    with connected(broker.port, broker.token()) as client:
        sender = client.attach_sender(queue)
        statuses = flood(client, broker.token(), 10_000, reply_credit=10_000)
        assert statuses == [202] * 599 + [503] * 9_401
        status, text = client.show_token(broker.token())
        assert status == 503
        assert_well_put(text)
        assert client.send(sender, Message(body=b"x").encode()) == Accepted()


def test_case_53_a_flood_of_wrong_tokens_is_cut_off(broker: BrokerProcess) -> None:
    """M6: whoever has shown nothing good may say 64 KB."""
    with WireClient(broker.port).open() as client:
        statuses = flood(client, broker.token(rule=("nobody", "x")), 10_000, reply_credit=10_000)
        closed = client.wait_for(ConnectionClosed)
    assert set(statuses) <= {401} and len(statuses) < 1_000
    assert closed.error.condition == UNAUTHORIZED
    assert_well_put(closed.error.description)


def test_case_53_whoever_takes_no_answers_may_not_ask_for_ever(broker: BrokerProcess) -> None:
    """M6: answers wait for credit, and only so many of them."""
    with connected(broker.port, broker.token()) as client:
        assert flood(client, broker.token(), 10_000, reply_credit=0) == []
        error = client.detach_error(client.node("$cbs")[0])
        assert error.condition == "amqp:resource-limit-exceeded"
        assert_well_put(error.description)


def test_case_53_the_connections_of_others_have_a_count_of_their_own(
    broker: BrokerProcess,
) -> None:
    """M6: a flood on one connection keeps nobody else from showing a token."""
    with connected(broker.port, broker.token()) as flooding:
        assert flood(flooding, broker.token(), 700, reply_credit=700)[-1] == 503
        with WireClient(broker.port).open() as client:
            assert client.put_token(broker.token()) == 202

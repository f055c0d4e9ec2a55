"""What a peer may ask for before it has shown a token (cases 167 and 169 to 172).

Little: a handshake, a token, and nothing that another peer would notice.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tests.adversarial.guards import Guard
from tests.adversarial.raw_http import request, say
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    closed,
    detached,
    ended,
    flow,
    frame,
    receiver,
    sasl_frame,
    sender,
    token_request,
    transfer,
)
from tests.adversarial.test_tls import tls_hello
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.frames import PROTOCOL_AMQP, PROTOCOL_SASL
from twinbus.amqp.limits import (
    PERFORMATIVE_COUNT_MAX,
    PRE_AUTH_COMPOUND_COUNT_MAX,
    PRE_AUTH_FRAME_BYTES_MAX,
    PRE_AUTH_LINKS_MAX,
    PRE_AUTH_SESSIONS_MAX,
)
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Attach, Begin, Open, SaslInit, Source, Target, Transfer
from twinbus.broker.violation_log import LINES_PER_MINUTE_MAX

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
BEGIN = Begin(next_outgoing_id=0, incoming_window=2_048, outgoing_window=2_048)


# -- case 167: limits of strangers ---------------------------------------------------------------


def test_case_167_a_stranger_has_four_links_to_cbs(peer: RawPeer) -> None:
    """M13: an SDK opens two; with 1,020 of them each stranger held a megabyte."""
    peer.to(Stage.BEGUN)
    for number in range(PRE_AUTH_LINKS_MAX):
        peer.say(sender("$cbs", number) if number % 2 else receiver("$cbs", number))
        assert peer.wait_for(Attach).handle == number

    assert peer.say(receiver("$cbs", PRE_AUTH_LINKS_MAX)).verdict() == ended(RESOURCE_LIMIT)


def test_case_167_a_stranger_has_eight_sessions(peer: RawPeer) -> None:
    """M13: an SDK begins one."""
    peer.to(Stage.OPENED)
    for channel in range(PRE_AUTH_SESSIONS_MAX):
        peer.say(frame(BEGIN, channel=channel))
        peer.wait_for(Begin)

    said = frame(BEGIN, channel=PRE_AUTH_SESSIONS_MAX)
    assert peer.say(said).verdict() == closed(RESOURCE_LIMIT)


def test_case_167_links_that_are_refused_do_not_count(peer: RawPeer) -> None:
    """M6: a client that is too early learns that it is, as often as it tries."""
    peer.to(Stage.BEGUN)
    for number in range(3 * PRE_AUTH_LINKS_MAX):
        said = sender("vault", number)
        assert peer.say(said).verdict() == detached("amqp:unauthorized-access")


def test_case_167_a_large_frame_of_a_stranger_is_refused_by_its_head(peer: RawPeer) -> None:
    """M13: although the open has announced a megabyte, which counts from the token on."""
    opened = peer.to(Stage.OPENED)
    opened.say(struct.pack(">IBBH", PRE_AUTH_FRAME_BYTES_MAX + 1, 2, 0, 0))

    assert opened.verdict() == closed("amqp:connection:framing-error")


def test_case_167_what_was_announced_counts_from_the_token_on(
    peer: RawPeer, broker: BrokerProcess
) -> None:
    """M13: frames, links and sessions; the counterpart of the tests above."""
    queue = broker.fresh_queue()
    peer.to(Stage.AUTHORIZED)
    for number in range(2 * PRE_AUTH_LINKS_MAX):
        peer.say(sender(queue, FIRST_FREE_HANDLE + number))
        assert peer.wait_for(Attach).target is not None
    large = Message(body=bytes(200_000)).encode()
    peer.say(transfer(FIRST_FREE_HANDLE, 1, large))
    assert repr(peer.verdict()) == "accepted"
    for channel in range(1, 2 * PRE_AUTH_SESSIONS_MAX):
        peer.say(frame(BEGIN, channel=channel))
        peer.wait_for(Begin)


def test_case_167_a_long_token_is_read(peer: RawPeer) -> None:
    """M12: one of an identity provider may have 16 KB; here it is refused, and not for its size."""
    peer.to(Stage.BEGUN)
    peer.say(
        receiver("$cbs", 0, name="replies"),
        sender("$cbs", 1, name="requests"),
        flow(handle=0, link_credit=10),
        frame(
            Transfer(1, delivery_id=0, delivery_tag=b"t", settled=True),
            payload=token_request("Bearer " + "e" * 20_000, 1),
        ),
    )
    peer.wait_for(Transfer)
    told = Message.decode(peer.payload).application_properties or {}
    assert told["status-code"] == 401


@pytest.mark.parametrize("where", ["attach", "message"])
def test_case_167_a_stranger_has_few_elements(peer: RawPeer, where: str) -> None:
    """M13: a map of thousands is not built before anybody knows for whom."""
    peer.to(Stage.BEGUN)
    # Above what a stranger may have, below what a performative may have with a token.
    pairs = (PRE_AUTH_COMPOUND_COUNT_MAX + PERFORMATIVE_COUNT_MAX) // 4
    many = {Symbol(f"k{number}"): number for number in range(pairs)}
    if where == "attach":
        source = Source(address="$cbs", dynamic_node_properties=many)
        verdict = peer.say(receiver("$cbs", 0, source=source)).verdict()
        assert verdict == closed("amqp:decode-error"), verdict
        return
    body = Message(
        properties=Properties(message_id="m", reply_to="here"),
        application_properties={"operation": "put-token", **{str(key): 1 for key in many}},
        body=AmqpValue("token"),
    ).encode()
    peer.say(receiver("$cbs", 0), sender("$cbs", 1, name="requests"))
    verdict = peer.say(transfer(1, 0, body, settled=True)).verdict()
    assert verdict == detached("amqp:decode-error"), verdict


# -- case 169: no body before the token ----------------------------------------------------------

ROUTES = [
    ("PUT", "/namespaces/demo/queues/x"),
    ("PATCH", "/namespaces/demo/queues/x"),
    ("PATCH", "/namespaces/demo/queues/vault"),
    ("PUT", "/namespaces/demo/rules/x"),
    ("PUT", "/namespaces/demo/topics/x"),
    ("PATCH", "/namespaces/demo/topics/x"),
    ("PUT", "/namespaces/demo/topics/x/subscriptions/y"),
    ("PATCH", "/namespaces/demo/topics/x/subscriptions/y"),
    ("PUT", "/namespaces/demo/topics/x/subscriptions/y/rules/z"),
    ("POST", "/namespaces/demo/queues/vault/purge"),
    ("POST", "/namespaces/demo/reset"),
    ("POST", "/namespaces/demo/faults"),
    ("PUT", "/namespaces/demo/subsystems"),
    ("POST", "/namespaces/demo/stop"),
    ("POST", "/namespaces/other/start"),
    ("POST", "/namespaces/nobody/queues/x/purge"),
    ("POST", "/clock/advance"),
    ("PUT", "/x"),
    ("DELETE", "/x"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda each: str(each).strip("/"))
@pytest.mark.parametrize("token", [None, "SharedAccessSignature sr=x&sig=x&se=9999999999&skn=x"])
def test_case_169_the_answer_to_a_stranger_does_not_wait_for_a_body(
    broker: BrokerProcess, guard: Guard, method: str, path: str, token: str | None
) -> None:
    """M13: 64 KB are announced, and none of them comes."""
    head = request(method, path, token=token).replace(
        b"Content-Length: 0", b"Content-Length: 60000"
    )
    answer = say(broker.admin_port, head, timeout_s=guard.answer_timeout_s)

    assert answer.status in (401, 404, 405), answer


@pytest.mark.parametrize("method", ["PUT", "DELETE", "GET"])
def test_case_169_neither_on_the_port_of_the_namespace(
    broker: BrokerProcess, guard: Guard, method: str
) -> None:
    """M13: the administration protocol of the stock clients."""
    head = request(method, "/vault").replace(b"Content-Length: 0", b"Content-Length: 60000")
    answer = say(broker.port, head, timeout_s=guard.answer_timeout_s)

    answer.assert_refused(401)


def test_case_169_every_route_that_takes_a_body_is_in_the_list() -> None:
    """A route that is added has to be asked for here, too."""
    from starlette.routing import Route, compile_path

    from twinbus.broker.broker import Broker
    from twinbus.broker.http.json_api import admin_application

    application = admin_application(Broker())._application  # type: ignore[attr-defined]
    for route in application.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) & {"PUT", "POST", "PATCH"}:
            pattern = compile_path(route.path)[0]
            known = any(each == method and pattern.match(path) for each, path in ROUTES)
            assert known or "/keys/" in route.path, f"{method} {route.path}"


# -- cases 170 and 171: the log ------------------------------------------------------------------

HANDSHAKE = (
    PROTOCOL_SASL
    + sasl_frame(SaslInit(Symbol("ANONYMOUS"), b"", "localhost"))
    + PROTOCOL_AMQP
    + frame(Open(container_id="stranger", hostname="localhost"))
)
HALVES = {
    "nothing": b"",
    "TLS": tls_hello(),
    "half of TLS": tls_hello()[:77],
    "broken TLS": tls_hello()[:40] + bytes(200),
    "SASL": PROTOCOL_SASL,
    "an open": HANDSHAKE,
    "half an open": HANDSHAKE[:-9],
    "a session": HANDSHAKE + frame(BEGIN),
    "a request": request("GET", "/vault"),
    "half a request": b"PUT /vault HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n<",
    "an odd path": b"GET /%ff%00/..%2f/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an odd token": request("GET", "/x", token="SharedAccessSignature sr=%ff&sig=%00&se=9e9&skn="),
    "a huge expiry": request(
        "GET", "/x", token=f"SharedAccessSignature sr=x&sig=x&se={'9' * 400}&skn=x"
    ),
    "an odd host": b"GET /x HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "an upgrade": request("GET", "/x", Upgrade="websocket", Connection="Upgrade"),
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("said", HALVES.values(), ids=HALVES.keys())
def test_case_170_a_stranger_that_breaks_off_anywhere_leaves_no_traceback(
    broker: BrokerProcess, guard: Guard, said: bytes, reset: bool
) -> None:
    """M13: at every port; a line at most."""
    guard.log_lines_max = 2
    for port in (broker.port, broker.admin_port):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as each:
            each.sendall(said)
            time.sleep(0.02)
            if reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("has_token", [False, True], ids=["stranger", "tenant"])
@pytest.mark.parametrize(
    ("method", "path", "is_admin"),
    [
        ("PATCH", "/namespaces/demo/queues/vault", True),
        ("PUT", "/namespaces/demo/queues/never", True),
        ("PUT", "/never", True),
        ("PUT", "/never", False),
    ],
)
def test_case_170_a_body_that_breaks_off_is_no_traceback(
    broker: BrokerProcess,
    guard: Guard,
    method: str,
    path: str,
    is_admin: bool,
    has_token: bool,
    reset: bool,
) -> None:
    """M13: one of 2 KB for each request filled the disk at 77 MB in a minute."""
    guard.log_lines_max = 2 * LINES_PER_MINUTE_MAX + 2  # A minute may end in between.
    port = broker.admin_port if is_admin else broker.port
    token = broker.token(port=port) if has_token else None
    head = request(method, path, token=token).replace(
        b"Content-Length: 0", b"Content-Length: 60000"
    )
    before = len(broker.log())
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as each:
            each.sendall(head + b"{")
            time.sleep(0.002)
            if reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert len(broker.log()) - before < 4_000


def test_case_170_neither_inside_of_tls(broker: BrokerProcess, guard: Guard) -> None:
    """M13: broken records, ends without a goodbye, resets."""
    guard.log_lines_max = 2 * LINES_PER_MINUTE_MAX + 2
    context = ssl.create_default_context(cafile=broker.ca_path)
    chance = Random(170)
    for number in range(40):
        with suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", broker.port), timeout=5)
            tls = context.wrap_socket(plain, server_hostname="localhost")
            tls.sendall(chance.choice(list(HALVES.values())) or b"\x00")
            raw = socket.socket(fileno=tls.detach())
            with raw:
                if number % 3 == 0:
                    raw.sendall(chance.randbytes(60))
                if number % 3 == 1:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def refused_token(peer: RawPeer) -> None:
    peer.to(Stage.BEGUN).ask_for_token_answer()
    peer.wait_for(Transfer)


def bad_requests(broker: BrokerProcess) -> Callable[[], None]:
    def ask() -> None:
        with suppress(OSError):
            say(broker.port, b"GET / HTTP/9\r\n\r\n", timeout_s=5)

    return ask


def bad_tokens(broker: BrokerProcess) -> Callable[[], None]:
    def ask() -> None:
        with RawPeer(broker.port, "SharedAccessSignature x") as raw:
            refused_token(raw)

    return ask


def bad_frames(broker: BrokerProcess) -> Callable[[], None]:
    def ask() -> None:
        with RawPeer(broker.port, broker.token()).to(Stage.AUTHORIZED) as raw:
            raw.say(b"\x00\x00\x00\x01\x00\x00\x00\x00").verdict()

    return ask


@pytest.fixture(params=[bad_requests, bad_tokens, bad_frames])
def offence(request: pytest.FixtureRequest, broker: BrokerProcess) -> Callable[[], None]:
    made: Callable[[], None] = request.param(broker)
    return made


def test_case_171_a_flood_of_offences_writes_few_lines(
    broker: BrokerProcess, guard: Guard, offence: Callable[[], None]
) -> None:
    """M13: of one kind by one address ten in a minute, with a token and without; then a sum."""
    guard.log_lines_max = 2 * LINES_PER_MINUTE_MAX + 2
    before = len(broker.log())
    for _ in range(150):
        offence()

    assert len(broker.log()) - before < 6_000


# -- case 172: what a stranger learns -------------------------------------------------------------


def test_case_172_health_says_to_a_stranger_that_all_is_well_and_no_more(
    broker: BrokerProcess,
) -> None:
    """M13, M6: no names, no ports, no sizes, no version; a bad token changes nothing."""
    bad = broker.token(port=broker.admin_port, rule=("RootManageSharedAccessKey", "wrong"))
    for token in (None, bad, "nonsense"):
        assert broker.http("GET", "/health", token=token) == (200, {"status": "ok"})


def test_case_172_a_namespace_is_named_to_who_may_manage_it(broker: BrokerProcess) -> None:
    """M13: and to nobody with less."""
    rule = broker.admin("PUT", "/namespaces/demo/rules/only-sends", {"claims": ["Send"]})
    weak = broker.token(port=broker.admin_port, rule=("only-sends", rule["primary_key"]))
    try:
        assert broker.http("GET", "/health", token=weak) == (200, {"status": "ok"})
    finally:
        broker.admin("DELETE", "/namespaces/demo/rules/only-sends")
    told = broker.health()
    assert set(told["namespaces"]) == {"demo"}
    assert told["namespaces"]["demo"]["port"] == broker.port
    assert {"version", "tls", "status"} <= set(told)


def test_the_targets_of_a_stranger_are_checked_like_all_others(peer: RawPeer) -> None:
    """M6: the counterpart of the limits: what it may ask for is answered as ever."""
    peer.to(Stage.BEGUN)
    said = receiver("vault", 0, target=Target(address="here"))
    assert peer.say(said).verdict() == detached("amqp:unauthorized-access")

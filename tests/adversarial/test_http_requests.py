"""HTTP that is out to confuse (cases 103 to 106, 108, 110), on the namespace's own port."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.adversarial.guards import VAULT_QUEUE, Guard
from tests.adversarial.raw_http import HttpAnswer, request, say
from tests.adversarial.test_http_bodies import described
from tests.support.broker_process import BrokerProcess

Ask = Callable[[bytes], HttpAnswer]
LIST = "/$Resources/queues"


@pytest.fixture
def ask(broker: BrokerProcess, guard: Guard) -> Ask:
    """Write bytes to the namespace's port; everything heard is searched for secrets."""

    def ask_it(data: bytes) -> HttpAnswer:
        answer = say(broker.port, data, timeout_s=guard.answer_timeout_s)
        guard.heard += answer.body
        return answer

    return ask_it


def smuggled(broker: BrokerProcess) -> bytes:
    """A request that deletes the vault, for whoever reads the body before it as a request."""
    return request("DELETE", f"/{VAULT_QUEUE}", token=broker.token())


def head(broker: BrokerProcess, *lines: bytes) -> bytes:
    """A good request's head with more lines, exactly as they are."""
    good = (b"GET /$namespaceinfo HTTP/1.1", b"Host: localhost")
    token = b"Authorization: " + broker.token().encode()
    return b"".join(line + b"\r\n" for line in (*good, token, *lines)) + b"\r\n"


SHAPES: dict[str, tuple[bytes, ...]] = {
    "both lengths": (b"Content-Length: 4", b"Transfer-Encoding: chunked"),
    "chunked, identity": (b"Transfer-Encoding: chunked, identity",),
    "a vertical tab": (b"Transfer-Encoding: \x0bchunked",),
    "two transfer encodings": (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
    "two lengths": (b"Content-Length: 0", b"Content-Length: 4"),
    "the same length twice": (b"Content-Length: 4", b"Content-Length: 4"),
    "a list of lengths": (b"Content-Length: 0, 4",),
    "a signed length": (b"Content-Length: +0",),
    "a length below nothing": (b"Content-Length: -1",),
    "a length without end": (b"Content-Length: " + b"9" * 400,),
    "a folded line": (b"Content-Length: 0", b" 4"),
    "a blank before the colon": (b"Content-Length : 0",),
    "a bare CR": (b"X: a\rContent-Length: 4",),
    "a bare LF": (b"X: a\nContent-Length: 4",),
    "a null": (b"X: a\x00b",),
    "a name with a null": (b"X\x00: b",),
    "two hosts": (b"Host: localhost",),
    "two tokens": (b"Authorization: other",),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_case_103_what_can_be_read_in_two_ways_is_refused_and_closed(
    broker: BrokerProcess, ask: Ask, shape: str
) -> None:
    """Nothing behind it is taken for a request: the vault stays, which the guards look at."""
    answer = ask(head(broker, *SHAPES[shape]) + smuggled(broker))
    assert answer.status in (400, 411)
    answer.assert_refused(answer.status)
    assert answer.is_closed


def test_case_103_a_megabyte_of_chunk_extension_is_not_waited_for(
    broker: BrokerProcess, ask: Ask
) -> None:
    """Chunks are refused at the head."""
    chunk = b"0;" + b"a" * 1_000_000 + b"\r\n\r\n"
    answer = ask(head(broker, b"Transfer-Encoding: chunked") + chunk)
    assert answer.status == 411 and answer.is_closed


def test_case_103_lines_that_end_with_a_line_feed_are_refused(
    broker: BrokerProcess, ask: Ask
) -> None:
    """Bare LF is where parsers differ most."""
    answer = ask(head(broker).replace(b"\r\n", b"\n"))
    answer.assert_refused(400)
    assert answer.is_closed


def test_case_103_requests_in_a_row_are_answered_one_by_one(
    broker: BrokerProcess, ask: Ask
) -> None:
    """A body that looks like a request is a body, and what follows it is checked as well."""
    body = smuggled(broker)
    first = request("PUT", "/$namespaceinfo", body, token=broker.token()).replace(
        b"Connection: close\r\n", b"", 1
    )
    answer = ask(first + head(broker, b"Connection: close"))
    assert answer.status == 405


def test_case_104_ten_thousand_headers_are_refused(
    broker: BrokerProcess, guard: Guard, ask: Ask
) -> None:
    """431, before anything is parsed."""
    guard.log_lines_max = 2
    answer = ask(head(broker, *(b"X-%d: a" % number for number in range(10_000))))
    answer.assert_refused(431)
    assert answer.is_closed
    answer = ask(head(broker, *(b"X-%d: a" % number for number in range(100))))
    answer.assert_refused(431)


def test_case_104_a_header_of_a_megabyte_is_refused(
    broker: BrokerProcess, guard: Guard, ask: Ask
) -> None:
    """Also when it never ends."""
    guard.log_lines_max = 2
    for data in (head(broker, b"X: " + b"a" * 1_000_000), b"GET /" + b"a" * 1_000_000):
        answer = ask(data)
        answer.assert_refused(431)
        assert answer.is_closed


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "POST", "PATCH", "PROPFIND"])
def test_case_105_methods_that_are_not_used_do_nothing(
    broker: BrokerProcess, ask: Ask, method: str
) -> None:
    """TRACE would repeat the token."""
    answer = ask(request(method, f"/{VAULT_QUEUE}", token=broker.token()))
    assert answer.status == 405
    assert b"SharedAccessSignature" not in answer.body


@pytest.mark.parametrize(
    "header", ["X_HTTP_Method_Override", "X_HTTP_Method", "X_Method_Override", "X_Original_URL"]
)
def test_case_105_nothing_overrides_the_method_or_the_path(
    broker: BrokerProcess, ask: Ask, header: str
) -> None:
    """A GET stays a GET: the vault is told, not deleted."""
    value = f"/{VAULT_QUEUE}" if header.endswith("URL") else "DELETE"
    answer = ask(request("GET", "/$namespaceinfo", token=broker.token(), **{header: value}))
    assert answer.status == 200 and b"NamespaceInfo" in answer.body


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://elsewhere.example.com/$namespaceinfo HTTP/1.1",
        b"GET //elsewhere.example.com/$namespaceinfo HTTP/1.1",
        b"CONNECT elsewhere.example.com:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /../../etc/passwd HTTP/1.1",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
        b"GET /a%00b HTTP/1.1",
        b"GET /a%ff HTTP/1.1",
    ],
)
def test_case_105_a_request_is_for_a_path_of_this_namespace(
    broker: BrokerProcess, ask: Ask, line: bytes
) -> None:
    """Not for another host, and not for a file."""
    good = head(broker, b"Connection: close")
    answer = ask(good.replace(b"GET /$namespaceinfo HTTP/1.1", line))
    assert answer.status in (400, 404)
    answer.assert_refused(answer.status)


@pytest.mark.parametrize("host", ["elsewhere.example.com", "localhost.example.com", "", "a b", "["])
def test_case_105_a_host_that_is_not_ours_is_refused(
    broker: BrokerProcess, ask: Ask, host: str
) -> None:
    """Also with a good token: it was sent to somebody else."""
    answer = ask(request("GET", "/$namespaceinfo", token=broker.token(), Host=host))
    answer.assert_refused(421)


def test_case_106_a_queue_is_changed_only_by_who_says_that_it_exists(
    broker: BrokerProcess, ask: Ask
) -> None:
    """PUT without If-Match creates, or is told 409; with a version that nobody has, 412."""
    name, token = broker.fresh_queue(), broker.token()
    body = described("<MaxDeliveryCount>77</MaxDeliveryCount>")
    ask(request("PUT", f"/{name}", body, token=token)).assert_refused(409)
    ask(request("PUT", f"/{name}", body, token=token, If_None_Match="*")).assert_refused(412)
    ask(request("PUT", f"/{name}", body, token=token, If_Match='"1"')).assert_refused(412)
    ask(request("PUT", f"/no-{name}", body, token=token, If_Match="*")).assert_refused(404)
    assert broker.queue(name)["max_delivery_count"] == 10
    assert ask(request("PUT", f"/{name}", body, token=token, If_Match="*")).status == 200
    assert broker.queue(name)["max_delivery_count"] == 77


def test_case_106_of_those_who_race_to_create_one_wins(broker: BrokerProcess, ask: Ask) -> None:
    """And what the winner asked for is there."""
    name, token = f"queue-{uuid4().hex[:12]}", broker.token()
    answers: dict[int, HttpAnswer] = {}

    def race(count: int) -> None:
        body = described(f"<MaxDeliveryCount>{count}</MaxDeliveryCount>")
        answers[count] = ask(request("PUT", f"/{name}", body, token=token))

    racers = [threading.Thread(target=race, args=(count,)) for count in range(20, 36)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    statuses = sorted(answer.status for answer in answers.values())
    assert statuses == [201] + [409] * 15
    (winner,) = [count for count, answer in answers.items() if answer.status == 201]
    assert broker.queue(name)["max_delivery_count"] == winner


@pytest.mark.parametrize("text", ["(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 200 + "!", ".*"])
def test_case_108_patterns_are_text(broker: BrokerProcess, ask: Ask, text: str) -> None:
    """In a name, in a filter and in any other parameter: nothing is matched with them."""
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    token = broker.token()
    ask(request("GET", f"/{quoted}", token=token)).assert_refused(400)
    ask(request("GET", f"{LIST}?$filter={quoted}", token=token)).assert_refused(400)
    ask(request("GET", f"{LIST}?$skip={quoted}", token=token)).assert_refused(400)
    ask(request("GET", f"{LIST}?api-version={quoted}", token=token)).assert_refused(400)
    assert ask(request("GET", f"{LIST}?name={quoted}", token=token)).status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_case_110_a_form_of_a_browser_does_nothing(
    broker: BrokerProcess, ask: Ask, kind: str
) -> None:
    """A page of somebody else can send forms here, but no token; and forms are not taken."""
    origin = {"Origin": "http://evil.example.com", "Content_Type": kind}
    name = f"queue-{uuid4().hex[:12]}"
    for method, path in (("POST", f"/{VAULT_QUEUE}"), ("PUT", f"/{name}")):
        ask(request(method, path, described(), **origin)).assert_refused(401)
    ask(request("PUT", f"/{name}", described(), token=broker.token(), **origin)).assert_refused(415)


def test_case_110_no_page_is_let_in_from_another_origin(broker: BrokerProcess, ask: Ask) -> None:
    """No preflight is granted, and no answer may be read by another origin."""
    asked = {
        "Origin": "http://evil.example.com",
        "Access_Control_Request_Method": "PUT",
        "Access_Control_Request_Headers": "authorization",
    }
    for method in ("OPTIONS", "GET"):
        for token in (None, broker.token()):
            answer = ask(request(method, "/$namespaceinfo", token=token, **asked))
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert answer.status == (200 if method == "GET" and token else answer.status)


def test_case_110_a_name_that_was_rebound_to_us_is_not_ours(
    broker: BrokerProcess, guard: Guard, ask: Ask
) -> None:
    """DNS rebinding: the browser still says the name of the page, on both ports."""
    for port in (broker.port, broker.admin_port):
        for path in ("/$namespaceinfo", "/health", "/namespaces/demo/queues"):
            data = request("GET", path, token=broker.token(port=port), Host="evil.example.com")
            answer = say(port, data, timeout_s=guard.answer_timeout_s)
            assert answer.status == 421, (port, path)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param("", id="empty"),
        pytest.param("Bearer eyJhbGciOiJub25lIn0.e30.", id="a token of nobody's"),
        pytest.param("Basic Zm9vOmJhcg==", id="a password"),
        pytest.param("SharedAccessSignature sr=a", id="half a signature"),
        pytest.param("a" * 8_000, id="long"),
    ],
)
def test_case_110_without_a_good_token_nothing_is_told(
    broker: BrokerProcess, ask: Ask, shown: str
) -> None:
    """401, the same whether the entity exists or not."""
    answers = [
        ask(request("GET", path, token=shown)).body
        for path in (
            f"/{VAULT_QUEUE}",
            "/nothing-here",
            "/a//b",
            "/$nothing",
            "/a/subscriptions/b/c",
        )
    ]
    assert len(set(answers)) == 1
    ask(request("DELETE", f"/{VAULT_QUEUE}", token=shown)).assert_refused(401)

"""XML that is out to hurt (cases 100 to 102, 107, 109), through the administration protocol."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from tests.adversarial.guards import Guard
from tests.adversarial.raw_http import HttpAnswer, request, say
from tests.support.broker_process import BrokerProcess

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
BODY_BYTES_MAX = 64 * 1024

Put = Callable[..., HttpAnswer]


def described(inside: str = "", head: str = "") -> bytes:
    return (
        f'{head}<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<QueueDescription xmlns="{SERVICE_BUS}">{inside}</QueueDescription></content></entry>'
    ).encode()


@pytest.fixture
def name() -> str:
    return f"queue-{uuid4().hex[:12]}"


@pytest.fixture
def put(broker: BrokerProcess, guard: Guard, name: str) -> Put:
    """Ask for a queue with that body; everything heard is searched for secrets."""

    def ask(body: bytes, path: str = name, **headers: str) -> HttpAnswer:
        data = request("PUT", f"/{path}", body, token=broker.token(), **headers)
        answer = say(broker.port, data, timeout_s=guard.answer_timeout_s)
        guard.heard += answer.body
        return answer

    return ask


def is_there(broker: BrokerProcess, name: str) -> bool:
    return name in [queue["path"] for queue in broker.admin("GET", "/namespaces/demo/queues")]


LAUGHS = "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">'
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
DOCUMENT_TYPES = {
    "none inside": "<!DOCTYPE entry>",
    "a billion laughs": f'<!DOCTYPE x [<!ENTITY a "ha">{LAUGHS}]>',
    "quadratic": f'<!DOCTYPE x [<!ENTITY j "{"j" * 20_000}">]>',
    "an external entity": '<!DOCTYPE x [<!ENTITY j SYSTEM "file:///etc/passwd">]>',
    "an entity of the network": '<!DOCTYPE x [<!ENTITY j SYSTEM "http://127.0.0.1:1/">]>',
    "a parameter entity": '<!DOCTYPE x [<!ENTITY % j SYSTEM "file:///etc/passwd"> %j;]>',
    "an external document type": '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">',
}


@pytest.mark.parametrize("kind", DOCUMENT_TYPES)
def test_case_100_document_types_are_refused_unread(
    broker: BrokerProcess, put: Put, name: str, kind: str
) -> None:
    """Nothing is expanded, fetched or told."""
    answer = put(described("<UserMetadata>&j;</UserMetadata>", DOCUMENT_TYPES[kind]))
    answer.assert_refused(400, "root:")
    assert "document type" in answer.sentence
    assert not is_there(broker, name)


def test_case_101_nesting_is_refused_while_it_is_read(put: Put) -> None:
    """20,000 levels fit into the bytes that a body may have; 33 are too many."""
    for depth in (20_000, 30):
        answer = put(described("<a>" * depth + "</a>" * (depth if depth < 9_000 else 0)))
        answer.assert_refused(400)
        assert "32 levels" in answer.sentence
    assert "levels" not in put(described("<a>" * 29 + "</a>" * 29)).sentence


def test_case_101_a_body_is_bounded(put: Put, guard: Guard) -> None:
    """200,000 levels do not fit: refused by their length."""
    guard.log_lines_max = 2
    put(b"<a>" * 200_000).assert_refused(413)
    put(b" " * (BODY_BYTES_MAX + 1)).assert_refused(413)
    assert put(described() + b" " * (BODY_BYTES_MAX - len(described()))).status == 201


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(described().replace(ATOM.encode(), b"urn:x"), id="an entry of nobody"),
        pytest.param(described().replace(SERVICE_BUS.encode(), b"urn:x"), id="of nobody"),
        pytest.param(described('<LockDuration xmlns="">PT1M</LockDuration>'), id="no namespace"),
        pytest.param(described("<Lock>PT1M</Lock>"), id="unknown"),
        pytest.param(described("<LockDuration>PT1M</LockDuration>" * 2), id="twice"),
        pytest.param(described()[:-1], id="cut off"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\xff" * 100, id="binary"),
    ],
)
def test_case_102_elements_that_do_not_belong_are_refused(
    broker: BrokerProcess, put: Put, name: str, body: bytes
) -> None:
    """A misspelt property is told, not left at its default."""
    put(body).assert_refused(400)
    assert not is_there(broker, name)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A note of 60 MB in some 60 KB."""
    return zlib.compress(described(f"<UserMetadata>{'a' * 60_000_000}</UserMetadata>"))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", "x"])
def test_case_107_compressed_bodies_are_refused_unopened(
    broker: BrokerProcess, put: Put, name: str, encoding: str, bomb: bytes
) -> None:
    """Whatever it says it is."""
    body = gzip.compress(bomb) if encoding == "gzip" else bomb
    put(body[:BODY_BYTES_MAX], Content_Encoding=encoding).assert_refused(415)
    assert not is_there(broker, name)


SCRIPTS = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "]]><!--",
    "{{7*7}}${7*7}",
    "javascript:alert(1)",
)


def test_case_109_notes_that_are_scripts_come_back_as_text(
    broker: BrokerProcess, guard: Guard, name: str
) -> None:
    """Escaped, typed, and never to be guessed at; also in lists and in JSON."""
    note = "".join(SCRIPTS)
    broker.create_queue(name, user_metadata=note + "\x01\ufffe")
    for path in (f"/{name}", "/$Resources/queues"):
        data = request("GET", path, token=broker.token())
        answer = say(broker.port, data, timeout_s=guard.answer_timeout_s)
        assert answer.status == 200
        assert b"<script" not in answer.body and b"<img" not in answer.body
        assert answer.headers["content-type"].startswith("application/atom+xml")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        found = ElementTree.fromstring(answer.body).iter(f"{{{SERVICE_BUS}}}UserMetadata")
        assert note + "\ufffd\ufffd" in [each.text for each in found]
    token = {"Authorization": broker.token(port=broker.admin_port)}
    for path in (f"/namespaces/demo/queues/{name}", "/health", "/nothing/%3Cscript%3E"):
        _status, told, _body = broker.raw_http("GET", path, headers=token)
        assert told["x-content-type-options"] == "nosniff"
        assert told["content-type"] == "application/json" or "xml" in told["content-type"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_case_109_a_name_that_is_a_script_is_refused_and_escaped(
    broker: BrokerProcess, put: Put, script: str
) -> None:
    """What a refusal repeats of it is text."""
    path = "".join(f"%{byte:02x}" for byte in script.encode())
    answer = put(described(), path)
    answer.assert_refused(400)
    assert b"<script" not in answer.body and b"<img" not in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"

"""Entity names that try to be something else (cases 15 to 24): refused alike on HTTP and AMQP.

Every name goes through the same function (common/entity_path.py), so the two tables below are one
table: what cannot be created cannot be attached to either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.message.message import Message
from twinbus.common.entity_path import BacklogPath, parse_backlog_path
from twinbus.errors import ConfigurationError

QUEUES = "/namespaces/demo/queues"

BAD_NAMES = {
    "case-15-261-characters": "q" * 261,
    "case-16-a-slash": "/",
    "case-16-leading-slash": "/q",
    "case-16-trailing-slash": "q/",
    "case-16-double-slash": "a//b",
    "case-17-dot-dot": "..",
    "case-17-dot-dot-inside": "a/../b",
    "case-17-dot-inside": "a/./b",
    "case-17-encoded-dots": "%2e%2e",
    "case-17-encoded-twice": "a/%252e%252e/b",
    "case-18-nul": "q\0",
    "case-18-control": "q\x1b[2J",
    "case-18-crlf": "q\r\nX-Admin: yes",
    "case-18-right-to-left": "q\u202egnp",
    "case-18-composed": "caf\u00e9",
    "case-18-decomposed": "cafe\u0301",
    "case-18-homoglyph": "\u043erders",
    "case-18-replacement": "q\ufffd",
    "case-20-cbs": "x/$cbs",
    "case-20-management-alone": "$management",
    "case-20-dead-letters-of-dead-letters": "q/$DeadLetterQueue/$DeadLetterQueue",
    "case-20-below-a-reserved-name": "q/$management/x",
    "case-23-hidden-database": ".db",
    "case-23-any-log": "*.wal",
    "case-23-home": "~",
}
NAMES = [pytest.param(name, id=case) for case, name in BAD_NAMES.items()]

# As they stand on the request line, because these are not texts but tricks with bytes.
BAD_TARGETS = {
    "case-16-empty": "",
    "case-17-plain-dots": "../keys",
    "case-17-dots-encoded-once": "%2e%2e/keys",
    "case-17-slash-encoded": "a%2f..%2fb",
    "case-18-overlong-dots": "%c0%ae%c0%ae",
    "case-18-overlong-slash": "a%c0%afb",
    "case-18-lone-surrogate": "a%ed%a0%80b",
    "case-18-half-a-character": "a%c3",
    "case-18-not-hexadecimal": "a%zzb",
}


def names_of(broker: BrokerProcess) -> list[str]:
    return [queue["path"] for queue in broker.admin("GET", QUEUES)]


def refused_over_http(broker: BrokerProcess, method: str, target: str) -> None:
    token = broker.token(port=broker.admin_port)
    status, told = broker.http(method, f"{QUEUES}/{target}", {}, token=token)
    # No path of ours can hold a line feed, so that one does not even find its way here.
    assert status == (404 if "%0A" in target else 400)
    assert_well_put(told["error"], token)


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_name_is_refused_over_http(broker: BrokerProcess, name: str) -> None:
    """M1: with 400, and no queue comes or goes."""
    before = names_of(broker)
    for method in ("PUT", "GET", "DELETE"):
        refused_over_http(broker, method, quote(name, safe="/"))
    assert names_of(broker) == before


@pytest.mark.parametrize("target", list(BAD_TARGETS.values()), ids=list(BAD_TARGETS))
def test_bytes_that_decode_to_a_bad_name_are_refused(broker: BrokerProcess, target: str) -> None:
    """M1: decoded once, then checked; nothing is repaired."""
    before = names_of(broker)
    refused_over_http(broker, "PUT", target)
    assert names_of(broker) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_name_is_refused_over_amqp(broker: BrokerProcess, name: str) -> None:
    """M1: the link is refused, the connection goes on."""
    with connected(broker.port, broker.token()) as client:
        for address in (name, f"amqps://localhost:5671/{name}"):
            for link in (client.attach_sender(address), client.attach_receiver(address)):
                error = client.detach_error(link)
                assert error.condition == "com.microsoft:argument-error"
                assert_well_put(error.description)
        missing = client.attach_sender(f"missing-{uuid4().hex}")
        assert client.refusal(missing) == "amqp:not-found"


@pytest.mark.parametrize("address", ["", None], ids=["case-16-empty", "case-16-null"])
def test_a_link_must_name_its_entity(broker: BrokerProcess, address: str | None) -> None:
    """M1: no address means no entity, not some default one."""
    with connected(broker.port, broker.token()) as client:
        for link in (client.attach_sender(address), client.attach_receiver(address)):
            error = client.detach_error(link)
            assert error.condition == "amqp:invalid-field"
            assert_well_put(error.description)


def test_case_20_cbs_is_a_node_and_never_a_queue(broker: BrokerProcess) -> None:
    """M6: it can be attached to by everybody, so it must not be created by anybody."""
    refused_over_http(broker, "PUT", "$cbs")
    refused_over_http(broker, "PUT", "%24cbs")


def test_case_19_letter_case_makes_no_other_queue(broker: BrokerProcess) -> None:
    """M1: one queue under every spelling, for creating, sending, tokens and deleting."""
    name = f"Case-{uuid4().hex[:8]}-Q"
    assert broker.create_queue(name)["display_path"] == name
    token = broker.token(port=broker.admin_port)
    for spelling in (name, name.lower(), name.upper()):
        status, told = broker.http("PUT", f"{QUEUES}/{spelling}", {}, token=token)
        assert status == 409
        assert told["error"].startswith(f"Queue {name.lower()!r} already exists.")
        with connected(broker.port, broker.token(path=name.swapcase())) as client:
            sender = client.attach_sender(f"amqps://LOCALHOST/{spelling}")
            assert client.send(sender, Message(body=spelling.encode()).encode()) == Accepted()
    assert broker.queue(name.upper())["active_message_count"] == 3
    broker.delete_queue(name.swapcase())
    assert name.lower() not in names_of(broker)


@pytest.mark.parametrize(
    "name", ["con", "NUL", "aux.db", "store.db", "store.db-wal", "keys.json", "lock", "a/lock"]
)
def test_case_23_a_queue_never_becomes_a_file(broker: BrokerProcess, name: str) -> None:
    """M1: names that mean something to a file system are ordinary queues here."""
    before = files_of(broker)
    broker.create_queue(name)
    with connected(broker.port, broker.token()) as client:
        assert client.send(client.attach_sender(name), Message(body=b"x").encode()) == Accepted()
    assert broker.queue(name)["active_message_count"] == 1
    assert files_of(broker) == before
    broker.delete_queue(name)


def files_of(broker: BrokerProcess) -> set[Path]:
    assert broker.data is not None
    return set(broker.data.rglob("*"))


@pytest.mark.parametrize("metadata", ["\ud800", "a\udfffb"])
def test_case_18_metadata_that_is_not_text_is_refused(broker: BrokerProcess, metadata: str) -> None:
    """M1: half a character would be stored and then break every list of queues."""
    name = f"queue-{uuid4().hex[:12]}"
    token = broker.token(port=broker.admin_port)
    body = {"user_metadata": metadata}
    status, told = broker.http("PUT", f"{QUEUES}/{name}", body, token=token)
    assert status == 400
    assert_well_put(told["error"])
    assert name not in names_of(broker)


BAD_INDEXES = ["-1", "01", "1e3", "10", "+1", "1.0", "0x1", "", "1 ", "\u0661", "9" * 5_000]


@pytest.mark.parametrize("index", BAD_INDEXES, ids=lambda text: f"case-22-{text[:8]!a}")
def test_a_backlog_index_has_one_spelling_below_the_count(index: str) -> None:
    """P4: ten backlog queues are 0 to 9, and no other text names one of them."""
    with pytest.raises(ConfigurationError):
        parse_backlog_path(f"primary/x-servicebus-transfer/{index}", backlog_queue_count=10)
    last = parse_backlog_path("Primary/x-servicebus-transfer/9", backlog_queue_count=10)
    assert last == BacklogPath("primary", 9)


@pytest.mark.parametrize(
    "count",
    [0, -1, float("nan"), float("inf"), 1.5, True, "10"],
    ids=lambda count: f"case-24-{count!r}",
)
def test_a_backlog_queue_count_is_a_whole_number_above_zero(count: Any) -> None:
    """P2: not a number is not below anything, so it would let every index through."""
    with pytest.raises(ConfigurationError, match="backlog_queue_count"):
        parse_backlog_path("primary/x-servicebus-transfer/0", backlog_queue_count=count)


def test_case_24_a_thousand_million_backlog_queues_cost_nothing_to_name() -> None:
    """P2: the count is compared, never counted up to."""
    path = "primary/x-servicebus-transfer/999999999"
    assert parse_backlog_path(path, backlog_queue_count=10**9).index == 999_999_999

"""XML in and out: bounded when it is read, well-formed whatever it says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import assert_well_put
from twinbus.amqp.codec.types import Int
from twinbus.broker.access.sas import Audience
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.http.atom.entity_xml import QUEUE
from twinbus.broker.http.atom.rule_xml import RULE_KIND, read_rule, rule_text
from twinbus.broker.http.atom.xml import (
    ATOM,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    FeedEntry,
    description_in,
    entry,
    entry_text,
    error,
    feed,
)
from twinbus.broker.http.request_checks import HttpError
from twinbus.errors import ConfigurationError

HERE = Audience(frozenset({"localhost"}), 5672)


def body(inside: str, *, kind: str = "QueueDescription", head: str = "") -> bytes:
    return (
        f'{head}<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">{inside}</{kind}>'
        "</content></entry>"
    ).encode()


def read(document: bytes) -> dict[str, object]:
    return QUEUE.read(description_in(document, {QUEUE.kind}), HERE, None)


def test_a_description_is_read() -> None:
    """M5: what the client leaves empty or null, or only the broker can know, is not set."""
    values = read(
        body(
            "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
            '<ForwardTo i:nil="true"/><UserMetadata/><SizeInBytes>99</SizeInBytes>'
            "<CountDetails><x xmlns='y'/></CountDetails>"
            "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"
        )
    )
    assert values == {"lock_duration_ms": 30_000, "max_size_mb": 2048, "default_ttl_ms": None}


ENTITY = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
LAUGHS = ENTITY + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">'
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD: dict[str, bytes] = {
    "a document type": body("", head="<!DOCTYPE entry>"),
    "a billion laughs": body("<UserMetadata>&i;</UserMetadata>", head=LAUGHS + "]>"),
    "a quadratic entity": body(
        f"<UserMetadata>{'&a;' * 1000}</UserMetadata>",
        head=f'<!DOCTYPE x [<!ENTITY a "{"a" * 9000}">]>',
    ),
    "an external entity": body(
        "<UserMetadata>&a;</UserMetadata>",
        head='<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    ),
    "a parameter entity": body(
        "", head='<!DOCTYPE x [<!ENTITY % a SYSTEM "http://localhost/a"> %a;]>'
    ),
    "an external document type": body("", head='<!DOCTYPE x SYSTEM "http://localhost/x.dtd">'),
    "deep nesting": body("<UserMetadata>" * 6000),
    "many elements": body("<a/>" * 16_000),
    "nothing": b"",
    "no XML": b"hello",
    "JSON": b'{"a": 1}',
    "half a document": body("")[:-5],
    "two documents": body("") * 2,
    "a null": body("<UserMetadata>\x00</UserMetadata>"),
    "not UTF-8": body("<UserMetadata>a</UserMetadata>").replace(b">a<", b">\xff<"),
    "an unknown encoding": body("", head='<?xml version="1.0" encoding="utf-99"?>'),
    "an undeclared prefix": body("<q:LockDuration>PT1S</q:LockDuration>"),
    "another root": b"<feed/>",
    "an entry of nobody": body("").replace(ATOM.encode(), b"urn:other"),
    "a description of nobody": body("").replace(SERVICE_BUS.encode(), b"urn:other"),
    "an element of nobody": body('<LockDuration xmlns="urn:other">PT1S</LockDuration>'),
    "an unknown element": body("<LockDurations>PT1S</LockDurations>"),
    "a name in other letters": body("<lockduration>PT1S</lockduration>"),
    "an element twice": body("<LockDuration>PT1S</LockDuration>" * 2),
    "elements where text belongs": body("<LockDuration><LockDuration/></LockDuration>"),
    "no content": f'<entry xmlns="{ATOM}"/>'.encode(),
    "two contents": f'<entry xmlns="{ATOM}"><content/><content/></entry>'.encode(),
    "an odd element in the entry": f'<entry xmlns="{ATOM}"><script/></entry>'.encode(),
    "another description": body("", kind="NamespaceInfo"),
    "no duration": body("<LockDuration>soon</LockDuration>"),
    "no number": body("<MaxSizeInMegabytes>1e3</MaxSizeInMegabytes>"),
    "no flag": body("<RequiresSession>maybe</RequiresSession>"),
    "another type of rule": body(
        '<AuthorizationRules><AuthorizationRule i:type="Own"/></AuthorizationRules>'
    ),
    "an odd forwarding": body("<ForwardTo>http://[x/orders</ForwardTo>"),
    "forwarding elsewhere": body("<ForwardTo>sb://elsewhere/orders</ForwardTo>"),
}


@pytest.mark.parametrize("document", BAD.values(), ids=BAD)
def test_bad_xml_is_refused_in_a_sentence_and_at_once(document: bytes) -> None:
    """Cases 100, 101 and 102: nothing is expanded, fetched or built."""
    began_s = time.process_time()
    with pytest.raises((HttpError, ConfigurationError)) as refused:
        read(document)
    assert time.process_time() - began_s < 0.5
    assert_well_put(str(refused.value))
    assert "passwd" not in str(refused.value)


@given(st.text(), st.text())
def test_whatever_is_said_the_document_is_well_formed(title: str, note: str) -> None:
    """Case 109: text stays text, and what XML cannot spell is replaced."""
    description = QueueDescription(path="a")
    object.__setattr__(description, "user_metadata", note)
    content = QUEUE.write(description, {}, "sb://localhost:5672", "2024-05")
    item = FeedEntry(f"http://localhost/{title}", title, QUEUE.kind, content)
    for document in (
        entry(item, title),
        feed(title, title, title, [entry_text(item, title)] * 2, now_ms=1),
        error(400, note),
    ):
        root = ElementTree.fromstring(document)
        tags = [str(each.tag).rpartition("}")[2] for each in root.iter()]
        assert {"script", "b"}.isdisjoint(tags)
    speakable = "".join(c for c in note if c.isprintable())
    if speakable == note:
        assert ElementTree.fromstring(error(400, note)).findtext("Detail", "") == note


def test_elements_are_written_in_the_order_of_the_protocol() -> None:
    """M10: the .NET clients count on it."""
    content = QUEUE.write(QueueDescription(path="a"), {"CountDetails": "x"}, "sb://h", "2024-05")
    root = ElementTree.fromstring(f"<q>{content}</q>")
    order = [row.element for row in QUEUE.rows]
    assert [each.tag for each in root] == [name for name in order if root.find(name) is not None]


VALUES = {
    "text": " <a> &\r\n",
    "int": Int(5),
    "long": 2**40,
    "negative": -3,
    "double": 1.5e300,
    "yes": True,
    "no": False,
    "naive": datetime(2024, 1, 2, 3, 4, 5),
    "aware": datetime(2024, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC),
    "duration": timedelta(days=3, microseconds=7),
    "backwards": -timedelta(hours=1),
    "id": UUID(int=7),
}


@pytest.mark.parametrize(
    "rule",
    [
        RuleDescription("$Default", TrueFilter()),
        RuleDescription("none", FalseFilter()),
        RuleDescription(
            "sql", SqlFilter("a = @text", VALUES_ := {f"@{k}": v for k, v in VALUES.items()})
        ),
        RuleDescription("act", TrueFilter(), SqlAction("SET a = @text", VALUES_)),
        RuleDescription("correlation", CorrelationFilter(label="l <", properties=VALUES)),
        RuleDescription(
            "all",
            CorrelationFilter(
                correlation_id="1",
                message_id="2",
                to="3",
                reply_to="4",
                label="5",
                session_id="6",
                reply_to_session_id="7",
                content_type="8",
            ),
        ),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_comes_back_as_it_was(rule: RuleDescription) -> None:
    """M4, M5: with its values and their types."""
    document = body(rule_text(rule), kind=RULE_KIND)
    read_back = read_rule(description_in(document, {RULE_KIND}), rule.name)
    assert read_back == rule
    assert read_back.to_dict() == rule.to_dict(), "a value has another type"


BAD_RULES = {
    "no filter": "<Name>r</Name>",
    "a filter without type": "<Filter/>",
    "an unknown filter": '<Filter i:type="RegexFilter"/>',
    "no expression": '<Filter i:type="SqlFilter"/>',
    "an unknown action": '<Filter i:type="TrueFilter"/><Action i:type="PythonAction"/>',
    "another name": '<Filter i:type="TrueFilter"/><Name>other</Name>',
    "a value of no type": '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType>'
    '<Key>a</Key><Value i:type="blob">1</Value></KeyValueOfstringanyType></Properties></Filter>',
    "a date that is none": '<Filter i:type="CorrelationFilter"><Properties>'
    '<KeyValueOfstringanyType><Key>a</Key><Value i:type="dateTime">now</Value>'
    "</KeyValueOfstringanyType></Properties></Filter>",
    "not a number": '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType>'
    '<Key>a</Key><Value i:type="double">NaN</Value></KeyValueOfstringanyType>'
    "</Properties></Filter>",
    "a key without value": '<Filter i:type="CorrelationFilter"><Properties>'
    "<KeyValueOfstringanyType><Key>a</Key></KeyValueOfstringanyType></Properties></Filter>",
}


@pytest.mark.parametrize("inside", BAD_RULES.values(), ids=BAD_RULES)
def test_a_bad_rule_is_refused_in_a_sentence(inside: str) -> None:
    """M4, M5"""
    document = body(inside, kind=RULE_KIND)
    with pytest.raises((HttpError, ConfigurationError)) as refused:
        read_rule(description_in(document, {RULE_KIND}), "r")
    assert_well_put(str(refused.value))

"""M4: what SET and REMOVE do to a copy, and that they touch nothing else."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.engine.filters.messages import record_of, rule, view_of
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.types import Float32, Int, Long, Symbol, Timestamp, UByte, ULong
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, Body, DataSections, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.message.sections import scan_message
from twinbus.broker.engine.filters import (
    Changes,
    FilterError,
    MessageView,
    SqlAction,
    TrueFilter,
    apply_changes,
    compile_rule,
)
from twinbus.broker.engine.filters.action_compiler import REMOVED
from twinbus.broker.engine.stored_message import Record
from twinbus.errors import ConfigurationError


def changes_of(action: str, view: MessageView) -> Changes:
    changes = compile_rule(rule(TrueFilter(), action)).apply(view)
    assert changes is not None
    return changes


def after(action: str, own: dict[str, Any] | None = None, **properties: Any) -> Message:
    """The message once the action has been at it."""
    view = view_of(own, **properties)
    return Message.decode(apply_changes(view.record, changes_of(action, view)).bare)


def own_after(action: str, own: dict[str, Any]) -> dict[str, Any] | None:
    return after(action, own).application_properties


def test_set_adds_and_replaces_and_remove_takes_away() -> None:
    """M4"""
    assert own_after("SET b = 2", {"a": "x"}) == {"a": "x", "b": 2}
    assert own_after("SET a = 'y'", {"a": "x"}) == {"a": "y"}
    assert own_after("REMOVE a", {"a": "x", "b": 1}) == {"b": 1}
    assert own_after("REMOVE missing", {"a": "x"}) == {"a": "x"}
    assert own_after("REMOVE a", {"a": "x"}) is None
    assert own_after("set user.a = 'y'; remove b;", {"a": "x", "b": 1}) == {"a": "y"}


def test_statements_need_no_semicolon_and_see_what_those_before_them_did() -> None:
    """M4"""
    assert own_after("SET a = a + 1 SET b = a * 10", {"a": 1}) == {"a": 2, "b": 20}
    assert own_after("SET a = 1; REMOVE a; SET b = a", {"x": 1}) == {"x": 1, "b": None}
    assert own_after("REMOVE a; SET a = 'new'", {"a": 5}) == {"a": "new"}
    assert after("SET sys.Label = 'x'; SET a = sys.Subject + '!'").application_properties == {
        "a": "x!"
    }


def test_a_name_keeps_the_spelling_that_the_message_has() -> None:
    """M4: names ignore upper case."""
    assert own_after("SET COLOR = 'blue'", {"Color": "red"}) == {"Color": "blue"}
    assert own_after("REMOVE color", {"Color": "red", "n": 1}) == {"n": 1}
    assert own_after("SET [New Name] = 1", {"n": 1}) == {"n": 1, "New Name": 1}


@pytest.mark.parametrize(
    ("before", "value", "expected"),
    [
        (Int(5), "7", Int(7)),
        (Int(5), "'7'", Int(7)),
        (UByte(5), "255", UByte(255)),
        (UByte(5), "256", Long(256)),
        (UByte(5), "-1", Long(-1)),
        (Int(5), "'seven'", "seven"),
        (Int(5), "'1_000'", "1_000"),
        (Int(5), "2.5", 2.5),
        (2.5, "7", 7.0),
        (2.5, "'7.5'", 7.5),
        (Float32(2.5), "7", Float32(7.0)),
        (True, "'false'", False),
        (True, "'maybe'", "maybe"),
        ("red", "7", "7"),
        ("red", "2.0", "2"),
        ("red", "TRUE", "True"),
        ("red", "NULL", None),
        (Symbol("red"), "'blue'", Symbol("blue")),
        (Timestamp(5), "'later'", "later"),
        (None, "7", Long(7)),
    ],
)
def test_a_property_keeps_its_type_if_the_value_can_take_it(
    before: Any, value: str, expected: Any
) -> None:
    """M4: SET converts to the type of the property that is there, where it can."""
    found = own_after(f"SET a = {value}", {"a": before})
    assert found is not None
    assert (type(found["a"]), found["a"]) == (
        Long if type(expected) is int else type(expected),
        expected,
    )


def test_system_properties_are_set_as_text() -> None:
    """M4"""
    message = after(
        "SET sys.MessageId = 5; SET sys.Label = 'a' + 1; SET sys.To = newid(); "
        "SET sys.ReplyTo = 'me'; SET sys.CorrelationId = TRUE; SET sys.SessionId = order; "
        "SET sys.ReplyToSessionId = 'r'; SET sys.ContentType = 'text/plain'",
        {"order": ULong(77)},
        user_id=b"user",
        group_sequence=3,
    )
    properties = message.properties
    assert properties is not None
    assert UUID(properties.to or "").version == 4
    assert properties == Properties(
        message_id="5",
        user_id=b"user",
        to=properties.to,
        subject="a1",
        reply_to="me",
        correlation_id="True",
        content_type="text/plain",
        group_id="77",
        group_sequence=3,
        reply_to_group_id="r",
    )
    assert message.application_properties == {"order": 77}


def test_a_system_property_can_be_taken_away() -> None:
    """M4"""
    message = after("REMOVE sys.Label; SET sys.To = NULL", subject="red", to="me", message_id="m")
    assert message.properties == Properties(message_id="m")


BODIES: st.SearchStrategy[Body] = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=20), min_size=2, max_size=3).map(
        lambda items: DataSections(tuple(items))
    ),
    st.just(AmqpSequence(([1, "a"], [2]))),
    st.sampled_from([AmqpValue(None), AmqpValue("text"), AmqpValue({"a": Int(1)})]),
)


@given(
    body=BODIES,
    own=st.none() | st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", Int(1), None])),
    properties=st.sampled_from([{}, {"message_id": "m"}, {"subject": "s", "group_id": "g"}]),
    footer=st.none() | st.just({Symbol("f"): 1}),
    action=st.sampled_from(
        ["SET a = 1", "REMOVE a", "SET sys.Label = 'new'", "SET d = 'x'; SET sys.To = 'y'"]
    ),
)
def test_body_and_footer_stay_as_they_are_byte_for_byte(
    body: Body,
    own: dict[str, Any] | None,
    properties: dict[str, Any],
    footer: dict[Any, Any] | None,
    action: str,
) -> None:
    """M4: and so does the section that the action does not change."""
    view = view_of(own, body=body, footer=footer, **properties)
    before, changes = view.record.bare, changes_of(action, view)
    bare = apply_changes(view.record, changes).bare

    old, new = (scan_message(raw, 0, len(raw)) for raw in (before, bare))
    assert bare[new.body_start :] == before[old.body_start :]
    for changed, name in ((changes.system, "properties"), (changes.user, "application_properties")):
        if not changed:
            assert _section(before, getattr(old, name)) == _section(bare, getattr(new, name))


def _section(raw: bytes, span: tuple[int, int] | None) -> bytes | None:
    return None if span is None else raw[span[0] : span[1]]


def test_a_message_without_a_body_stays_without_one() -> None:
    """M4: the Azure SDK sends ServiceBusMessage(None) that way."""
    whole = record_of({"a": "x"}, message_id="m").bare
    record = Record(whole[: scan_message(whole, 0, len(whole)).body_start])
    view = MessageView.from_record(record)
    bare = apply_changes(record, changes_of("SET b = 1; SET sys.To = 't'", view)).bare
    found = scan_message(bare, 0, len(bare), body_required=False)
    assert found.body == [] and found.application_properties is not None
    assert decode_value(bare, *found.application_properties, Budget())[0] == {"a": "x", "b": 1}


def test_everything_else_of_the_record_is_kept_and_the_original_is_not_touched() -> None:
    """M4"""
    bare = record_of({"a": 1}).bare
    record = Record(bare, 7, 1_000, 500, 1, b"pairs")
    changed = apply_changes(record, Changes(user={"a": REMOVED, "b": 2}))
    assert (changed.priority, changed.expires_ms, changed.ttl_ms) == (7, 1_000, 500)
    assert (changed.annotation_count, changed.annotation_pairs) == (1, b"pairs")
    assert record == Record(bare, 7, 1_000, 500, 1, b"pairs")


def test_an_action_does_not_change_what_other_rules_see() -> None:
    """M4: each rule works on a copy of its own."""
    view = view_of({"a": 1}, subject="red")
    changes_of("SET a = 2; SET sys.Label = 'blue'; SET c = 3", view)
    assert (view.user, view.system["label"]) == ({"a": 1}, "red")
    assert view.own == {"a": 1}


@pytest.mark.parametrize(
    "action",
    [
        "SET a = 1 / 0",
        "SET sys.MessageId = missing",
        "SET sys.MessageId = long",
        "SET sys.SessionId = long",
        "SET sys.ContentType = 'ä'",
        "SET sys.Label = raw",
    ],
)
def test_an_action_without_a_valid_result_is_an_error_of_this_message(action: str) -> None:
    """M4"""
    view = view_of({"long": "x" * 129, "raw": b"raw"})
    with pytest.raises(FilterError):
        changes_of(action, view)


def test_an_action_cannot_fill_a_message_up() -> None:
    """M4: the properties of a message have 64 KiB, whoever writes them."""
    view = view_of({"a": "x" * 30_000, "b": "y" * 30_000})
    with pytest.raises(FilterError, match="larger than 65536"):
        apply_changes(view.record, changes_of("SET c = a", view))
    with pytest.raises(FilterError, match="32768"):
        changes_of("SET c = a + a", view)


def test_an_action_is_parsed_when_it_is_made() -> None:
    """M4"""
    with pytest.raises(ConfigurationError):
        SqlAction("UPDATE a")


@pytest.mark.parametrize(
    "long_form", [b"\x00\x80" + bytes(7), b"\x00\xa3"], ids=["ulong", "symbol"]
)
def test_sections_are_found_however_their_descriptors_are_spelled(long_form: bytes) -> None:
    """M4: a descriptor may be a long number or a symbol, though no client writes one."""
    names = {0x73: b"amqp:properties:list", 0x74: b"amqp:application-properties:map"}
    bare = record_of({"a": 1}, message_id="m", subject="red").bare
    for code, name in names.items():
        long = bytes((code,)) if long_form[1] == 0x80 else bytes((len(name),)) + name
        bare = bare.replace(b"\x00\x53" + bytes((code,)), long_form + long, 1)
    view = MessageView.from_record(Record(bare))
    assert (view.user, view.system["label"]) == ({"a": 1}, "red")
    changed = apply_changes(view.record, changes_of("SET a = 2", view))
    assert Message.decode(changed.bare).application_properties == {"a": 2}

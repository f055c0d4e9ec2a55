"""The envelope of a backlog message: what it says, what it keeps, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.roundtrip import NOW_MS, as_delivered, essence, home_again
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Described, Int, Long, Symbol, Timestamp, UInt, ULong
from twinbus.amqp.errors import AmqpError
from twinbus.amqp.message.message import AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.encoding.envelope import (
    RESERVED_NAMES,
    Reason,
    TtlPolicy,
    alias,
    check_fits,
    check_reserved,
    check_reserved_names,
    overhead_bytes,
    overhead_bytes_max,
    restore,
)
from twinbus.errors import (
    EnvelopeError,
    MessageRefused,
    MessageTooLarge,
    ReservedProperty,
    TooLargeForBacklog,
)

LIMIT_BYTES = 262_144
SCHEDULED = "x-opt-scheduled-enqueue-time"


def message(**parts: Any) -> bytes:
    parts.setdefault("body", b"hello")
    return Message(**parts).encode()


def everything() -> bytes:
    return message(
        header=Header(durable=True, priority=7, ttl_ms=60_000),
        message_annotations={SCHEDULED: Timestamp(NOW_MS), "x-opt-partition-key": "berlin"},
        properties=Properties(message_id="m-1", group_id="berlin", reply_to_group_id="back"),
        application_properties={"colour": "red", "count": Int(3)},
    )


def backlog_message(properties: dict[str, Any]) -> bytes:
    """What anybody with Send could put into a backlog queue."""
    return message(
        properties=Properties(message_id="m-1"), application_properties=properties, body=b""
    )


def refusal(properties: dict[str, Any], **options: Any) -> EnvelopeError:
    with pytest.raises(EnvelopeError) as caught:
        restore(backlog_message(properties), now_ms=NOW_MS, **options)
    return caught.value


# --- what the backlog sees ---------------------------------------------------------------------


def test_the_copy_names_its_destination_and_holds_what_was_cleared() -> None:
    """P12: destination, session, TTL and schedule are aliases; where they were is nothing."""
    copy = Message.decode(alias(everything(), "orders"))

    assert copy.application_properties == {
        "colour": "red",
        "count": 3,
        "x-ms-path": "orders",
        "x-ms-sessionid": "berlin",
        "x-ms-timetolive": 60_000,
        "x-ms-scheduledenqueuetimeutc": NOW_MS,
    }
    assert type(copy.application_properties["x-ms-timetolive"]) is Long
    assert type(copy.application_properties["x-ms-scheduledenqueuetimeutc"]) is Timestamp
    assert copy.header == Header(durable=True, priority=7)
    assert copy.message_annotations == {"x-opt-partition-key": "berlin"}
    assert copy.properties == Properties(message_id="m-1", reply_to_group_id="back")
    assert copy.body == b"hello"


def test_a_plain_message_gets_a_destination_and_nothing_else() -> None:
    """P12: what was not set has no alias."""
    plain = message(properties=Properties(message_id="m-1"))

    copy = Message.decode(alias(plain, "orders"))

    assert copy.application_properties == {"x-ms-path": "orders"}
    assert home_again(alias(plain, "orders")) == plain


def test_the_time_to_live_cannot_run_in_the_backlog() -> None:
    """P12: nothing is left in the copy from which a service could derive a time to live."""
    sent = message(
        header=Header(ttl_ms=5_000),
        properties=Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + 5_000),
    )

    copy = Message.decode(alias(sent, "orders"))

    assert copy.header is None
    assert copy.properties == Properties(creation_time=NOW_MS)
    assert essence(home_again(alias(sent, "orders"))) == essence(sent)


def test_a_time_to_live_of_more_than_49_days_comes_home() -> None:
    """P12: such a one is the difference of two times, and the header only points to them."""
    year_ms = 365 * 86_400_000
    sent = message(
        header=Header(ttl_ms=2**32 - 1),
        properties=Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + year_ms),
    )

    copy = alias(sent, "orders")

    assert Message.decode(copy).application_properties["x-ms-timetolive"] == year_ms
    assert essence(home_again(copy)) == essence(sent)


@pytest.mark.parametrize(
    "body",
    [b"", DataSections((b"",) * 4_500), AmqpValue(None), AmqpValue({"a": [1, {"b": None}]})],
    ids=["empty", "4500 sections", "null", "nested"],
)
def test_bodies_of_every_kind_are_kept_byte_for_byte(body: Any) -> None:
    """P12: the body is not looked at."""
    sent = message(properties=Properties(message_id="m-1"), body=body)

    assert home_again(alias(sent, "orders")) == sent


def test_a_message_without_a_body_section_comes_home_without_one() -> None:
    """P12: the Azure SDK makes such messages of ServiceBusMessage(None)."""
    sent = b"\x00\x53\x73\xc0\x06\x01\xa1\x03abc"

    assert home_again(alias(sent, "orders")) == sent


def test_sections_with_long_or_symbolic_descriptors_are_understood() -> None:
    """P12: AMQP has three ways to write a descriptor, and a client may use any of them."""
    properties = b"\x00\xa3\x14amqp:properties:list\xc0\x06\x01\xa1\x03abc"
    application = b"\x00\x80" + bytes(7) + b"\x74\xc1\x05\x02\xa1\x01a\x41"
    body = b"\x00\xa3\x10amqp:data:binary\xa0\x02hi"
    sent = properties + application + body

    assert essence(home_again(alias(sent, "orders"))) == essence(sent)


def test_delivery_annotations_at_the_end_are_kept() -> None:
    """P12: where the Azure SDK writes them."""
    sent = message() + b"\x00\x53\x71" + encode_value({Symbol("x-own"): Long(5)})

    assert essence(home_again(alias(sent, "orders"))) == essence(sent)


def test_nothing_that_the_backlog_broker_said_goes_home() -> None:
    """P12: numbers, times, locks and counts belong to the queue that gave them."""
    said = {
        "x-opt-sequence-number": Long(5),
        "x-opt-enqueued-time": Timestamp(1),
        "x-opt-locked-until": Timestamp(2),
        "x-opt-enqueue-sequence-number": Long(0),
        "x-opt-deadletter-source": "contoso/x-servicebus-transfer/0",
        "x-opt-message-state": Int(0),
        "x-opt-partition-id": Int(3),
        "x-own": "kept",
    }
    delivered = message(
        header=Header(durable=True, priority=4, first_acquirer=True, delivery_count=9, ttl_ms=77),
        delivery_annotations={"x-opt-lock-token": "token", "x-own": "kept"},
        message_annotations=said,
        properties=Properties(message_id="m-1"),
        application_properties={"x-ms-path": "orders"},
    )

    restored = Message.decode(restore(delivered, now_ms=0).encoded)

    assert restored.header is None
    assert restored.delivery_annotations == {"x-own": "kept"}
    assert restored.message_annotations == {"x-own": "kept"}
    assert restored.application_properties is None


@pytest.mark.parametrize(
    ("message_id", "text"),
    [("m-1", "m-1"), (ULong(7), "7"), (b"\x01\xff", "01ff"), (None, None)],
)
def test_a_restored_message_says_who_it_is(message_id: Any, text: str | None) -> None:
    sent = message(properties=Properties(message_id=message_id, group_id="berlin"))

    restored = restore(as_delivered(alias(sent, "Orders")), now_ms=0)

    assert restored[0] == "Orders"
    assert restored.session_id == "berlin"
    assert restored.message_id == text


# --- reserved names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "X-MS-Path", "x-MS-sessionId"])
def test_a_property_with_a_reserved_name_is_refused_in_every_spelling(name: str) -> None:
    """P12: in any case of letters, because .NET and SQL filters would not tell them apart."""
    sent = message(application_properties={"colour": "red", name: "elsewhere"})

    for refuse in (lambda: alias(sent, "orders"), lambda: check_reserved(sent)):
        with pytest.raises(ReservedProperty) as caught:
            refuse()
        assert caught.value.name == name
    with pytest.raises(ReservedProperty):
        check_reserved_names([name.encode()])


def test_a_reserved_name_as_a_value_is_no_offence() -> None:
    """P12: only names are reserved."""
    sent = message(application_properties={"header": "x-ms-path", "x-ms-pathology": 1})

    check_reserved(sent)
    check_reserved_names({"header": "x-ms-path"})
    assert essence(home_again(alias(sent, "orders"))) == essence(sent)


def test_a_restored_message_has_no_destination_left() -> None:
    """Y6: so it cannot go round: the second backlog queue dead-letters it."""
    home = home_again(alias(everything(), "orders"))

    with pytest.raises(EnvelopeError) as caught:
        restore(as_delivered(home), now_ms=0)
    assert caught.value.reason == "no-destination"


# --- what the caller did wrong is said at once -------------------------------------------------


def test_a_session_id_that_the_primary_would_refuse_is_refused_before_the_backlog() -> None:
    """P12: a backlog queue would take it, and the message would never come home."""
    with pytest.raises(MessageRefused, match="got 129"):
        alias(message(properties=Properties(group_id="é" * 129)), "orders")
    alias(message(properties=Properties(group_id="é" * 128)), "orders")
    text, binary = b"\xa1\x03abc", b"\xa0\x03abc"
    sent = message(properties=Properties(group_id="abc"))
    assert text in sent
    with pytest.raises(MessageRefused, match="group-id"):
        alias(sent.replace(text, binary), "orders")


def test_a_schedule_outside_the_calendar_is_refused_before_the_backlog() -> None:
    """P12: for the same reason."""
    with pytest.raises(MessageRefused, match="years 1 to 9999"):
        alias(message(message_annotations={SCHEDULED: Timestamp(2**62)}), "orders")


def test_a_schedule_of_a_wrong_type_is_left_for_the_service_to_refuse() -> None:
    """P12: as it would be without an outage."""
    sent = message(message_annotations={SCHEDULED: "tomorrow"})

    copy = Message.decode(alias(sent, "orders"))

    assert copy.message_annotations == {SCHEDULED: "tomorrow"}


@pytest.mark.parametrize("sent", [b"\x00", b"\x00\x53\x70", b"\x00\x53\x74\xc1\xff", b"hello"])
def test_bytes_that_are_no_message_are_refused(sent: bytes) -> None:
    with pytest.raises(MessageRefused, match="not a whole AMQP message"):
        alias(sent, "orders")


# --- sizes -------------------------------------------------------------------------------------


def sized(size_bytes: int, **parts: Any) -> bytes:
    """A message of exactly this many bytes."""
    empty = len(message(body=b"x" * 300, **parts)) - 300
    made = message(body=b"x" * (size_bytes - empty), **parts)
    assert len(made) == size_bytes
    return made


@pytest.mark.parametrize("below", [0, 1, 19, 20, 21, 25, 26, 27, 331, 332, 333])
@pytest.mark.parametrize("path", ["o", "orders", "q" * 260])
def test_a_message_is_refused_exactly_when_its_copy_would_not_fit(below: int, path: str) -> None:
    """P13: to the byte, with the limit, the size and the overhead in the error."""
    sent = sized(LIMIT_BYTES - below, properties=Properties(message_id="m-1"))
    size = len(alias(sent, path))

    if size <= LIMIT_BYTES:
        check_fits(sent, path, LIMIT_BYTES)
        return
    with pytest.raises(TooLargeForBacklog) as caught:
        check_fits(sent, path, LIMIT_BYTES)
    error = caught.value
    assert isinstance(error, MessageTooLarge)
    assert (error.size_bytes, error.limit_bytes) == (len(sent), LIMIT_BYTES)
    assert error.size_bytes + error.overhead_bytes == size
    assert "262144" in str(error)


def test_one_byte_decides() -> None:
    """P13: a copy of the limit's size fits, one byte more does not (a plain one, 1-letter path)."""
    overhead = overhead_bytes(sized(1_000), "o")

    check_fits(sized(LIMIT_BYTES - overhead), "o", LIMIT_BYTES)
    with pytest.raises(TooLargeForBacklog):
        check_fits(sized(LIMIT_BYTES - overhead + 1), "o", LIMIT_BYTES)


def test_the_largest_overhead_is_332_bytes() -> None:
    """P13: for the longest path, with session, time to live and schedule."""
    worst = sized(
        10_000,
        header=Header(durable=True, priority=1, ttl_ms=200),
        message_annotations={SCHEDULED: Timestamp(NOW_MS), "a" * 200: "b" * 200},
        properties=Properties(group_id="s"),
    )

    assert overhead_bytes_max("q" * 260) == 332
    assert 300 < overhead_bytes(worst, "q" * 260) <= 332


def test_properties_that_just_fit_the_primary_are_refused_too() -> None:
    """P13: all properties of a message together have a limit of their own."""
    large = {"p0": "x" * 32_000, "p1": "x" * 32_000}
    room = 65_536 - len(encode_value({**large, "r": "y" * 300})) + 300
    full = message(application_properties={**large, "r": "y" * room})
    as_delivered(full)  # Our broker takes it, and would not take its copy:
    with pytest.raises(AmqpError, match="more than 65536 bytes"):
        as_delivered(alias(full, "orders"))

    with pytest.raises(TooLargeForBacklog) as caught:
        check_fits(full, "orders", LIMIT_BYTES)

    error = caught.value
    assert (error.size_bytes, error.limit_bytes) == (65_536, 65_536)
    check_fits(message(application_properties={**large, "r": "y" * (room - 23)}), "o", LIMIT_BYTES)


# --- time to live on the way home --------------------------------------------------------------


def ttl_home(policy: TtlPolicy, *, waited_ms: int, **parts: Any) -> Message:
    parts.setdefault("header", Header(ttl_ms=60_000))
    delivered = as_delivered(alias(message(**parts), "orders"))
    restored = restore(
        delivered, now_ms=NOW_MS + waited_ms, enqueued_at_ms=NOW_MS, ttl_policy=policy
    )
    return Message.decode(restored.encoded)


def test_the_time_to_live_starts_again_at_home() -> None:
    """Y8: the default, as in the original."""
    home = ttl_home(TtlPolicy.RESTART, waited_ms=3_600_000)

    assert home.header == Header(ttl_ms=60_000)


def test_the_time_in_the_backlog_can_count() -> None:
    """Y8: what is left of it goes home."""
    assert ttl_home(TtlPolicy.ELAPSED, waited_ms=45_000).header == Header(ttl_ms=15_000)
    assert ttl_home(TtlPolicy.DEAD_LETTER, waited_ms=45_000).header == Header(ttl_ms=15_000)


def test_the_times_of_a_message_agree_with_what_is_left() -> None:
    """Y8: a service that derives the time to live from them comes to the same."""
    times = Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + 60_000)

    home = ttl_home(TtlPolicy.ELAPSED, waited_ms=45_000, properties=times)

    assert home.properties == Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + 15_000)


def test_what_expired_on_the_way_goes_home_for_a_millisecond_or_stays() -> None:
    """Y8: the destination's rules for expired messages apply, or the backlog's."""
    assert ttl_home(TtlPolicy.ELAPSED, waited_ms=60_000).header == Header(ttl_ms=1)
    with pytest.raises(EnvelopeError) as caught:
        ttl_home(TtlPolicy.DEAD_LETTER, waited_ms=60_000)
    assert caught.value.reason == "expired"


def test_a_scheduled_message_does_not_age_before_it_is_due() -> None:
    """Y8: its time to live begins at its scheduled time."""
    home = ttl_home(
        TtlPolicy.ELAPSED,
        waited_ms=100_000,
        message_annotations={SCHEDULED: Timestamp(NOW_MS + 90_000)},
    )

    assert home.header == Header(ttl_ms=50_000)


def test_without_an_enqueued_time_nothing_has_elapsed() -> None:
    """Y8: a clock that was not read cannot expire a message."""
    delivered = as_delivered(alias(message(header=Header(ttl_ms=5)), "orders"))

    restored = restore(delivered, now_ms=NOW_MS * 2, ttl_policy=TtlPolicy.DEAD_LETTER)

    assert Message.decode(restored.encoded).header == Header(ttl_ms=5)


# --- messages that nobody here has written -----------------------------------------------------


def timespan(ticks: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), Long(ticks))


def test_what_the_original_wrote_is_understood() -> None:
    """P12: .NET's TimeSpan and DateTimeOffset are described longs of 100 ns ticks."""
    offset = Described(
        Symbol("com.microsoft:datetime-offset"), Long(621_355_968_000_000_000 + NOW_MS * 10_000)
    )
    properties = {
        "x-ms-path": "orders",
        "x-ms-timetolive": timespan(600_000_000),
        "x-ms-scheduledenqueuetimeutc": offset,
    }

    restored = restore(backlog_message(properties), now_ms=0)
    home = Message.decode(restored.encoded)

    assert home.header == Header(ttl_ms=60_000)
    assert home.message_annotations == {SCHEDULED: NOW_MS}
    assert home.properties == Properties(message_id="m-1")


def test_a_long_timespan_gets_the_two_times_that_it_needs() -> None:
    """P12: a header cannot say more than 49 days."""
    days_100_ms = 100 * 86_400_000
    properties = {"x-ms-path": "orders", "x-ms-timetolive": timespan(days_100_ms * 10_000)}

    home = Message.decode(restore(backlog_message(properties), now_ms=NOW_MS).encoded)

    assert home.header == Header(ttl_ms=2**32 - 1)
    assert home.properties == Properties(
        message_id="m-1", creation_time=NOW_MS, absolute_expiry_time=NOW_MS + days_100_ms
    )


def test_the_longest_timespan_ends_with_the_calendar() -> None:
    """P12: no SDK can show an expiry behind the year 9999."""
    properties = {"x-ms-path": "orders", "x-ms-timetolive": timespan(2**63 - 1)}

    home = Message.decode(restore(backlog_message(properties), now_ms=NOW_MS).encoded)

    assert home.header == Header(ttl_ms=2**32 - 1)
    assert home.properties is not None
    assert home.properties.absolute_expiry_time == 253_402_243_199_000


def test_a_part_of_a_millisecond_counts_as_one() -> None:
    """P12: one tick is not nothing."""
    properties = {"x-ms-path": "orders", "x-ms-timetolive": timespan(1)}

    home = Message.decode(restore(backlog_message(properties), now_ms=0).encoded)

    assert home.header == Header(ttl_ms=1)


@pytest.mark.parametrize("number", [Long(5), Int(5), UInt(5), ULong(5)])
def test_any_whole_number_is_a_time_to_live(number: int) -> None:
    """P12: a client in another language may have only one kind of number."""
    properties = {"x-ms-path": "orders", "x-ms-timetolive": number}

    home = Message.decode(restore(backlog_message(properties), now_ms=0).encoded)

    assert home.header == Header(ttl_ms=5)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, Reason.NO_DESTINATION),
        ({"colour": "red"}, Reason.NO_DESTINATION),
        ({"x-ms-path": None}, Reason.NO_DESTINATION),
        ({"x-ms-path": ""}, Reason.NO_DESTINATION),
        ({"x-ms-path": 5}, Reason.INVALID_PROPERTY_TYPE),
        ({"x-ms-path": b"orders"}, Reason.INVALID_PROPERTY_TYPE),
        ({"x-ms-path": Symbol("orders")}, Reason.INVALID_PROPERTY_TYPE),
        ({"x-ms-path": "q" * 261}, Reason.INVALID_PROPERTY_VALUE),
        ({"X-MS-Path": "orders"}, Reason.INVALID_PROPERTY_VALUE),
        ({"x-ms-path": "orders", "X-MS-PATH": "else"}, Reason.INVALID_PROPERTY_VALUE),
    ],
)
def test_a_message_without_a_usable_destination_is_refused(
    properties: dict[str, Any], reason: str
) -> None:
    """Y4: with a reason that a dead-letter queue can show."""
    error = refusal(properties)

    assert error.reason == reason
    assert "x-ms-path" in error.description.lower()
    with pytest.raises(EnvelopeError) as caught:
        restore(as_delivered(backlog_message(properties)), now_ms=NOW_MS)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x-ms-timetolive", -1, Reason.INVALID_PROPERTY_VALUE),
        ("x-ms-timetolive", 2**63 - 1, Reason.INVALID_PROPERTY_VALUE),
        ("x-ms-timetolive", timespan(-1), Reason.INVALID_PROPERTY_VALUE),
        ("x-ms-timetolive", float("nan"), Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-timetolive", 1e300, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-timetolive", "1e999", Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-timetolive", True, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-timetolive", None, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-timetolive", Described(Symbol("x"), Long(1)), Reason.INVALID_PROPERTY_TYPE),
        (
            "x-ms-timetolive",
            Described(Symbol("com.microsoft:timespan"), "1"),
            Reason.INVALID_PROPERTY_TYPE,
        ),
        ("x-ms-sessionid", "s" * 129, Reason.INVALID_PROPERTY_VALUE),
        ("x-ms-sessionid", 5, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-sessionid", None, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-scheduledenqueuetimeutc", "2026-11-16", Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-scheduledenqueuetimeutc", 5, Reason.INVALID_PROPERTY_TYPE),
        ("x-ms-scheduledenqueuetimeutc", Timestamp(2**62), Reason.INVALID_PROPERTY_VALUE),
        ("X-Ms-SessionId", "s", Reason.INVALID_PROPERTY_VALUE),
    ],
)
def test_hostile_aliases_are_refused_and_never_half_restored(
    name: str, value: Any, reason: str
) -> None:
    """Y4: each with the property's name, and without its value."""
    error = refusal({"x-ms-path": "orders", name: value})

    assert error.reason == reason
    assert name.lower() in error.description.lower()
    assert "ssss" not in error.description


def test_a_name_that_stands_there_twice_is_refused() -> None:
    """Y4: our broker takes no such map; another might."""
    pair = encode_value("x-ms-path") + encode_value("orders")
    twice = b"\x00\x53\x74\xc1" + bytes((2 * len(pair) + 1, 4)) + 2 * pair

    with pytest.raises(EnvelopeError) as caught:
        restore(twice + message(), now_ms=0)
    assert caught.value.reason == "malformed-message"


def test_properties_that_count_more_fields_than_they_have_are_refused() -> None:
    """Y4: they would be misread, or refused by the primary again and again."""
    few = b"\x00\x53\x73\xc0\x04\x0d\xa1\x01m"
    path = b"\x00\x53\x74" + encode_value({"x-ms-path": "orders"})

    with pytest.raises(EnvelopeError) as caught:
        restore(few + path + message(), now_ms=0)
    assert caught.value.reason == "malformed-message"


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_message_that_was_cut_short_is_refused_with_a_reason(cut: int) -> None:
    """Y4: whatever the bytes are, an EnvelopeError is the worst that happens."""
    whole = as_delivered(alias(everything(), "orders"))

    with pytest.raises(EnvelopeError) as caught:
        restore(whole[:cut], now_ms=0)
    assert caught.value.reason in ("malformed-message", "no-destination")

"""The columns of the connector: what a received message becomes, and that it can be sent again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.types import DataType, StructType

from tests.support.amqp.strategies import scalars, typed
from tests.support.roundtrip import NOW_MS, as_delivered, essence, messages
from twinbus.amqp.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.encoding.brokered_message import encode_message
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ConfigurationError, InvalidMessage
from twinbus.message import BrokeredMessage
from twinbus.spark.connector.column_types import TYPE_NAMES, text_and_type, value_of
from twinbus.spark.connector.data_source import ServiceBusDataSource
from twinbus.spark.connector.message_columns import (
    ARROW_SCHEMA,
    COLUMNS,
    SCHEMA_DDL,
    schema,
    to_batch,
)
from twinbus.spark.connector.row_encoder import check_columns, encode_rows

# A busy machine is no failure of the columns.
UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

TOKEN = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_798_761_600_000


def delivered(encoded: bytes, **facts: Any) -> ReceivedMessage:
    known = {"path": "orders", "sequence_number": 41, "enqueued_at_ms": NOW_MS, **facts}
    return ReceivedMessage(encoded=encoded, **known)


def row_of(encoded: bytes, **facts: Any) -> dict[str, Any]:
    [row] = rows_of([delivered(encoded, **facts)])
    return row


def rows_of(deliveries: list[ReceivedMessage]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _in_numbers(to_batch(deliveries)).to_pylist()
    return rows


def _in_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Moments as microseconds, which need no time zones."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, names=batch.schema.names)


def sent_again(encoded: bytes) -> bytes:
    """A message that was received, written again from its columns."""
    [outgoing] = encode_rows(to_batch([delivered(encoded)]), now_ms=NOW_MS)
    return outgoing.encoded


# -- the schema ---------------------------------------------------------------------------


def test_arrow_batches_have_the_schema_that_spark_makes_of_the_columns() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema(), timezone="UTC")

    assert wanted.equals(ARROW_SCHEMA, check_metadata=True)
    assert to_batch([]).schema == wanted
    assert to_batch([delivered(encode_message(BrokeredMessage()))]).schema == wanted


def test_the_schema_as_text_names_every_column_with_its_type() -> None:
    fields = [f"`{each.name}` {each.dataType.simpleString()}" for each in schema().fields]

    assert ", ".join(fields) == SCHEMA_DDL
    assert list(COLUMNS) == schema().fieldNames()


# -- received -----------------------------------------------------------------------------


def test_every_part_of_a_message_has_its_column() -> None:
    sent = Message(
        header=Header(priority=7, ttl_ms=60_000),
        message_annotations={
            Symbol("x-opt-partition-key"): "eu",
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NEW_YEAR_MS),
            Symbol("x-opt-deadletter-source"): "invoices",
            Symbol("x-opt-enqueue-sequence-number"): Long(7),
        },
        properties=Properties(
            message_id="m-1",
            user_id=b"me",
            to="billing",
            subject="order",
            reply_to="answers",
            correlation_id="c-1",
            content_type=Symbol("application/json"),
            content_encoding=Symbol("gzip"),
            group_id="eu",
            reply_to_group_id="r-1",
        ),
        application_properties={
            "DeadLetterReason": "Expired",
            "DeadLetterErrorDescription": "too late",
            "count": Int(5),
        },
        body=b"\x00\xffbytes",
    ).encode()

    row = row_of(sent, locked_until_ms=NOW_MS + 1, delivery_count=3, lock_token=TOKEN.bytes_le)

    assert row == {
        "body": b"\x00\xffbytes",
        "bodyType": "data",
        "messageId": "m-1",
        "sequenceNumber": 41,
        "enqueuedTime": NOW_MS * 1_000,
        "deliveryCount": 3,
        "lockToken": str(TOKEN),
        "lockedUntil": (NOW_MS + 1) * 1_000,
        "queue": "orders",
        "sessionId": "eu",
        "partitionKey": "eu",
        "correlationId": "c-1",
        "subject": "order",
        "contentType": "application/json",
        "contentEncoding": "gzip",
        "to": "billing",
        "replyTo": "answers",
        "replyToSessionId": "r-1",
        "timeToLive": 60_000,
        "scheduledEnqueueTime": NEW_YEAR_MS * 1_000,
        "priority": 7,
        "properties": [
            ("DeadLetterReason", "Expired"),
            ("DeadLetterErrorDescription", "too late"),
            ("count", "5"),
        ],
        "propertyTypes": [
            ("DeadLetterReason", "string"),
            ("DeadLetterErrorDescription", "string"),
            ("count", "int"),
        ],
        "deadLetterReason": "Expired",
        "deadLetterErrorDescription": "too late",
        "deadLetterSource": "invoices",
        "systemProperties": [("user-id", "bWU="), ("x-opt-enqueue-sequence-number", "7")],
    }


def test_a_plain_message_leaves_most_columns_empty() -> None:
    row = row_of(as_delivered(encode_message(BrokeredMessage(b"x", message_id="m-1"))))

    filled = {name for name, value in row.items() if value not in (None, [])}
    assert filled == {
        *("body", "bodyType", "messageId", "sequenceNumber", "enqueuedTime"),
        *("deliveryCount", "queue", "priority"),
    }


def test_messages_of_one_batch_do_not_mix() -> None:
    sent = [BrokeredMessage(b"%d" % i, properties={"n": i} if i % 2 else {}) for i in range(4)]

    rows = rows_of([delivered(encode_message(each)) for each in sent])

    assert [row["body"] for row in rows] == [b"0", b"1", b"2", b"3"]
    assert [row["properties"] for row in rows] == [[], [("n", "1")], [], [("n", "3")]]


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b"", "data", b""),
        (b"x" * 300, "data", b"x" * 300),
        (DataSections((b"one", b"", b"two")), "data", b"onetwo"),
        (AmqpValue(Int(5)), "value", b"\x00\x53\x77\x54\x05"),
        (
            AmqpSequence(([Int(5)], [])),
            "sequence",
            b"\x00\x53\x76\xc0\x03\x01\x54\x05\x00\x53\x76\x45",
        ),
        (None, "none", None),
    ],
)
def test_a_body_is_never_decoded(body: Any, kind: str, shown: bytes | None) -> None:
    row = row_of(encode_message(BrokeredMessage(body)))

    assert (row["bodyType"], row["body"]) == (kind, shown)


def test_a_footer_is_no_part_of_the_body() -> None:
    sent = Message(body=b"body", footer={Symbol("crc"): Int(5)}).encode()

    assert row_of(sent)["body"] == b"body"


def test_a_time_to_live_above_49_days_is_the_distance_of_two_times() -> None:
    days_ms = 100 * 86_400_000
    sent = Message(
        header=Header(ttl_ms=2**32 - 1),
        properties=Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + days_ms),
    ).encode()

    assert row_of(sent)["timeToLive"] == days_ms


# -- hostile ------------------------------------------------------------------------------

WHOLE = as_delivered(
    encode_message(
        BrokeredMessage(b"body", session_id="s", properties={"a": 1, "b": "two", "c": b"3"})
    )
)


@UNHURRIED
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_become_a_row_of_their_own(noise: bytes) -> None:
    good = encode_message(BrokeredMessage(b"good"))

    rows = rows_of([delivered(good), delivered(noise), delivered(good)])

    assert [row["body"] for row in (rows[0], rows[2])] == [b"good", b"good"]
    if rows[1]["bodyType"] == "undecodable":
        assert rows[1]["body"] == noise and rows[1]["sequenceNumber"] == 41


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_a_message_that_was_cut_short_never_breaks_a_batch(cut: int) -> None:
    row = row_of(WHOLE[:cut])

    assert row["bodyType"] in ("undecodable", "none")
    if row["bodyType"] == "undecodable":
        assert row["body"] == WHOLE[:cut]


@UNHURRIED
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_message_with_a_wrong_byte_never_breaks_a_batch(at: int, byte: int) -> None:
    changed = WHOLE[:at] + bytes((byte,)) + WHOLE[at + 1 :]

    assert row_of(changed)["queue"] == "orders"


def test_numbers_outside_a_column_are_its_edge() -> None:
    sent = Message(
        header=Header(ttl_ms=2**32 - 1),
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(2**62)},
        properties=Properties(creation_time=-(2**63), absolute_expiry_time=2**63 - 1),
    ).encode()

    row = row_of(
        sent,
        sequence_number=2**64 - 1,
        delivery_count=2**32 - 1,
        enqueued_at_ms=-(2**63),
        locked_until_ms=2**63 - 1,
    )

    assert row["sequenceNumber"] == row["timeToLive"] == 2**63 - 1
    assert row["deliveryCount"] == 2**31 - 1
    assert row["enqueuedTime"] == -62_135_596_800_000_000
    assert row["lockedUntil"] == row["scheduledEnqueueTime"] == 253_402_300_799_999_000


# -- types of properties ------------------------------------------------------------------

TYPED = {
    "null": (None, None),
    "boolean": (True, "true"),
    "ubyte": (UByte(255), "255"),
    "ushort": (UShort(65_535), "65535"),
    "uint": (UInt(2**32 - 1), "4294967295"),
    "ulong": (ULong(2**64 - 1), "18446744073709551615"),
    "byte": (Byte(-128), "-128"),
    "short": (Short(-32_768), "-32768"),
    "int": (Int(-(2**31)), "-2147483648"),
    "long": (Long(-(2**63)), "-9223372036854775808"),
    "float": (Float32(1.5), "1.5"),
    "double": (0.1, "0.1"),
    "char": (Char("é"), "é"),
    "string": ("text", "text"),
    "symbol": (Symbol("name"), "name"),
    "timestamp": (Timestamp(NEW_YEAR_MS + 7), "2027-01-01T00:00:00.007Z"),
    "uuid": (TOKEN, str(TOKEN)),
    "binary": (b"\x00\xff", "AP8="),
    "decimal32": (Decimal32(b"\x22\x50\x00\x01"), "22500001"),
    "decimal64": (Decimal64(bytes(8)), "00" * 8),
    "decimal128": (Decimal128(bytes(16)), "00" * 16),
}


def test_every_type_has_a_name() -> None:
    assert set(TYPED) == set(TYPE_NAMES)


@pytest.mark.parametrize(("name", "value", "text"), [(n, v, t) for n, (v, t) in TYPED.items()])
def test_a_property_is_text_and_the_name_of_its_type(name: str, value: Any, text: str) -> None:
    assert text_and_type(value) == (text, name)
    assert typed(value_of(text, name, where="it")) == typed(value)


@UNHURRIED
@given(scalars)
def test_what_was_text_is_the_same_value_again(value: Any) -> None:
    text, name = text_and_type(value)

    assert typed(value_of(text, name, where="it")) == typed(value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x", "int"),
        ("2147483648", "int"),
        ("-1", "uint"),
        ("yes", "boolean"),
        ("ab", "char"),
        ("é", "symbol"),
        ("2027-01-01T00:00:00", "timestamp"),  # In which time zone?
        ("99999999999999999999", "timestamp"),
        ("no-uuid", "uuid"),
        ("***", "binary"),
        ("22", "decimal32"),
        ("text", "compound"),
        ("text", "varchar"),
    ],
)
def test_text_that_is_no_value_of_its_type_is_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(InvalidMessage, match=name) as caught:
        value_of(text, name, where="The property 'colour'")
    assert caught.value.name == "The property 'colour'"


# -- sent again ---------------------------------------------------------------------------


@UNHURRIED
@given(messages())
def test_a_message_that_was_read_can_be_written_unchanged(sent: bytes) -> None:
    """P12: every field, and the AMQP type of every property; body bytes."""
    received = as_delivered(sent)
    try:
        again = sent_again(received)
    except InvalidMessage:
        assume(False)  # A client may send what our own message refuses: an id of 200 characters.

    before, after = essence(received), essence(again)
    for name in ("priority", "application properties"):
        assert after[name] == before[name], name
    was, now = Message.decode(received), Message.decode(again)
    assert _ids(now)[1:] == _ids(was)[1:]
    assert _ids(was)[0] in (typed(None), _ids(now)[0])  # One that has none gets one.
    assert _body(now.body) == _body(was.body)
    assert _schedule(now) == _schedule(was)
    assert _texts(now) == _texts(was)


def _ids(message: Message) -> list[Any]:
    found = message.properties or Properties()
    return [typed(found.message_id), typed(found.correlation_id)]


def _body(body: Any) -> Any:
    """Several data sections are one body."""
    return typed(b"".join(body.items) if isinstance(body, DataSections) else body)


def _schedule(message: Message) -> Any:
    annotations = message.message_annotations or {}
    return (
        annotations.get("x-opt-scheduled-enqueue-time"),
        annotations.get("x-opt-partition-key"),
    )


def _texts(message: Message) -> tuple[Any, ...]:
    found = message.properties or Properties()
    return (
        *(found.to, found.subject, found.reply_to, found.content_type),
        *(found.content_encoding, found.group_id, found.reply_to_group_id),
    )


def test_ids_keep_their_types() -> None:
    sent = encode_message(BrokeredMessage(b"", message_id=TOKEN, correlation_id=7))

    again = Message.decode(sent_again(sent)).properties

    assert again is not None
    assert (again.message_id, again.correlation_id) == (TOKEN, ULong(7))


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    types = {"properties": pa.map_(pa.string(), pa.string()), "propertyTypes": None}
    types["propertyTypes"] = types["properties"]
    arrays = [pa.array(values, types.get(name)) for name, values in columns.items()]
    return pa.record_batch(arrays, names=list(columns))


def decoded(batch: pa.RecordBatch) -> list[Message]:
    return [Message.decode(each.encoded) for each in encode_rows(batch, now_ms=NOW_MS)]


def test_a_row_with_a_body_alone_is_a_message_with_an_id_of_its_own() -> None:
    first, second = decoded(batch_of(body=["text", "é"]))

    assert (first.body, second.body) == (b"text", "é".encode())
    assert first.properties is not None and second.properties is not None
    assert len(str(first.properties.message_id)) == 36
    assert first.properties.message_id != second.properties.message_id


def test_columns_are_found_in_any_spelling() -> None:
    [outgoing] = encode_rows(batch_of(BODY=[b"x"], Destination=["Orders"]), now_ms=0)

    assert outgoing.destination == "orders"


def test_properties_without_types_are_strings() -> None:
    properties = [[("a", "5"), ("b", "5")]]

    [message] = decoded(batch_of(body=[b""], properties=properties, propertyTypes=[[("b", "int")]]))

    assert typed(message.application_properties) == typed({"a": "5", "b": Int(5)})


def test_a_dead_letter_that_is_written_again_is_none_any_more() -> None:
    """S1: its reason and description were the service's."""
    own = {"colour": "red", "deadletterreason": "mine"}
    gone = {"DeadLetterReason": "TTLExpired", "DeadLetterErrorDescription": "too old"}
    sent = encode_message(BrokeredMessage(b"", properties={**own, **gone}))
    assert row_of(sent)["deadLetterReason"] == "TTLExpired"

    assert Message.decode(sent_again(sent)).application_properties == own


def test_times_are_sent_in_milliseconds() -> None:
    scheduled = pa.array([NEW_YEAR_MS * 1_000], pa.timestamp("us", tz="Europe/Berlin"))
    batch = pa.record_batch(
        [pa.array([b""]), pa.array([90_000]), scheduled],
        names=["body", "timeToLive", "scheduledEnqueueTime"],
    )

    [message] = decoded(batch)

    assert message.header is not None and message.header.ttl_ms == 90_000
    assert message.message_annotations == {"x-opt-scheduled-enqueue-time": NEW_YEAR_MS}


def test_a_time_to_live_above_49_days_counts_from_now() -> None:
    days_ms = 100 * 86_400_000

    [message] = decoded(batch_of(body=[b""], timeToLive=[days_ms]))

    assert message.properties is not None
    assert message.properties.creation_time == NOW_MS
    assert message.properties.absolute_expiry_time == NOW_MS + days_ms


@pytest.mark.parametrize(
    ("columns", "name", "value"),
    [
        ({"bodyType": ["undecodable"]}, "bodyType", "'undecodable'"),
        ({"bodyType": ["xml"]}, "bodyType", "'xml'"),
        ({"bodyType": ["value"]}, "body", "value"),
        ({"messageId": ["x" * 129]}, "message_id", "129"),
        ({"sessionId": ["a"], "partitionKey": ["b"]}, "partition_key", ""),
        ({"timeToLive": [0]}, "time_to_live", ""),
        ({"timeToLive": [2**63 - 1]}, "timeToLive", str(2**63 - 1)),
        ({"priority": [256]}, "priority", "256"),
        ({"contentType": ["é"]}, "content_type", ""),
    ],
)
def test_what_no_service_would_take_is_refused(
    columns: dict[str, Any], name: str, value: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_rows(batch_of(body=[b"body"], **columns), now_ms=NOW_MS)
    assert caught.value.name == name and value in str(caught.value)


def test_what_is_no_amqp_value_is_refused_when_it_is_said_to_be_one() -> None:
    two_values = b"\x00\x53\x77\x54\x05" * 2

    for body in (b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x77\xa1\x05x", b"", two_values):
        with pytest.raises(InvalidMessage, match="AMQP sections") as caught:
            encode_rows(batch_of(body=[body], bodyType=["value"]), now_ms=NOW_MS)
        assert caught.value.name == "body"


# -- columns that can be sent -------------------------------------------------------------

WRONG = [
    ({"text": "string", "body": "string"}, "column 'text'"),
    ({"body": "string", "mesageId": "string"}, "Did you mean 'messageId'"),
    ({"messageId": "string"}, "no column 'body'"),
    ({"body": "int"}, "'body' .*int.*binary or string"),
    ({"body": "string", "properties": "map<string,int>"}, "'properties' .*map<string,int>"),
    ({"body": "string", "scheduledEnqueueTime": "timestamp_ntz"}, "timestamp_ntz"),
    ({"body": "string", "timeToLive": "string"}, "'timeToLive' .*string"),
    ({"body": "string", "systemProperties": "string"}, "'systemProperties' .*string"),
    ({"body": "string", "Subject": "string", "subject": "string"}, "two columns 'subject'"),
]


@pytest.mark.parametrize(("columns", "named"), WRONG)
def test_columns_that_cannot_be_sent_are_refused(columns: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check_columns(struct_of(columns), has_destination=True)


def test_a_write_without_a_destination_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="destination"):
        check_columns(struct_of({"body": "binary"}), has_destination=False)

    check_columns(struct_of({"body": "binary", "destination": "string"}), has_destination=False)


def test_the_columns_of_a_source_can_be_sent() -> None:
    check_columns(schema(), has_destination=True)


def test_another_schema_than_the_columns_is_refused_by_the_source() -> None:
    """S1: names and types; what is nullable is Spark's business."""
    source = ServiceBusDataSource({"connectionStringFile": "f", "queue": "orders"})
    theirs = StructType(
        [types.StructField(each.name, each.dataType, nullable=False) for each in schema().fields]
    )
    source.streamReader(theirs)
    theirs["body"].dataType = types.StringType()
    for make in (source.reader, source.streamReader):
        with pytest.raises(ConfigurationError, match="columns of servicebus"):
            make(theirs)


def struct_of(columns: dict[str, str]) -> StructType:
    kinds: dict[str, DataType] = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "int": types.IntegerType(),
        "timestamp_ntz": types.TimestampNTZType(),
        "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
    }
    return StructType([types.StructField(name, kinds[kind]) for name, kind in columns.items()])

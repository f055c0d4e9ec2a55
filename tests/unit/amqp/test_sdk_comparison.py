"""Our codec next to the one inside the stock Azure SDK, in both directions.

The SDK's codec is private. Its version is pinned by the lock file, and a change that breaks these
tests is one that we want to hear of before our users do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp import _decode as sdk_decode
from azure.servicebus._pyamqp import _encode as sdk_encode
from azure.servicebus._pyamqp import endpoints as sdk_endpoints
from azure.servicebus._pyamqp import outcomes as sdk_outcomes
from azure.servicebus._pyamqp import performatives as sdk
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus._pyamqp.message import Properties as SdkProperties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import (
    INTEGER_RANGES,
    arrays,
    floats32,
    integers_of,
    symbols,
    texts,
)
from tests.support.amqp_values import decode_all, symbols_of
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Array, Described, Symbol, Timestamp, UInt
from twinbus.amqp.errors import Condition, DecodeError
from twinbus.amqp.frames import FrameBuffer, encode_frame
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Header, Properties, decode_properties
from twinbus.amqp.message.sections import BodyKind, iter_batch, scan_message
from twinbus.amqp.performatives import (
    STATE_ACCEPTED,
    STATE_REJECTED,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_disposition,
    encode_performative,
    encode_state,
    encode_transfer,
)

# --- values --------------------------------------------------------------------------------------


def read_by_sdk(buf: bytes) -> Any:
    view = memoryview(buf)
    rest, value = sdk_decode._DECODE_BY_CONSTRUCTOR[view[0]](view[1:])
    assert len(rest) == 0, "the SDK stopped before the end"
    return value


def as_sdk_sees(value: Any) -> Any:
    """The SDK has bytes for strings and symbols, and lists for arrays."""
    match value:
        case str():
            return value.encode()
        case list():
            return [as_sdk_sees(item) for item in value]
        case dict():
            return {as_sdk_sees(key): as_sdk_sees(item) for key, item in value.items()}
        case Array(_, items):
            return [as_sdk_sees(item) for item in items]
        case Described(_, described):
            return as_sdk_sees(described)
        case _:
            return value


# The SDK knows no char and no decimal32 or 64, and has its own idea of decimal128.
sdk_scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    *(integers_of(kind) for kind in INTEGER_RANGES),
    floats32,
    st.floats(allow_nan=False),
    symbols,
    texts,
    st.binary(max_size=300),
    st.uuids(),
)
# It reads no constructor in an empty array: Array.of() is what we send to it.
sdk_arrays = (
    arrays()
    .filter(lambda array: array.constructor not in (0x73, 0x74, 0x84, 0x94))
    .filter(lambda array: array.constructor < 0xC0 and array.descriptor is None)
    .map(lambda array: Array.of(array.constructor or 0, array.items))
)
sdk_values: st.SearchStrategy[Any] = st.recursive(
    sdk_scalars | sdk_arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(symbols, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(sdk_values)
def test_the_sdk_reads_the_values_that_we_write(value: Any) -> None:
    assert read_by_sdk(encode_value(value)) == as_sdk_sees(value)


written_by_sdk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=300)
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(written_by_sdk)
def test_we_read_the_values_that_the_sdk_writes(value: Any) -> None:
    out = bytearray()
    sdk_encode.encode_value(out, value)

    assert decode_all(bytes(out)) == value


@pytest.mark.parametrize(
    ("kind", "items"),
    [("LONG", [1, 2**40, -3]), ("UUID", [UUID(int=5), UUID(int=6)]), ("LONG", [])],
)
def test_we_read_the_arrays_that_the_sdk_writes(kind: str, items: list[Any]) -> None:
    """The arguments of its management calls: sequence numbers and lock tokens."""
    out = bytearray()
    elements = [{"TYPE": kind, "VALUE": item} for item in items]
    sdk_encode.encode_value(out, {"TYPE": "ARRAY", "VALUE": elements})

    assert decode_all(bytes(out)).items == tuple(items)


# --- performatives -------------------------------------------------------------------------------


def frame_of_sdk(performative: Any, kind: bytes = b"\x00") -> bytes:
    head, body = sdk_encode.encode_frame(performative, kind)
    assert body is not None
    return head + b"\x00\x01" + bytes(body)


def read_by_us(frame: bytes) -> tuple[Any, bytes]:
    buffer = FrameBuffer(1_048_576)
    buffer.feed(frame)
    window = buffer.next_frame()
    assert window is not None
    assert (window.channel, buffer.buffered_bytes) == (1, 0)
    performative, pos = decode_performative(window.buf, window.pos, window.end, Budget())
    return performative, window.buf[pos : window.end]


def dead_letter(reason: str) -> Any:
    info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": "because"}
    error = AMQPError(condition=b"com.microsoft:dead-letter", description="d", info=info)
    return sdk_outcomes.Rejected(error=error)


FROM_SDK = {
    "open": (
        sdk.OpenFrame("c", "host", 1048576, 65535, None, None, None, None, None, {"product": "p"}),
        Open("c", "host", 1_048_576, 65_535, properties={"product": "p"}),
    ),
    "begin": (
        sdk.BeginFrame(None, 0, 65536, 65536, 4294967295, None, None, None),
        Begin(None, 0, 65_536, 65_536),
    ),
    "attach of a sender": (
        sdk.AttachFrame(
            "name", 3, False, 0, 1, sdk_endpoints.Source(address="sender-link-x"),
            sdk_endpoints.Target(address="amqps://h:1/q"), None, False, 0, 0, None, None, None,
        ),
        Attach(
            "name", 3, False, 0, 1, Source("sender-link-x"), Target("amqps://h:1/q"),
            None, False, 0, 0,
        ),
    ),
    "attach of a session receiver": (
        sdk.AttachFrame(
            "name", 3, True, 0, 1,
            sdk_endpoints.Source(address="q", filters={"com.microsoft:session-filter": "sid"}),
            sdk_endpoints.Target(address="t"), None, False, None, 1048576,
            None, ["a", "b"], {"com.microsoft:timeout": {"TYPE": "UINT", "VALUE": 5000}},
        ),
        Attach(
            "name", 3, True, 0, 1,
            Source("q", filter={"com.microsoft:session-filter": "sid"}), Target("t"),
            None, False, None, 1_048_576, None,
            Array(0xB3, ("a", "b")), {"com.microsoft:timeout": 5000},
        ),
    ),
    "attach of the next free session": (
        sdk.AttachFrame(
            "name", 3, True, 0, 1,
            sdk_endpoints.Source(address="q", filters={"com.microsoft:session-filter": None}),
            sdk_endpoints.Target(address="t"), None, False, None, None, None, None, None,
        ),
        Attach(
            "name", 3, True, 0, 1,
            Source("q", filter={"com.microsoft:session-filter": None}), Target("t"),
        ),
    ),
    "flow of a session": (
        sdk.FlowFrame(0, 65536, 1, 65536, None, None, None, None, None, None, None),
        Flow(0, 65_536, 1, 65_536),
    ),
    "flow of a link": (
        sdk.FlowFrame(0, 65536, 1, 65536, 2, 7, 100, None, True, True, None),
        Flow(0, 65_536, 1, 65_536, 2, 7, 100, None, True, True),
    ),
    "disposition, complete": (
        sdk.DispositionFrame(True, 5, 5, False, sdk_outcomes.Accepted(), None),
        Disposition(True, 5, 5, False, Accepted()),
    ),
    "disposition, abandon": (
        sdk.DispositionFrame(
            True, 500, None, True, sdk_outcomes.Modified(True, False, None), False
        ),
        Disposition(True, 500, None, True, Modified(True, False, None)),
    ),
    "disposition, release": (
        sdk.DispositionFrame(True, 0, 0, True, sdk_outcomes.Released(), None),
        Disposition(True, 0, 0, True, Released()),
    ),
    "disposition, dead-letter": (
        sdk.DispositionFrame(True, 1, 1, False, dead_letter("bad"), None),
        Disposition(
            True, 1, 1, False,
            Rejected(
                Error(
                    "com.microsoft:dead-letter", "d",
                    {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "because"},
                )
            ),
        ),
    ),
    "detach": (sdk.DetachFrame(3, True, None), Detach(3, True)),
    "end": (sdk.EndFrame(None), End()),
    "close": (sdk.CloseFrame(None), Close()),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), FROM_SDK.values(), ids=FROM_SDK.keys())
def test_we_read_the_performatives_that_the_sdk_writes(sent: Any, expected: Performative) -> None:
    """M10: every frame that a sender, a receiver or a session of the SDK begins with."""
    assert read_by_us(frame_of_sdk(sent)) == (expected, b"")


@pytest.mark.parametrize("message_format", [0, 0x80013700])
def test_we_read_the_transfers_that_the_sdk_writes(message_format: int) -> None:
    """M10: single messages and batches alike."""
    sent = sdk.TransferFrame(
        0, 66, b"\x00\x00\x00\x42", message_format, False, True, None, None, None, None, None,
        b"payload",
    )  # fmt: skip

    assert read_by_us(frame_of_sdk(sent)) == (
        Transfer(0, 66, b"\x00\x00\x00\x42", message_format, False, True),
        b"payload",
    )


def test_we_read_the_sasl_init_of_the_sdk() -> None:
    sent = sdk.SASLInit(b"ANONYMOUS", b"", "host")

    performative, _ = read_by_us(frame_of_sdk(sent, b"\x01"))

    assert performative == SaslInit("ANONYMOUS", b"", "host")


def read_by_sdk_as_frame(encoded: bytes) -> tuple[int, list[Any]]:
    """Through our frame, as the SDK's transport cuts it: the body after 8 bytes."""
    return sdk_decode.decode_frame(memoryview(encode_frame(1, encoded))[8:])


TO_SDK = {
    "open": (Open("c", max_frame_size=65_536, idle_time_out=240_000), sdk.OpenFrame),
    "begin": (Begin(1, 0, 2_048, 2_048, 1_023), sdk.BeginFrame),
    "attach": (Attach("n", 0, True, 0, 1, Source("q"), Target("t"), None, False, 0, 262_144),
               sdk.AttachFrame),
    "flow": (Flow(1, 2, 3, 4, 5, 6, 7, None, True), sdk.FlowFrame),
    "disposition": (Disposition(True, 5, 9, True, Accepted()), sdk.DispositionFrame),
    "detach": (Detach(0, True, Error("amqp:not-found", "no")), sdk.DetachFrame),
    "end": (End(Error("amqp:internal-error")), sdk.EndFrame),
    "close": (Close(Error("amqp:connection:forced", "bye")), sdk.CloseFrame),
    "mechanisms": (SaslMechanisms(("ANONYMOUS", "PLAIN")), sdk.SASLMechanism),
    "outcome": (SaslOutcome(0), sdk.SASLOutcome),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "kind"), TO_SDK.values(), ids=TO_SDK.keys())
def test_the_sdk_reads_the_performatives_that_we_write(sent: Performative, kind: Any) -> None:
    """M10: field by field, in the SDK's own order of fields."""
    code, fields = read_by_sdk_as_frame(encode_performative(sent))

    assert code == kind._code
    for name, seen in zip(kind._fields, fields, strict=False):
        ours = getattr(sent, {"send_settle_mode": "snd_settle_mode",
                              "idle_timeout": "idle_time_out"}.get(name, name))  # fmt: skip
        if isinstance(ours, (int, str)):
            assert seen == as_sdk_sees(ours), name


def test_the_sdk_finds_anonymous_among_our_mechanisms() -> None:
    _, fields = read_by_sdk_as_frame(encode_performative(SaslMechanisms(("ANONYMOUS", "PLAIN"))))

    assert fields[0] == [b"ANONYMOUS", b"PLAIN"]


def test_the_sdk_reads_our_transfer_template_and_its_payload() -> None:
    token = UUID(int=77).bytes_le

    code, fields = read_by_sdk_as_frame(encode_transfer(2, 300, token, 0, True) + b"payload")

    assert code == 20
    assert fields[:6] == [2, 300, token, 0, True, False]
    assert bytes(fields[-1]) == b"payload"


def test_the_sdk_reads_our_disposition_template() -> None:
    """M10: a settlement that the SDK misreads makes its send wait for ever."""
    _, accepted = read_by_sdk_as_frame(encode_disposition(True, 5, 9, True, STATE_ACCEPTED))
    _, dead_lettered = read_by_sdk_as_frame(encode_disposition(False, 5, 5, True, STATE_REJECTED))
    refusal = encode_state(Rejected(Error(Condition.SERVER_BUSY, "later")))
    _, refused = read_by_sdk_as_frame(encode_disposition(True, 5, 5, True, refusal))

    assert accepted == [True, 5, 9, True, {"accepted": []}, False]
    assert dead_lettered[4] == {"rejected": [None]}
    assert refused[4] == {"rejected": [[b"com.microsoft:server-busy", b"later", None]]}


# --- messages ------------------------------------------------------------------------------------


def payload_of_sdk(message: Any) -> bytes:
    raw = getattr(message, "raw_amqp_message", message)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(raw)
    return bytes(sdk_encode.encode_payload(bytearray(), outgoing))


def scanned(buf: bytes, **options: Any) -> Any:
    return scan_message(buf, 0, len(buf), **options)


def test_we_scan_a_message_of_the_sdk_with_everything_set() -> None:
    """M10: every property is kept as it was sent."""
    when = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    buf = payload_of_sdk(
        ServiceBusMessage(
            b"body",
            application_properties={"a": 1, "b": "text", "c": 2.5, "d": True, "e": UUID(int=9)},
            session_id="session",
            message_id="id",
            content_type="text/plain",
            correlation_id="correlation",
            subject="subject",
            to="to",
            reply_to="reply",
            reply_to_session_id="reply-session",
            scheduled_enqueue_time_utc=when,
            partition_key="session",
        )
    )

    message = Message.decode(buf)

    assert message.body == b"body"
    assert message.properties == Properties(
        message_id="id",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id="correlation",
        content_type="text/plain",
        group_id="session",
        reply_to_group_id="reply-session",
    )
    assert message.application_properties == {
        "a": 1,
        "b": "text",
        "c": 2.5,
        "d": True,
        "e": UUID(int=9),
    }
    assert message.message_annotations == {
        "x-opt-partition-key": "session",
        "x-opt-scheduled-enqueue-time": int(when.timestamp() * 1000),
    }


@pytest.mark.parametrize("body", [b"", "", b"x" * 300, "text"])
def test_we_scan_the_bodies_that_the_sdk_sends(body: Any) -> None:
    found = scanned(payload_of_sdk(ServiceBusMessage(body)))

    assert found.body_kind is BodyKind.DATA
    assert found.body_empty is (not body)


def test_a_message_of_the_sdk_with_no_body_has_no_body_section() -> None:
    """M10: ServiceBusMessage(None) works against Service Bus, so a scan can be asked to take it."""
    buf = payload_of_sdk(ServiceBusMessage(None))

    with pytest.raises(DecodeError, match="no body section"):
        scanned(buf)
    assert scanned(buf, body_required=False).body_empty


def test_we_scan_an_annotated_message_whose_delivery_annotations_come_last() -> None:
    """M10: the SDK writes them after the footer."""
    buf = payload_of_sdk(
        AmqpAnnotatedMessage(
            data_body=[b"a", b"b"],
            header=AmqpMessageHeader(priority=7, durable=True),
            annotations={"x": 1},
            delivery_annotations={"k": "v"},
            footer={"f": 1},
        )
    )

    found = scanned(buf)

    assert found.header == Header(durable=True, priority=7)
    assert Message.decode(buf).delivery_annotations == {"k": "v"}
    assert Message.decode(buf).body == DataSections((b"a", b"b"))
    assert found.bare_end < len(buf)


@pytest.mark.parametrize(
    "body", [{"value_body": {"a": [1, None]}}, {"sequence_body": [[1, 2], ["x"]]}]
)
def test_we_scan_other_kinds_of_bodies_of_the_sdk(body: dict[str, Any]) -> None:
    found = scanned(payload_of_sdk(AmqpAnnotatedMessage(**body)))

    assert found.body_kind in (BodyKind.VALUE, BodyKind.SEQUENCE)


def test_we_find_the_messages_in_a_batch_of_the_sdk() -> None:
    """M3: a batch is Data sections that each hold a message."""
    inside = [payload_of_sdk(ServiceBusMessage(f"{n}", message_id=f"m{n}")) for n in range(5)]
    envelope = bytearray()
    sdk_encode.encode_payload(
        envelope,
        BatchMessage(
            properties=SdkProperties(message_id="m0"),
            message_annotations={b"x-opt-partition-key": "k"},
            data=inside,
        ),
    )
    buf = bytes(envelope)

    spans = iter_batch(buf, 0, len(buf))

    assert [buf[start:end] for start, end in spans] == inside
    ids = []
    for start, end in spans:
        found = scan_message(buf, start, end)
        ids.append(decode_properties(buf, found.properties).message_id)
    assert ids == ["m0", "m1", "m2", "m3", "m4"]


def test_the_sdk_reads_a_message_that_we_write() -> None:
    buf = Message(
        header=Header(True, 4, 60_000, True, 0),
        delivery_annotations={"x-opt-lock-token": UUID(int=5)},
        message_annotations={"x-opt-sequence-number": 7, "x-opt-enqueued-time": Timestamp(8)},
        properties=Properties(message_id="id", group_id="session"),
        application_properties={"DeadLetterReason": "bad"},
        body=DataSections((b"a", b"b")),
        footer={"f": UInt(1)},
    ).encode()

    seen = sdk_decode.decode_payload(memoryview(buf))

    assert tuple(seen.header) == (True, 4, 60_000, True, 0)
    assert seen.delivery_annotations == {b"x-opt-lock-token": UUID(int=5)}
    assert seen.message_annotations == {b"x-opt-sequence-number": 7, b"x-opt-enqueued-time": 8}
    assert seen.properties.message_id == b"id"
    assert seen.properties.group_id == b"session"
    assert seen.application_properties == {b"DeadLetterReason": b"bad"}
    assert seen.data == [b"a", b"b"]
    assert seen.footer == {b"f": 1}


def test_the_sdk_reads_a_management_reply_that_we_write() -> None:
    """Arrays of timestamps, longs and nothing: what its management calls answer with."""
    body = {
        "expirations": Array.of(0x83, (Timestamp(1), Timestamp(2))),
        "sequence-numbers": Array.of(0x81, (1, 2**40)),
        "nothing": Array.of(0x81, ()),
        "messages": [{"message": b"m", "lock-token": UUID(int=3)}],
    }
    buf = Message(
        properties=Properties(correlation_id=UUID(int=4)),
        application_properties={"statusCode": 200},
        body=AmqpValue(body),
    ).encode()

    seen = sdk_decode.decode_payload(memoryview(buf))

    assert seen.properties.correlation_id == UUID(int=4)
    assert seen.application_properties == {b"statusCode": 200}
    assert seen.value == {
        b"expirations": [1, 2],
        b"sequence-numbers": [1, 2**40],
        b"nothing": [],
        b"messages": [{b"message": b"m", b"lock-token": UUID(int=3)}],
    }


def test_symbols_that_the_sdk_sends_are_read_as_symbols() -> None:
    frame = frame_of_sdk(sdk.OpenFrame("c", "h", 512, 1, None, None, None, None, ["x", "y"], None))

    performative, _ = read_by_us(frame)

    assert symbols_of(performative.desired_capabilities) == ("x", "y")
    assert all(type(item) is Symbol for item in symbols_of(performative.desired_capabilities))

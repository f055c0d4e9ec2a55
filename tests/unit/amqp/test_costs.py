"""What the worst inputs cost: keys that collide, elements by the thousand, memory.

Times are CPU times of this thread, the least of a few rounds; the bounds are twice what the rule
allows, because the machine may be busy with other things.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.support.amqp.worst_inputs import (
    CROWDS,
    SECTIONS,
    a_list,
    a_map,
    a_ulong,
    a_uuid,
    an_array,
    attach_with,
    crowds,
    described,
    double_keys,
    symbol_map,
    uuid_keys,
    walking_keys,
)
from tests.support.cpu_time import cpu_s
from tests.unit.amqp.codec.test_codec import hostile_bytes
from twinbus.amqp.codec import skip
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.skip import skip_steps, skip_value
from twinbus.amqp.codec.types import Long, Symbol, Timestamp, ULong
from twinbus.amqp.errors import CostlyValue, DecodeError, TooManySections
from twinbus.amqp.limits import (
    ANNOTATION_ELEMENT_COST,
    DEFAULT_LIMITS,
    PERFORMATIVE_COUNT_MAX,
    PROPERTY_ELEMENT_COST,
    AmqpLimits,
    Budget,
)
from twinbus.amqp.message.message import AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.message.sections import body_steps, iter_batch, scan_message
from twinbus.amqp.performatives import (
    decode_performative,
)
from twinbus.common.steps import run_steps

pytestmark = pytest.mark.slow

HELD_S_MAX = 0.005
"""How long one input may hold the loop (M13), and one of a stranger, and a step of a body."""
HELD_BY_A_STRANGER_S_MAX = 0.001
STEP_S_MAX = 0.002
BUSY = 2.0
"""How much slower a busy machine may be."""

FRAME_BYTES_MAX = DEFAULT_LIMITS.frame_size_bytes_max
MESSAGE_BYTES_MAX = DEFAULT_LIMITS.message_size_bytes_max
STRANGER_BYTES_MAX = DEFAULT_LIMITS.pre_auth_bytes_max

ANNOTATION_COUNT_MAX = DEFAULT_LIMITS.compound_count_max // (2 * (1 + ANNOTATION_ELEMENT_COST))
PROPERTY_COUNT_MAX = DEFAULT_LIMITS.compound_count_max // (2 * (1 + PROPERTY_ELEMENT_COST))

GENEROUS = AmqpLimits(compound_count_max=1 << 26, value_count_max=1 << 26)
"""As a client has them, so that nothing is refused for its number of elements."""

UUIDS_MAX = 64
NUMBERS_MAX = 1_024


def tried(read: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A call that may be refused, which is fine if it is quick."""

    def call() -> Any:
        try:
            return read(*arguments)
        except DecodeError:
            return None

    return call


# --- keys ---------------------------------------------------------------------------------------

COLLIDING: dict[str, Callable[[int], list[bytes]]] = {
    "uuids of one hash": uuid_keys,
    "doubles of one hash": double_keys,
    "numbers that walk": lambda count: (walking_keys(1_360) * 1_000)[:count],
    "ulongs a modulus apart": lambda count: [
        a_ulong((number // 8 + number % 8 * (2**61 - 1)) % 2**64) for number in range(count)
    ],
}

READERS: dict[str, Callable[[bytes], Any]] = {
    "decode": lambda buf: decode_value(buf, 0, len(buf), Budget()),
    "skip": lambda buf: skip_value(buf, 0, len(buf), Budget()),
    "steps": lambda buf: [*skip_steps(buf, 0, len(buf), Budget())],
    "message": lambda buf: scan_message(described(0x77, buf), 0, len(buf) + 3),
    "request": lambda buf: Message.decode(described(0x77, buf)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", COLLIDING)
def test_keys_that_collide_are_refused_by_their_number(kind: str, reader: str) -> None:
    """M13: the cost of a map does not grow with the square of its keys."""
    buf = a_map(COLLIDING[kind](5_000))

    with pytest.raises(DecodeError, match="too many keys that are numbers or UUIDs"):
        READERS[reader](buf)

    assert cpu_s(tried(READERS[reader], buf)) < BUSY * HELD_S_MAX


@pytest.mark.parametrize("reader", READERS)
def test_keys_in_many_maps_count_together(reader: str) -> None:
    """M13: a thousand maps of sixty keys each are no way around the limit."""
    one = a_map(uuid_keys(UUIDS_MAX // 2))

    READERS[reader](a_list([one, one]))

    with pytest.raises(DecodeError, match="too many keys"):
        READERS[reader](a_list([one, one, a_map(uuid_keys(1))]))


@pytest.mark.parametrize("reader", READERS)
def test_as_many_uuids_and_numbers_as_people_use_stay_keys(reader: str) -> None:
    READERS[reader](a_map(uuid_keys(UUIDS_MAX)))
    READERS[reader](a_map([a_ulong(number) for number in range(NUMBERS_MAX)]))
    READERS[reader](a_map([b"\x53" + bytes((number,)) for number in range(256)]))

    with pytest.raises(DecodeError):
        READERS[reader](a_map(uuid_keys(UUIDS_MAX + 1)))
    with pytest.raises(DecodeError):
        READERS[reader](a_map([a_ulong(number) for number in range(NUMBERS_MAX + 1)]))


@pytest.mark.parametrize(
    "keys",
    [
        [f"name {number}" for number in range(20_000)],
        [Symbol(f"name-{number}") for number in range(20_000)],
        [number.to_bytes(4, "big") for number in range(20_000)],
    ],
    ids=["strings", "symbols", "binaries"],
)
def test_keys_with_secret_hashes_are_not_limited(keys: list[Any]) -> None:
    buf = encode_value(dict.fromkeys(keys))

    assert len(decode_value(buf, 0, len(buf), Budget(GENEROUS))[0]) == len(keys)
    assert skip_value(buf, 0, len(buf), Budget(GENEROUS)) == len(buf)


def test_the_worst_keys_that_are_allowed_cost_little() -> None:
    """M13: the limit is low enough for keys that were chosen with care."""
    for keys in (uuid_keys(UUIDS_MAX), walking_keys(NUMBERS_MAX), double_keys(NUMBERS_MAX)):
        buf = a_map(keys)
        assert cpu_s(lambda buf=buf: decode_value(buf, 0, len(buf), Budget())) < BUSY * HELD_S_MAX


def test_typed_numbers_are_hashed_as_the_numbers_they_are() -> None:
    """What the limit rests on: no other key than these has a hash that a peer can choose."""
    modulus = 2**61 - 1
    for number in (3, modulus + 3, 2**63 - 1):
        assert hash(ULong(number)) == hash(Long(number)) == hash(Timestamp(number)) == hash(number)
    assert hash(UUID(int=3)) == hash(UUID(int=modulus + 3)) == 3


# --- performatives --------------------------------------------------------------------------------


def read_performative(buf: bytes) -> Any:
    return decode_performative(buf, 0, len(buf), Budget())


@pytest.mark.parametrize("field", ["filter", "properties"])
@pytest.mark.parametrize("kind", COLLIDING)
def test_keys_of_fields_are_symbols_before_anything_is_built(kind: str, field: str) -> None:
    """M13: an attach of 61 KB with a map of colliding UUIDs held the loop for half a second."""
    buf = attach_with(**{field: a_map(COLLIDING[kind](3_000))})

    with pytest.raises(DecodeError, match=r"(not a map with symbol keys|too many elements)"):
        read_performative(buf)

    assert cpu_s(tried(read_performative, buf)) < BUSY * HELD_BY_A_STRANGER_S_MAX


@pytest.mark.parametrize("field", ["filter", "properties", "unsettled"])
def test_a_map_inside_of_a_field_is_limited_as_well(field: str) -> None:
    """M13: the value of a symbol key may be a map of anything."""
    buf = attach_with(**{field: symbol_map(a_map(uuid_keys(400)))})

    with pytest.raises(DecodeError, match="too many keys"):
        read_performative(buf)

    assert cpu_s(tried(read_performative, buf)) < BUSY * HELD_BY_A_STRANGER_S_MAX


@pytest.mark.parametrize("size", [STRANGER_BYTES_MAX - 200, FRAME_BYTES_MAX - 200])
def test_no_performative_costs_much_whatever_it_is_full_of(size: int) -> None:
    """M13: 64 KiB and 1 ms for a stranger; here for everybody."""
    for name, value in crowds(60_000, size):
        buf = attach_with(properties=symbol_map(value))
        assert cpu_s(tried(read_performative, buf)) < BUSY * HELD_BY_A_STRANGER_S_MAX, name


def test_the_most_that_a_performative_may_hold_costs_a_millisecond_or_two() -> None:
    """M13: filled to the brim, so that nothing is refused at first sight."""
    for name, build in CROWDS.items():
        for share in (1, 2, 4, 8):
            value = build(PERFORMATIVE_COUNT_MAX // share - 40)
            buf = attach_with(properties=symbol_map(value))
            assert cpu_s(tried(read_performative, buf)) < BUSY * HELD_BY_A_STRANGER_S_MAX, name


def test_a_field_of_a_wrong_type_is_refused_before_it_is_built() -> None:
    """M13: a header whose first field is a list of 60,000 values is not read to its end."""
    values = a_list([b"\x00\x53\x01\x40"] * 900)
    buf = b"\x00\x53\x70" + a_list([values])

    with pytest.raises(DecodeError, match=r"header\.durable is not a boolean"):
        scan_message(buf, 0, len(buf))

    assert cpu_s(tried(scan_message, buf, 0, len(buf))) < 0.000_2


# --- messages -----------------------------------------------------------------------------------


def steps_of(buf: bytes) -> list[float]:
    """The CPU time of each step of checking a message."""
    seconds = []
    began = time.thread_time()
    sections = scan_message(buf, 0, len(buf), body_required=False, check_body=False)
    seconds.append(time.thread_time() - began)
    steps = body_steps(buf, sections)
    while True:
        began = time.thread_time()
        ended = next(steps, "ended")
        seconds.append(time.thread_time() - began)
        if ended == "ended":
            return seconds


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize("section", [0x76, 0x77])
def test_a_large_body_is_checked_in_short_steps(kind: str, section: int) -> None:
    """M13: bodies may have 65,536 elements, as at Azure, and none holds the loop."""
    ((_name, value),) = crowds_of(kind)
    if section == 0x76 and value[0] != 0xD0:
        value = a_list([value])
    buf = described(section, value)

    rounds = [steps_of(buf) for _ in range(3)]

    assert len(rounds[0]) >= len(buf) // (2 * skip.STEP_BYTES)
    slowest = max(min(each) for each in zip(*rounds, strict=True))
    assert slowest < BUSY * STEP_S_MAX


def crowds_of(kind: str, size: int = MESSAGE_BYTES_MAX - 20) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in crowds(60_000, size) if name == kind]


def sections_of(value: bytes, count_max: int = 2_000) -> bytes:
    """As many amqp-sequences of this list as a message may have."""
    one = described(0x76, value)
    count = min(count_max, MESSAGE_BYTES_MAX // len(one))
    while count > 1:
        try:
            scan_message(one * count, 0, count * len(one))
        except CostlyValue:
            count = count * 9 // 10
        else:
            break
    return one * count


def short_list(kind: str) -> bytes:
    """A list of at most 255 bytes that has elements of this kind."""
    count = 250
    while len(value := CROWDS[kind](count)) > 240:
        count = count * 3 // 4
    return bytes((0xC0, 1 + len(value), 1)) + value


@pytest.mark.parametrize("is_short", [False, True], ids=["long", "short"])
@pytest.mark.parametrize("kind", CROWDS)
def test_many_sections_below_the_size_of_a_step_are_checked_in_steps(
    kind: str, is_short: bool
) -> None:
    """M13: 62 sections of 4 KB each held the loop for 25 ms, because each was a small one."""
    if is_short:
        if kind == "deep lists":
            pytest.skip("One of them is longer than a short list.")
        value = short_list(kind)
    else:
        ((_name, inner),) = crowds_of(kind, skip.STEP_BYTES - 30)
        value = a_list([inner])
    buf = sections_of(value)

    rounds = [steps_of(buf) for _ in range(3)]

    assert len(rounds[0]) >= len(buf) // (2 * skip.STEP_BYTES)
    slowest = max(min(each) for each in zip(*rounds, strict=True))
    assert slowest < BUSY * STEP_S_MAX


LONG_LIST = a_list([b"\xa1\x01a"] * 1_300)
SHORT_LIST = b"\xc0\x79\x28" + b"\xa1\x01a" * 40


@pytest.mark.parametrize("value", [LONG_LIST, SHORT_LIST], ids=["long", "short"])
def test_sections_that_are_wrong_are_refused_wherever_they_are(value: bytes) -> None:
    """Those that are checked at once, and those that are left for a step."""
    count = 3 * skip.STEP_BYTES // len(value)
    good, bad = described(0x76, value), described(0x76, value[:-1] + b"\xff")
    for place in range(count):
        buf = good * place + bad + good * (count - place - 1)
        with pytest.raises(DecodeError, match="UTF-8"):
            scan_message(buf, 0, len(buf))


@pytest.mark.parametrize("value", [LONG_LIST, SHORT_LIST], ids=["long", "short"])
def test_a_section_that_is_left_for_a_step_has_all_its_bytes(value: bytes) -> None:
    buf = described(0x76, value) * (3 * skip.STEP_BYTES // len(value))
    for missing in (1, 3, len(value) - 1):
        with pytest.raises(DecodeError, match="end inside a compound"):
            scan_message(buf, 0, len(buf) - missing, check_body=False)


def test_elements_of_many_sections_count_together() -> None:
    one = described(0x76, a_list([b"\x40"] * 4_000))
    fits, refused = one * 16, one * 17

    scan_message(fits, 0, len(fits))

    with pytest.raises(DecodeError, match="too many elements together"):
        scan_message(refused, 0, len(refused))


def test_an_envelope_of_a_batch_that_holds_no_data_is_refused_at_once() -> None:
    """M13: what is refused for its kind is not checked before."""
    for buf in (
        described(0x77, a_list([b"\x00\x53\x01\x40"] * 60_000)),
        sections_of(a_list([b"\x00\x53\x01\x40"] * 1_000)),
    ):
        with pytest.raises(DecodeError, match="in data sections"):
            iter_batch(buf, 0, len(buf))
        assert cpu_s(tried(iter_batch, buf, 0, len(buf))) < BUSY * STEP_S_MAX


def test_sections_of_data_count_together_however_they_are_written() -> None:
    """M13: as many as allowed in the usual form, and behind them all that fit in another."""
    usual, unusual = SECTIONS["data"], SECTIONS["descriptors as symbols"]
    sections_max = DEFAULT_LIMITS.body_sections_max
    fits = usual * (sections_max - 1_000) + unusual * 1_000
    for buf in (fits + unusual, fits + usual, unusual * 1_000 + usual * (sections_max - 999)):
        with pytest.raises(TooManySections):
            scan_message(buf, 0, len(buf))

    scan_message(fits, 0, len(fits))


def test_large_values_inside_of_others_are_taken_in_steps_as_well() -> None:
    """M13: in a map, an array, a described value, and deep inside."""
    many = a_list([b"\xa1\x01a"] * 8_000)
    nested = [
        a_map([b"\xa1\x01k"], many),
        an_array(0xD0, [many[1:], many[1:]]),
        described(0x05, many),
        a_list([a_list([described(0x05, a_map([b"\xa1\x01k"], many))])]),
    ]
    for value in nested:
        seconds = steps_of(described(0x77, value))
        assert len(seconds) > len(many) // skip.STEP_BYTES


def test_an_ordinary_message_has_no_steps() -> None:
    message = Message(properties=Properties(message_id="1"), body=bytes(100_000)).encode()
    small = Message(body=AmqpValue({"a": [1, 2, 3]})).encode()
    for buf in (message, small):
        sections = scan_message(buf, 0, len(buf), check_body=False)
        assert not sections.unchecked
        assert list(body_steps(buf, sections)) == []


def test_steps_find_what_the_whole_check_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps of a few bytes, so that every value is taken apart."""
    monkeypatch.setattr(skip, "STEP_BYTES", 12)
    random = Random(18)
    refusals = 0
    for number in range(10_000):
        buf = hostile_bytes(random)
        if number % 2:
            buf = a_list([b"\xa1\x02ab", buf, b"\x40"])
        whole, in_steps = Budget(), Budget()
        try:
            after: int | str = skip_value(buf, 0, len(buf), whole)
        except DecodeError as error:
            after, refusals = error.description, refusals + 1
        try:
            found = run_steps(skip_steps(buf, 0, len(buf), in_steps))
        except DecodeError:
            assert isinstance(after, str), buf.hex()
            continue
        assert found == after, buf.hex()
        assert (in_steps.items, in_steps.levels) == (whole.items, whole.levels)
        assert in_steps.keys == whole.keys
    assert 500 < refusals < 9_500


def test_a_large_body_that_is_wrong_is_refused_at_its_last_step() -> None:
    good = a_list([b"\xa1\x01a"] * 8_000)
    wrong = described(0x77, good[:-1] + b"\xff")
    sections = scan_message(wrong, 0, len(wrong), check_body=False)

    with pytest.raises(DecodeError, match="UTF-8"):
        list(body_steps(wrong, sections))
    with pytest.raises(DecodeError, match="UTF-8"):
        scan_message(wrong, 0, len(wrong))


MAPS = {"delivery": 0x71, "message": 0x72, "footer": 0x78}


def annotations(value: bytes, code: int = 0x72) -> bytes:
    data = b"\x00\x53\x75\xa0\x01x"
    section = described(code, value)
    return data + section if code == 0x78 else section + data


@pytest.mark.parametrize("code", MAPS.values(), ids=MAPS.keys())
def test_annotations_have_a_number_that_nobody_needs(code: int) -> None:
    """M13: they are built and written again for each message."""
    keys = [b"\xa3\x04%04d" % number for number in range(ANNOTATION_COUNT_MAX + 1)]
    fits = annotations(a_map(keys[:-1]), code)
    refused = annotations(a_map(keys), code)

    scan_message(fits, 0, len(fits))

    with pytest.raises(DecodeError, match="annotations with 513 entries are too many"):
        scan_message(refused, 0, len(refused))


def test_values_inside_of_annotations_are_few_as_well() -> None:
    """M13: however they are spread over the annotations."""
    keys = [b"\xa3\x04%04d" % number for number in range(200)]
    fits = annotations(a_map(keys, b"\xc0\x02\x01\x40"))
    refused = annotations(a_map(keys, b"\xc0\x03\x02\x40\x40"))
    at_once = annotations(a_map(keys[:1], a_list([b"\x40"] * 600)))

    scan_message(fits, 0, len(fits))

    for buf in (refused, at_once):
        with pytest.raises(DecodeError, match="too many elements together"):
            scan_message(buf, 0, len(buf))


def test_annotation_keys_that_are_numbers_do_not_collide() -> None:
    """M13: ulongs are allowed as keys of annotations, and their hashes can be chosen."""
    keys = walking_keys(680)[:ANNOTATION_COUNT_MAX]
    buf = annotations(a_map(keys))

    assert cpu_s(lambda: scan_message(buf, 0, len(buf))) < HELD_BY_A_STRANGER_S_MAX * BUSY


def test_application_properties_have_a_number_that_nobody_needs() -> None:
    """M13: a rule builds them all; names are strings before anything is read."""
    keys = [b"\xa1\x05%05d" % number for number in range(PROPERTY_COUNT_MAX + 1)]
    data = b"\x00\x53\x75\xa0\x01x"
    fits = described(0x74, a_map(keys[:-1])) + data
    refused = described(0x74, a_map(keys)) + data
    by_uuid = described(0x74, a_map(uuid_keys(10))) + data

    scan_message(fits, 0, len(fits))

    with pytest.raises(DecodeError, match="with 1025 entries are too many"):
        scan_message(refused, 0, len(refused))
    with pytest.raises(DecodeError, match="keys of application-properties must be strings"):
        scan_message(by_uuid, 0, len(by_uuid))


@pytest.mark.parametrize("kind", SECTIONS)
@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX, FRAME_BYTES_MAX])
def test_a_body_of_many_sections_is_bounded(kind: str, size: int) -> None:
    """M13: 200,000 data sections fit into one frame."""
    buf = SECTIONS[kind] * (size // len(SECTIONS[kind]))

    with pytest.raises(TooManySections):
        scan_message(buf, 0, len(buf))

    assert cpu_s(tried(scan_message, buf, 0, len(buf))) < BUSY * HELD_S_MAX
    assert cpu_s(tried(iter_batch, buf, 0, len(buf))) < BUSY * HELD_S_MAX


def test_a_strangers_request_has_few_sections() -> None:
    """M13: a request with a token has one; two thousand would take more than a millisecond."""
    limits = DEFAULT_LIMITS.before_token()
    few = SECTIONS["data"] * limits.body_sections_max
    assert limits.body_sections_max <= 16
    assert Message.decode(few, limits).body == DataSections((b"",) * limits.body_sections_max)
    with pytest.raises(TooManySections, match="16"):
        Message.decode(few + SECTIONS["data"], limits)
    assert iter_batch(few * 10, 0, len(few) * 10)


def test_a_batch_of_4500_is_cut_apart() -> None:
    buf = SECTIONS["data"] * DEFAULT_LIMITS.body_sections_max

    assert len(iter_batch(buf, 0, len(buf))) == DEFAULT_LIMITS.body_sections_max


def test_no_request_costs_much_whatever_it_is_full_of() -> None:
    """M13: requests to $management and $cbs are built, so they have fewer elements."""
    for name, build in CROWDS.items():
        for count in (60_000, DEFAULT_LIMITS.value_count_max, 6_000, 3_000):
            buf = described(0x77, build(count))
            assert cpu_s(tried(Message.decode, buf)) < BUSY * HELD_S_MAX, (name, count)


def test_a_thousand_messages_can_be_scheduled_in_one_request() -> None:
    entry = {"message-id": "1", "session-id": "s", "partition-key": "s", "message": b"m"}
    request = Message(body=AmqpValue({"messages": [entry] * 1_000})).encode()

    body = Message.decode(request).body

    assert isinstance(body, AmqpValue)
    assert len(body.value["messages"]) == 1_000


# --- memory ---------------------------------------------------------------------------------------


def test_uuids_are_what_they_were() -> None:
    """The fast way to a UUID gives the same as the usual one."""
    value, _ = decode_value(a_uuid(12_345), 0, 17, Budget())

    assert value == UUID(int=12_345)
    assert value.is_safe is UUID(int=12_345).is_safe

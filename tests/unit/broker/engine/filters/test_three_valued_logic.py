"""M4: true, false and unknown, in every combination."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.engine.filters.messages import NOW_MS, answer, view_of
from twinbus.amqp.codec.types import (
    Byte,
    Char,
    Decimal64,
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
from twinbus.broker.engine.filters import FilterError, SqlFilter
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.stored_message import Record

T, F, U = "t = 1", "t = 2", "missing = 1"
"""True, false and unknown for a message with t = 1."""


def says(condition: str, view: MessageView) -> bool | None:
    """The exact answer: at the top of a filter false and unknown need not be told apart."""
    if answer(condition, view) is True:
        return True
    return False if answer(f"NOT ({condition})", view) is True else None


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, True, True),
        (T, F, False, True),
        (T, U, None, True),
        (F, T, False, True),
        (F, F, False, False),
        (F, U, False, None),
        (U, T, None, True),
        (U, F, False, None),
        (U, U, None, None),
    ],
)
def test_and_and_or_follow_the_table(
    left: str, right: str, both: bool | None, either: bool | None
) -> None:
    """M4: the tables of the Azure documentation, for AND and OR."""
    view = view_of({"t": 1})
    assert says(f"{left} AND {right}", view) is both
    assert says(f"{left} OR {right}", view) is either
    assert says(f"({left} AND {right}) OR 1 = 2", view) is both
    assert says(f"({left} OR {right}) AND 1 = 1", view) is either


def test_not_leaves_the_unknown_unknown() -> None:
    """M4"""
    view = view_of({"t": 1})
    assert answer(f"NOT {T}", view) is False
    assert answer(f"NOT {F}", view) is True
    assert answer(f"NOT {U}", view) is None
    assert answer(f"NOT NOT {U}", view) is None


# A message with: n 7, f 2.5, s 'red', yes true, nothing null.
ANSWERS: list[tuple[str, bool | None]] = [
    # comparison
    ("n = 7", True),
    ("n <> 7", False),
    ("n != 8", True),
    ("n < 8", True),
    ("n <= 7", True),
    ("n > 7", False),
    ("n >= 7.0", True),
    ("n = 7.0", True),
    ("7 = n", True),
    ("6 < n", True),
    ("s = 'red'", True),
    ("s = 'Red'", False),
    ("s < 'ree'", True),
    ("S = 'red'", True),
    ("[s] = 'red'", True),
    ("\"s\" = 'red'", True),
    ("user.s = 'red'", True),
    ("USER.s = 'red'", True),
    ("yes = TRUE", True),
    ("yes = false", False),
    ("yes", True),
    ("NOT yes", False),
    ("yes AND n = 7", True),
    ("TRUE", True),
    ("FALSE", False),
    ("1=1", True),
    # unknown
    ("missing = 1", None),
    ("nothing = 1", None),
    ("nothing = NULL", None),
    ("NULL = NULL", None),
    ("missing <> 1", None),
    ("n = missing", None),
    ("NULL", None),
    # types that do not meet
    ("s = 7", None),
    ("n = '7'", None),
    ("s > 7", None),
    ("yes = 1", None),
    ("yes > FALSE", None),
    ("s <> 7", None),
    ("s", None),
    ("n AND yes", None),
    # arithmetic
    ("n + 1 = 8", True),
    ("n - 1 - 1 = 5", True),
    ("2 + 3 * 4 = 14", True),
    ("(2 + 3) * 4 = 20", True),
    ("n / 2 = 3", True),
    ("-n / 2 = -3", True),
    ("n % 4 = 3", True),
    ("-n % 4 = -3", True),
    ("n / 2.0 = 3.5", True),
    ("f * 2 = 5", True),
    ("f % 1 = 0.5", True),
    ("+n = 7", True),
    ("- -n = 7", True),
    ("-f = -2.5", True),
    ("1.0 / 0 > 1E308", True),
    ("-1.0 / 0 < -1E308", True),
    ("0.0 / 0 = 0.0 / 0", False),
    ("0.0 / 0 <> 0.0 / 0", True),
    ("1.5 % 0 = 1.5 % 0", False),
    ("101.5E5 = 10150000", True),
    (".5 = 0.5", True),
    ("5E-1 = .5", True),
    ("missing + 1 = 1", None),
    ("-missing = 1", None),
    ("-s = 1", None),
    ("s - 1 = 1", None),
    ("yes + 1 = 2", None),
    ("-9223372036854775808 < 0", True),
    ("9223372036854775807 > 0", True),
    ("9007199254740993 = 9007199254740992.0", True),
    # texts
    ("s + '!' = 'red!'", True),
    ("s + n = 'red7'", True),
    ("f + s = '2.5red'", True),
    ("2.0 + s = '2red'", True),
    ("s + yes = 'redTrue'", True),
    ("s + missing = 'red'", None),
    ("'it''s' = 'it' + '''' + 's'", True),
    ("'' = ''", True),
    # IN
    ("s IN ('blue', 'red')", True),
    ("s IN ('blue')", False),
    ("s NOT IN ('blue')", True),
    ("n IN (1, 7)", True),
    ("n IN (1, 7.0)", True),
    ("n IN (1, n)", True),
    ("n IN (1, missing)", None),
    ("n IN (7, missing)", True),
    ("n NOT IN (1, NULL)", None),
    ("missing IN (1)", None),
    ("missing NOT IN ('a')", None),
    ("n IN ('7')", None),
    # LIKE
    ("s LIKE 'r%'", True),
    ("s LIKE 'R%'", False),
    ("s LIKE '_e_'", True),
    ("s LIKE 're'", False),
    ("s NOT LIKE '%x%'", True),
    ("s + '%' LIKE 'red!%' ESCAPE '!'", True),
    ("s LIKE 'red!%' ESCAPE '!'", False),
    ("s LIKE 'r' + '%'", True),
    ("s LIKE s", True),
    ("s LIKE s ESCAPE 'd'", "fails"),  # type: ignore[list-item]
    ("missing LIKE '%'", None),
    ("n LIKE '7'", None),
    ("s LIKE missing", None),
    ("s LIKE s ESCAPE missing", None),
    ("s NOT LIKE missing", None),
    # NULL and EXISTS
    ("missing IS NULL", True),
    ("nothing IS NULL", True),
    ("s IS NULL", False),
    ("s IS NOT NULL", True),
    ("n + missing IS NULL", True),
    ("EXISTS(s)", True),
    ("EXISTS(nothing)", True),
    ("EXISTS(missing)", False),
    ("EXISTS(user.s)", True),
    ("NOT EXISTS(missing)", True),
    # precedence
    ("n = 7 OR n = 7 AND n = 8", True),
    ("(n = 7 OR n = 7) AND n = 8", False),
    ("NOT n = 8 AND n = 7", True),
    ("NOT (n = 7 AND n = 8)", True),
    ("NOT n = 7 OR n = 7", True),
    ("n = 7 and not n = 8 or n in (9)", True),
    # functions
    ("property('s') = 'red'", True),
    ("p('S') = 'red'", True),
    ("P('mis' + 'sing') = 1", None),
    ("p(n) = 1", None),
    ("p('sys.Label') = 'x'", None),
    ("newid() = newid()", False),
    ("newid() LIKE '%'", None),
    ("'' + newid() LIKE '________-____-4___-____-____________'", True),
]


@pytest.mark.parametrize(("expression", "expected"), ANSWERS, ids=[a[0] for a in ANSWERS])
def test_an_expression_has_this_answer(expression: str, expected: Any) -> None:
    """M4: SQL filters as Azure documents them."""
    view = view_of({"n": 7, "f": 2.5, "s": "red", "yes": True, "nothing": None})
    if expected == "fails":
        with pytest.raises(FilterError):
            answer(expression, view)
    else:
        assert answer(expression, view) is expected


@pytest.mark.parametrize(
    "value", [UByte(7), UShort(7), UInt(7), ULong(7), Byte(7), Short(7), Int(7), Long(7), 7]
)
def test_every_whole_number_of_amqp_is_a_number(value: Any) -> None:
    """M4"""
    assert answer("n = 7 AND n + 1 = 8 AND n > 6.5 AND n IN (7)", view_of({"n": value})) is True


def test_other_types_of_amqp_have_their_counterparts() -> None:
    """M4"""
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    view = view_of(
        {
            "half": Float32(0.5),
            "symbol": Symbol("red"),
            "char": Char("x"),
            "moment": Timestamp(NOW_MS),
            "id": UUID(int=5),
            "raw": b"raw",
            "decimal": Decimal64(bytes(8)),
        }
    )
    assert answer("half = 0.5 AND symbol = 'red' AND char LIKE '_'", view) is True
    assert answer(SqlFilter("moment = @m", {"@m": moment}), view) is True
    assert answer(SqlFilter("moment < @M", {"@m": moment + timedelta(seconds=1)}), view) is True
    assert answer(SqlFilter("id = @id", {"@id": UUID(int=5)}), view) is True
    # A moment is not a number, an id is not a text, and a decimal is only there.
    assert answer(f"moment = {NOW_MS}", view) is None
    assert answer(f"id = '{UUID(int=5)}'", view) is None
    assert answer(SqlFilter("id < @id", {"@id": UUID(int=6)}), view) is None
    assert answer("decimal = 0", view) is None
    assert answer("decimal IS NULL OR raw IS NULL", view) is False
    assert answer(f"'' + id = '{UUID(int=5)}'", view) is True
    assert answer("'' + moment = '2023-11-14T22:13:20.000Z'", view) is True


def test_system_properties_are_read_by_their_azure_names() -> None:
    """M4: sys. and the names of the message's properties, in any case."""
    view = view_of(
        {"label": "mine"},
        message_id="m1",
        subject="red",
        to="me",
        reply_to="you",
        correlation_id="c1",
        content_type="text/plain",
        group_id="s1",
        reply_to_group_id="s2",
        annotations={"x-opt-partition-key": "s1", "x-opt-scheduled-enqueue-time": Timestamp(5)},
    )
    for condition in [
        "sys.MessageId = 'm1'",
        "sys.Label = 'red' AND label = 'mine' AND user.Label = 'mine'",
        "sys.Subject = 'red'",
        "SYS.to = 'me'",
        "sys.[To] = 'me'",
        "sys.ReplyTo = 'you'",
        "sys.CorrelationId = 'c1'",
        "sys.ContentType LIKE 'text/%'",
        "sys.SessionId = 's1'",
        "sys.ReplyToSessionId = 's2'",
        "sys.PartitionKey = 's1'",
        "sys.DeliveryCount = 0",
        "sys.Size > 50",
        "sys.TimeToLive IS NULL AND NOT EXISTS(sys.ExpiresAtUtc)",
        "sys.ViaPartitionKey IS NULL",
        "EXISTS(sys.EnqueuedTimeUtc) AND EXISTS(sys.ScheduledEnqueueTimeUtc)",
    ]:
        assert answer(condition, view) is True, condition


def test_ids_that_are_not_text_are_compared_as_text() -> None:
    """M4: an AMQP message id may be a number, a UUID or bytes."""
    assert answer("sys.MessageId = '5'", view_of(message_id=ULong(5))) is True
    assert answer(f"sys.MessageId = '{UUID(int=7)}'", view_of(message_id=UUID(int=7))) is True
    assert answer("sys.CorrelationId = '0aff'", view_of(correlation_id=b"\x0a\xff")) is True


def test_time_to_live_is_a_duration() -> None:
    """M4"""
    record = Record(view_of({"a": 1}).record.bare, expires_ms=NOW_MS + 5_000, ttl_ms=5_000)
    view = MessageView.from_record(record, now_ms=NOW_MS)
    parameters = {"@ttl": timedelta(seconds=5)}
    assert answer(SqlFilter("sys.TimeToLive = @ttl", parameters), view) is True
    assert answer(SqlFilter("sys.TimeToLive < @ttl", parameters), view) is False
    expiry = {"@at": datetime(2023, 11, 14, 22, 13, 25)}
    assert answer(SqlFilter("sys.ExpiresAtUtc = @at", expiry), view) is True


def test_a_message_without_properties_knows_nothing() -> None:
    """M4"""
    view = view_of()
    assert answer("color = 'red'", view) is None
    assert answer("sys.Label = 'red'", view) is None
    assert answer("sys.Label IS NULL AND color IS NULL", view) is True


def test_the_first_of_two_names_that_differ_in_case_counts() -> None:
    """M4: property names ignore upper case."""
    assert answer("color = 'red'", view_of({"Color": "red", "color": "blue"})) is True


@pytest.mark.parametrize(
    "expression",
    [
        "n / 0 = 1",
        "n % 0 = 1",
        "9223372036854775807 + n = 1",
        "-9223372036854775808 - n = 1",
        "9223372036854775807 * n = 1",
        "-(-9223372036854775808 + 0) = 1",
        "-9223372036854775808 / -1 = 1",
    ],
)
def test_a_calculation_without_result_is_an_error_of_this_message(expression: str) -> None:
    """M4: FilterError, not a wrong number and not an exception of Python."""
    with pytest.raises(FilterError):
        answer(expression, view_of({"n": 7}))


def test_what_comes_after_the_decision_cannot_fail() -> None:
    """M4: sides are asked from left to right, until the answer is clear."""
    view = view_of({"n": 0, "s": "red"})
    assert answer("n <> 0 AND 1 / n = 1", view) is False
    assert answer("missing = 1 AND 1 / n = 1", view) is None
    assert answer("n = 0 OR 1 / n = 1", view) is True
    assert answer("NOT (n <> 0 AND 1 / n = 1)", view) is True
    with pytest.raises(FilterError):
        answer("NOT (missing = 1 AND 1 / n = 1)", view)

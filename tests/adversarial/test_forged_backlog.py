"""What a stranger can write into a backlog queue (cases 111 to 114, 116 and 118).

Whoever may send to a backlog queue chooses the destination, and the syphon has the right to send
there. Each case ends in the queue's dead letters with a stable reason, the primary is sent nothing
of it, and the good messages around it are home.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.adversarial.backlog import Backlog, forged, with_properties
from tests.support.mover.messages import backlog as backlog_message
from twinbus.amqp.codec.types import Int, Long, Symbol, Timestamp, UByte
from twinbus.mover.planning.receipts import ReceiptOutcome

ENGINES = ["mover", "shift"]
NOT_ALLOWED = "destination-not-allowed"
WRONG_TYPE, WRONG_VALUE = "invalid-property-type", "invalid-property-value"


@pytest.mark.parametrize("engine", ENGINES)
async def test_case_111_a_destination_that_is_not_on_the_list_gets_nothing(
    backlog: Backlog, engine: str
) -> None:
    """Y4, Y6: although it exists on the primary, and the syphon may send to it."""
    orders, payroll = backlog.destination(), backlog.destination()
    good = backlog.surround(
        orders, forged("bad", x_ms_path=payroll), forged("loud", x_ms_path=payroll.upper())
    )
    await backlog.syphon(engine, backlog.rules(allowed=(orders,)))

    assert set(await backlog.arrived(orders)) == set(good)
    assert backlog.sent_home() == {orders: len(good)}
    buried = await backlog.buried(2)
    assert {name: each.reason for name, each in buried.items()} == dict.fromkeys(
        ("bad", "loud"), NOT_ALLOWED
    )
    assert payroll in buried["bad"].description and "allowed" in buried["bad"].description
    # Nothing of it was restored: it can be looked at, and sent again, as it came.
    assert buried["bad"].properties == {"x-ms-path": payroll}
    told = {
        each.message_id: each
        for each in backlog.receipts
        if each.outcome is ReceiptOutcome.DEAD_LETTERED
    }
    assert told["bad"].reason == told["loud"].reason == NOT_ALLOWED
    assert told["bad"].destination == payroll


PATHS: dict[str, tuple[Any, str]] = {
    "case-112-management": ("$management", NOT_ALLOWED),
    "case-112-management-of-a-queue": ("orders/$management", NOT_ALLOWED),
    "case-112-cbs": ("$cbs", NOT_ALLOWED),
    "case-112-dead-letters": ("orders/$deadletterqueue", NOT_ALLOWED),
    "case-112-dead-letters-in-capitals": ("orders/$DEADLETTERQUEUE", NOT_ALLOWED),
    "case-112-another-directory": ("../other", NOT_ALLOWED),
    "case-112-encoded-dots": ("%2e%2e/other", NOT_ALLOWED),
    "case-112-query": ("orders?x=1", NOT_ALLOWED),
    "case-112-escape-sequence": ("orders\x1b[2J", NOT_ALLOWED),
    "case-112-nul": ("orders\0", NOT_ALLOWED),
    "case-112-homoglyph": ("\u043erders", NOT_ALLOWED),
    "case-112-only-a-slash": ("/", NOT_ALLOWED),
    "case-112-261-characters": ("q" * 261, WRONG_VALUE),
    "case-112-30000-characters": ("q" * 30_000, WRONG_VALUE),
    "case-112-empty": ("", "no-destination"),
    "case-112-null": (None, "no-destination"),
    "case-112-number": (Int(5), WRONG_TYPE),
    "case-112-bytes": (b"orders", WRONG_TYPE),
    "case-112-symbol": (Symbol("orders"), WRONG_TYPE),
    "case-112-true": (True, WRONG_TYPE),
}


async def test_no_path_leads_past_the_entities_of_the_primary(backlog: Backlog) -> None:
    """Y6: case-112 in one backlog, all names that are none."""
    orders = backlog.destination()
    bad = [forged(case, x_ms_path=path) for case, (path, _reason) in PATHS.items()]
    bad += [
        forged("missing"),
        with_properties("two-cases", {"x-ms-path": orders, "X-MS-Path": "payroll"}),
        with_properties("other-case", {"X-Ms-Path": orders}),
    ]
    good = backlog.surround(orders, *bad)
    await backlog.syphon()

    wanted = {case: reason for case, (_path, reason) in PATHS.items()} | {
        "missing": "no-destination",
        "two-cases": WRONG_VALUE,
        "other-case": WRONG_VALUE,
    }
    buried = await backlog.buried(len(bad))
    assert {name: each.reason for name, each in buried.items()} == wanted
    assert set(await backlog.arrived(orders)) == set(good)
    assert backlog.sent_home() == {orders: len(good)}
    for name, each in buried.items():
        assert len(each.description) <= 1_000 and each.description.isprintable(), name
    assert "$cbs" in buried["case-112-cbs"].description
    assert "../other" in buried["case-112-another-directory"].description


@pytest.mark.parametrize("engine", ENGINES)
async def test_case_112_a_host_in_a_message_is_never_called(backlog: Backlog, engine: str) -> None:
    """Y6: the syphon speaks to two namespaces, whatever a message says."""
    orders = backlog.destination()
    with socket.create_server(("127.0.0.1", 0)) as evil:
        evil.settimeout(0.5)
        host = f"127.0.0.1:{evil.getsockname()[1]}"
        texts = [f"{scheme}://{host}/{orders}" for scheme in ("sb", "amqp", "amqps", "http")]
        texts += [f"//{host}/{orders}", f"{host}/{orders}", f"user@{host}/{orders}"]
        good = backlog.surround(orders, *(forged(each, x_ms_path=each) for each in texts))
        await backlog.syphon(engine)
        with pytest.raises(TimeoutError):
            evil.accept()
    buried = await backlog.buried(len(texts))
    assert {name: each.reason for name, each in buried.items()} == dict.fromkeys(texts, NOT_ALLOWED)
    assert backlog.sent_home() == {orders: len(good)}


ALIASES: dict[str, tuple[dict[str, Any], str]] = {
    "case-114-negative-ttl": ({"x-ms-timetolive": Long(-1)}, WRONG_VALUE),
    "case-114-endless-ttl": ({"x-ms-timetolive": Long((1 << 63) - 1)}, WRONG_VALUE),
    "case-114-ttl-not-a-number": ({"x-ms-timetolive": float("nan")}, WRONG_TYPE),
    "case-114-infinite-ttl": ({"x-ms-timetolive": float("inf")}, WRONG_TYPE),
    "case-114-ttl-as-text": ({"x-ms-timetolive": "1e999"}, WRONG_TYPE),
    "case-114-ttl-true": ({"x-ms-timetolive": True}, WRONG_TYPE),
    "case-114-ttl-null": ({"x-ms-timetolive": None}, WRONG_TYPE),
    "case-114-session-of-129": ({"x-ms-sessionid": "s" * 129}, WRONG_VALUE),
    "case-114-session-number": ({"x-ms-sessionid": Int(7)}, WRONG_TYPE),
    "case-114-session-bytes": ({"x-ms-sessionid": b"s"}, WRONG_TYPE),
    "case-114-schedule-as-text": ({"x-ms-scheduledenqueuetimeutc": "tomorrow"}, WRONG_TYPE),
    "case-114-schedule-as-number": ({"x-ms-scheduledenqueuetimeutc": Long(5)}, WRONG_TYPE),
    "case-114-schedule-after-all-years": (
        {"x-ms-scheduledenqueuetimeutc": Timestamp((1 << 63) - 1)},
        WRONG_VALUE,
    ),
    "case-114-schedule-before-all-years": (
        {"x-ms-scheduledenqueuetimeutc": Timestamp(-(1 << 63))},
        WRONG_VALUE,
    ),
    "case-114-good-session-and-bad-ttl": (
        {"x-ms-sessionid": "s", "x-ms-timetolive": "soon"},
        WRONG_TYPE,
    ),
    "case-114-ttl-in-capitals": ({"X-MS-TIMETOLIVE": Long(5)}, WRONG_VALUE),
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_alias_with_a_wrong_value_is_never_half_restored(
    backlog: Backlog, engine: str
) -> None:
    """Y4, P12: case-114, home whole or not at all, and the reason names destination and error."""
    orders = backlog.destination()
    bad = [
        with_properties(case, {"x-ms-path": orders, "mine": UByte(1), **values})
        for case, (values, _reason) in ALIASES.items()
    ]
    good = backlog.surround(orders, *bad)
    await backlog.syphon(engine)

    buried = await backlog.buried(len(bad))
    assert {name: each.reason for name, each in buried.items()} == {
        case: reason for case, (_values, reason) in ALIASES.items()
    }
    assert backlog.sent_home() == {orders: len(good)}
    assert set(await backlog.arrived(orders)) == set(good)
    for case, (values, _reason) in ALIASES.items():
        found = buried[case]
        assert set(found.properties) == {"x-ms-path", "mine", *values}, case
        if not case.endswith("capitals"):
            assert orders in found.description, case
        assert any(name.lower() in found.description.lower() for name in values), case


@pytest.mark.parametrize("engine", ENGINES)
async def test_case_118_a_message_of_another_primary_is_not_delivered_here(
    backlog: Backlog, engine: str
) -> None:
    """Y6, P14: names of another tenant's entities are not on this pair's list, even where this
    primary has a queue of that name; and the other's backlog queues are not touched."""
    orders, theirs = backlog.destination(), backlog.destination()
    other = Backlog(backlog.pair)
    other.forge(backlog_message("waiting", theirs))
    good = backlog.surround(
        orders,
        backlog_message("astray", theirs),
        forged("named", x_ms_path=f"{other.name}/{theirs}"),
    )
    await backlog.syphon(engine, backlog.rules(allowed=(orders,)))

    buried = await backlog.buried(2)
    assert {each.reason for each in buried.values()} == {NOT_ALLOWED}
    assert set(buried) == {"astray", "named"}
    assert backlog.sent_home() == {orders: len(good)}
    assert other.left() == 1 and other.dead_letters() == 0
    await other.close()

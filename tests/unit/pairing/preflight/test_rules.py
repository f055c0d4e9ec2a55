"""What the facts about two namespaces mean."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.answers import TELLTALES
from twinbus.drivers.administration import MessageCounts, QueueProperties, TopicProperties
from twinbus.drivers.interface import NamespaceAddress
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
    EntityNotFound,
    ServerBusy,
)
from twinbus.pairing.backlog_queues import backlog_paths, backlog_queue
from twinbus.pairing.preflight.checks import run_checks
from twinbus.pairing.preflight.model import (
    BacklogFacts,
    EntityFacts,
    ExpectedLoad,
    Finding,
    NamespaceFacts,
    Observations,
    PingFacts,
    Severity,
)

PATHS = backlog_paths("contoso", 2)
ORDERS = QueueProperties(
    path="orders",
    requires_duplicate_detection=True,
    duplicate_detection_history_time_window=timedelta(hours=2),
)
REFUSED = AccessRefused("the claim is missing", hint="Add it")
GONE = EntityNotFound("there is no such queue")


def backlog(**changes: Any) -> tuple[BacklogFacts, ...]:
    """Two queues that are as they should be, but for the changes."""
    return tuple(
        BacklogFacts(path=path, properties=replace(backlog_queue(path), **changes))
        for path in PATHS
    )


READY = Observations(
    expectation=ExpectedLoad(rate_per_s=10),
    primary=NamespaceFacts(
        role="primary",
        address=NamespaceAddress("contoso.example", 5671),
        ip_addresses=frozenset({"192.0.2.1"}),
        clock_ahead_s=0.4,
    ),
    secondary=NamespaceFacts(
        role="secondary",
        address=NamespaceAddress("fabrikam.example", 5671),
        ip_addresses=frozenset({"192.0.2.2"}),
        clock_ahead_s=-1.2,
    ),
    primary_name="contoso",
    entities=(EntityFacts(path="orders", properties=ORDERS),),
    backlog=backlog(),
    pings=(PingFacts(path="probe", was_seen=False),),
)


def findings(check: str, facts: Observations) -> list[Finding]:
    found = [finding for finding in run_checks(facts).findings if finding.check == check]
    for finding in found:
        assert finding.severity < Severity.WARNING or finding.fix, "whoever warns says what to do"
        text = f"{finding.subject} {finding.summary} {finding.fix}"
        assert text.isprintable() and not any(word in text for word in TELLTALES)
    return found


def worst(check: str, facts: Observations) -> Finding:
    return findings(check, facts)[0]


def primary(**changes: Any) -> Observations:
    return replace(READY, primary=replace(READY.primary, **changes))


def secondary(**changes: Any) -> Observations:
    return replace(READY, secondary=replace(READY.secondary, **changes))


def test_a_pair_that_is_ready_has_nothing_to_fix() -> None:
    report = run_checks(READY)
    assert report.is_ready
    assert {finding.severity for finding in report.findings} == {Severity.OK}
    assert report.to_json()["counts"]["problem"] == 0


def test_the_worst_comes_first() -> None:
    facts = replace(secondary(amqp=CommunicationError("refused")), pings=())
    severities = [finding.severity for finding in run_checks(facts).findings]
    assert severities == sorted(severities, reverse=True)
    assert not run_checks(facts).is_ready


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_a_namespace_that_cannot_be_reached_is_a_problem(role: str) -> None:
    change = primary if role == "primary" else secondary
    found = worst("amqp", change(amqp=CommunicationError("it cannot be reached")))
    assert found.severity is Severity.PROBLEM and found.subject.startswith(role)
    found = worst("amqp", change(amqp=AuthenticationFailed("the key is wrong")))
    assert found.severity is Severity.PROBLEM and "key" in found.fix


def test_a_management_that_is_away_is_no_problem_by_itself() -> None:
    assert worst("management", secondary(management=REFUSED)).severity is Severity.NOTE
    found = worst("management", secondary(management=CommunicationError("refused")))
    assert found.severity is Severity.WARNING


def test_the_same_finding_about_many_things_is_one() -> None:
    """Also where each of them is named in its sentence."""
    paths = backlog_paths("contoso", 5)
    broken = tuple(
        BacklogFacts(path=path, send=ServerBusy(f"the service is busy with '{path}'"))
        for path in paths
    )
    gone = tuple(EntityFacts(path=path, send=GONE) for path in ("s", "bills"))
    facts = replace(READY, backlog=broken, entities=gone)

    [found] = [each for each in findings("claims", facts) if each.severity is Severity.PROBLEM]
    assert found.subjects == paths
    assert found.subject == f"{paths[0]}, {paths[1]}, {paths[2]} and 2 more"
    assert paths[0] in found.summary and found.summary.endswith("(also for the others)")
    assert found.to_json()["subjects"] == list(paths)

    [found] = findings("entities", facts)
    assert found.subjects == ("s", "bills") and "others" not in found.summary


def test_one_namespace_twice_is_a_problem() -> None:
    """P3: refused, so it is told before."""
    found = worst("same-place", secondary(address=READY.primary.address))
    assert found.severity is Severity.PROBLEM


@pytest.mark.parametrize(
    "change",
    [
        {"ip_addresses": frozenset({"192.0.2.1", "192.0.2.9"})},
        {"address": NamespaceAddress("contoso.example", 5673), "ip_addresses": frozenset()},
    ],
)
def test_two_namespaces_on_one_host_fail_together(change: dict[str, Any]) -> None:
    assert worst("same-place", secondary(**change)).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("ahead_s", "severity"),
    [
        (None, Severity.NOTE),
        (-4.9, Severity.OK),
        (5.0, Severity.WARNING),
        (-299.0, Severity.WARNING),
        (301.0, Severity.PROBLEM),
    ],
)
def test_clocks_that_differ(ahead_s: float | None, severity: Severity) -> None:
    found = worst("clock", primary(clock_ahead_s=ahead_s))
    assert found.severity is severity
    if severity >= Severity.WARNING and ahead_s is not None:
        assert ("behind" if ahead_s > 0 else "ahead") in found.summary


def test_a_primary_without_a_name_is_a_problem() -> None:
    """P4: refuse when the name is unknown."""
    found = worst("primary-name", replace(READY, primary_name=ConfigurationError("nobody knows")))
    assert found.severity is Severity.PROBLEM and "--primary-name" in found.fix


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (REFUSED, "Send claim"),
        (GONE, "not found"),
        (ServerBusy("it is throttled"), "throttled"),
    ],
)
def test_an_entity_that_cannot_be_sent_to(error: Exception, words: str) -> None:
    """P5: which claim is missing where."""
    entity = replace(READY.entities[0], send=error)
    found = worst("entities", replace(READY, entities=(entity,)))
    assert found.severity is Severity.PROBLEM and words in found.summary


def test_without_entities_it_is_said_that_none_was_tried() -> None:
    assert worst("entities", replace(READY, entities=())).severity is Severity.NOTE


# -- the backlog --------------------------------------------------------------------------


def test_missing_queues_are_made_by_pairing_if_it_may() -> None:
    """P5: provisioning needs Manage."""
    missing = tuple(BacklogFacts(path=path, send=GONE) for path in PATHS)
    facts = replace(READY, backlog=missing)
    assert worst("backlog-queues", facts).severity is Severity.NOTE

    unmanaged = replace(secondary(management=REFUSED), backlog=missing)
    found = worst("backlog-queues", unmanaged)
    assert found.severity is Severity.PROBLEM and "Manage claim" in found.summary
    assert PATHS[0] in found.subject

    one = replace(unmanaged, backlog=(missing[0], READY.backlog[1]))
    assert worst("backlog-queues", one).severity is Severity.WARNING, "one queue is enough"


def test_a_key_that_only_listens_does_not_make_missing_queues_exist() -> None:
    """P5: Send is refused before anybody looks for the queue, so listening tells what is there."""
    missing = tuple(BacklogFacts(path=path, send=REFUSED, listen=GONE) for path in PATHS)
    facts = replace(secondary(management=REFUSED), backlog=missing)
    [found] = findings("backlog-queues", facts)
    assert found.severity is Severity.PROBLEM and "not found" in found.summary
    [claim] = findings("claims", facts)
    assert claim.severity is Severity.PROBLEM and "Send claim" in claim.summary

    unknown = tuple(BacklogFacts(path=path, send=REFUSED, listen=REFUSED) for path in PATHS)
    [found] = findings("backlog-queues", replace(facts, backlog=unknown))
    assert found.severity is Severity.NOTE and "Unknown" in found.summary


def test_a_claim_that_is_missing_is_named_with_its_consequence() -> None:
    """P5: say which claim is missing where."""
    cannot_send = replace(READY, backlog=(replace(READY.backlog[0], send=REFUSED),))
    found = worst("claims", cannot_send)
    assert found.severity is Severity.PROBLEM and "Send claim" in found.summary

    cannot_listen = replace(READY, backlog=(replace(READY.backlog[0], listen=REFUSED),))
    found = worst("claims", cannot_listen)
    assert found.severity is Severity.PROBLEM and "Listen claim" in found.summary

    sender_only = replace(cannot_listen, expectation=ExpectedLoad(has_syphon=False))
    assert worst("claims", sender_only).severity is Severity.OK


def test_a_queue_that_answers_otherwise_is_a_problem() -> None:
    broken = replace(READY, backlog=(replace(READY.backlog[0], send=ServerBusy("busy")),))
    assert worst("claims", broken).severity is Severity.PROBLEM


def test_drift_is_a_warning_and_danger_a_problem() -> None:
    """P4: drift is a warning, danger is refused."""
    drifted = replace(READY, backlog=backlog(max_delivery_count=10))
    found = worst("drift", drifted)
    assert found.severity is Severity.WARNING
    assert "max_delivery_count is 10, not 2147483647" in found.summary

    small = replace(backlog_queue(PATHS[1]), max_message_size_in_kilobytes=64)
    large = replace(backlog_queue(PATHS[0]), max_message_size_in_kilobytes=1024)
    mixed = tuple(BacklogFacts(path=each.path, properties=each) for each in (large, small))
    found = worst("drift", replace(READY, backlog=mixed))
    assert (found.severity, found.subject) == (Severity.WARNING, PATHS[1])
    assert "max_message_size_in_kilobytes is 64, not 1024" in found.summary

    dangerous = replace(READY, backlog=backlog(requires_session=True))
    assert worst("drift", dangerous).severity is Severity.PROBLEM


@pytest.mark.parametrize(
    ("lossy", "words"),
    [
        (
            {
                "default_message_time_to_live": timedelta(days=2),
                "enable_dead_lettering_on_message_expiration": False,
            },
            "expire after 2 days, 0:00:00 and are dropped",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "deleted with its messages"),
    ],
    ids=["expires", "goes when idle"],
)
def test_a_queue_that_drops_what_waits_is_a_problem_unless_that_is_allowed(
    lossy: dict[str, Any], words: str
) -> None:
    """P20: as for pairing, which would not use it; and its room does not count."""
    facts = replace(READY, backlog=backlog(**lossy))
    found = worst("drift", facts)
    assert found.severity is Severity.PROBLEM and words in found.summary
    assert "allow_lossy_backlog" in found.fix and "--allow-lossy-backlog" in found.fix
    assert worst("headroom", facts).severity is Severity.PROBLEM

    allowed = replace(facts, expectation=ExpectedLoad(rate_per_s=10, allow_lossy=True))
    assert worst("drift", allowed).severity is Severity.WARNING
    assert worst("headroom", allowed).severity is Severity.OK


def test_a_queue_that_keeps_what_expired_is_none() -> None:
    """P20: a dead letter is not lost."""
    kept = replace(READY, backlog=backlog(default_message_time_to_live=timedelta(days=2)))
    assert worst("drift", kept).severity is Severity.WARNING


def test_what_nobody_can_allow_is_not_offered() -> None:
    """P20: sessions, duplicate detection and forwarding would lose or refuse everything."""
    dangerous = replace(READY, backlog=backlog(requires_session=True))
    allowed = replace(dangerous, expectation=ExpectedLoad(allow_lossy=True))
    for facts in (dangerous, allowed):
        found = worst("drift", facts)
        assert found.severity is Severity.PROBLEM and "allow" not in found.fix


def test_messages_that_wait_without_an_outage_are_told() -> None:
    """Y7: a backlog that nobody brings home."""
    facts = replace(READY, backlog=backlog(counts=MessageCounts(active=3, dead_letter=1)))
    waiting, dead = (finding.summary for finding in findings("leftovers", facts))
    assert waiting.endswith("backlog: 6") and dead.endswith("dead-letter queues: 2")


@pytest.mark.parametrize(
    ("percent", "severity"), [(40, Severity.OK), (60, Severity.WARNING), (95, Severity.PROBLEM)]
)
def test_a_queue_that_fills_up(percent: int, severity: Severity) -> None:
    facts = replace(READY, backlog=backlog(size_bytes=5120 * (1 << 20) * percent // 100))
    assert worst("headroom", facts).severity is severity


def test_an_outage_that_does_not_fit() -> None:
    # 10 GB are free; an hour at 3,000 messages a second of 1.5 KB needs 16 GB.
    facts = replace(READY, expectation=ExpectedLoad(rate_per_s=3_000))
    found = worst("headroom", facts)
    assert found.severity is Severity.PROBLEM
    assert "2 backlog queues" in found.fix
    assert findings("headroom", replace(READY, expectation=ExpectedLoad())) == []


def test_queues_that_pairing_will_make_are_room_too() -> None:
    missing = tuple(BacklogFacts(path=path, send=GONE) for path in PATHS)
    assert worst("headroom", replace(READY, backlog=missing)).severity is Severity.OK
    unmanaged = replace(secondary(management=REFUSED), backlog=missing)
    assert worst("headroom", unmanaged).severity is Severity.PROBLEM


def test_room_that_cannot_be_seen_is_not_known() -> None:
    unseen = tuple(BacklogFacts(path=path) for path in PATHS)
    facts = replace(secondary(management=REFUSED), backlog=unseen)
    assert worst("headroom", facts).severity is Severity.NOTE
    assert run_checks(facts).is_ready


def test_messages_that_only_the_primary_takes() -> None:
    """P13: a message that fits the primary and no backlog queue."""
    facts = replace(
        READY,
        entities=(replace(READY.entities[0], message_bytes_max=100 << 20),),
        backlog=(replace(READY.backlog[0], message_bytes_max=256 << 10),),
    )
    found = worst("message-size", facts)
    assert found.severity is Severity.WARNING and str(256 << 10) in found.summary


# -- coming home --------------------------------------------------------------------------


def test_a_window_shorter_than_the_outage_is_a_warning() -> None:
    """Y1: duplicate detection on the primary removes repeats, if it remembers long enough."""
    short = TopicProperties(path="news", requires_duplicate_detection=True)
    facts = replace(READY, entities=(EntityFacts(path="news", properties=short),))
    found = worst("duplicate-window", facts)
    assert found.severity is Severity.WARNING and "0:10:00" in found.summary
    patient = replace(facts, expectation=ExpectedLoad(expected_outage_s=300))
    assert findings("duplicate-window", patient) == []


def test_entities_without_duplicate_detection_are_listed_once() -> None:
    plain = tuple(
        EntityFacts(path=f"q{number}", properties=QueueProperties(path=f"q{number}"))
        for number in range(7)
    )
    [found] = findings("duplicate-window", replace(READY, entities=plain))
    assert found.severity is Severity.NOTE
    assert found.subject == "q0, q1, q2 and 4 more"


def test_pings_that_are_handed_out_need_the_other_mode() -> None:
    """P11: preflight tells which mode."""
    seen = replace(READY, pings=(PingFacts(path="orders", was_seen=True),))
    found = worst("pings", seen)
    assert found.severity is Severity.PROBLEM and 'ping_mode="attach"' in found.fix

    failed = replace(READY, pings=(PingFacts(path="orders", error=ServerBusy("busy")),))
    assert worst("pings", failed).severity is Severity.WARNING
    assert worst("pings", replace(READY, pings=())).severity is Severity.NOTE
    assert "--entity" in worst("pings", replace(READY, entities=(), pings=())).fix


def test_an_entity_that_was_named_is_not_asked_for_again() -> None:
    """With Send alone a ping can be sent and not be looked for."""
    found = worst("pings", replace(READY, pings=(PingFacts(path="orders", was_seen=None),)))
    assert found.severity is Severity.NOTE and found.subject == "orders"
    assert "Listen" in found.fix and "--entity" not in found.fix

    disabled = replace(READY, pings=(), pings_disabled=True)
    assert "disabled" in worst("pings", disabled).summary


@pytest.mark.parametrize(
    "options",
    [
        {"expected_outage_s": 0},
        {"expected_outage_s": float("nan")},
        {"message_bytes": 0},
        {"backlog_queue_count": 0},
        {"rate_per_s": 0},
    ],
)
def test_expectations_are_above_zero(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ExpectedLoad(**options)

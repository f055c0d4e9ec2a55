"""The checks of a preflight, one pure function each: observations in, findings out.

    amqp, management, same_place, clocks, primary_name      both namespaces
    entities, duplicate_windows, pings                      the primary
    backlog_queues, backlog_claims, drift, leftovers,
    headroom, message_sizes                                 the backlog queues

Rule 1: a finding states what was found and, unless it is OK, what to do.
Rule 2: only what would fail a send or lose a message in an outage is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from twinbus.drivers.administration import QueueProperties
from twinbus.errors import AccessRefused, AuthenticationFailed, EntityNotFound, TwinbusError
from twinbus.pairing.backlog_queues import BACKLOG_SIZE_MB, drift_of, unsafe_property
from twinbus.pairing.preflight.model import (
    BacklogFacts,
    Finding,
    Observations,
    Report,
    Severity,
    counted,
    named,
)

__all__ = [
    "CLOCK_AHEAD_S_MAX",
    "CLOCK_AHEAD_S_NOTED",
    "OVERHEAD_BYTES",
    "PERCENT_FULL_MAX",
    "PERCENT_FULL_NOTED",
    "Findings",
    "amqp",
    "backlog_claims",
    "backlog_queues",
    "clocks",
    "drift",
    "duplicate_windows",
    "entities",
    "headroom",
    "leftovers",
    "management",
    "message_sizes",
    "pings",
    "primary_name",
    "run_checks",
    "same_place",
]

Findings = Iterator[Finding]

# Schedules and times to live are wrong by the difference of the clocks.
CLOCK_AHEAD_S_NOTED: Final = 5.0
# From five minutes on a token may be refused as expired, or as not valid yet.
CLOCK_AHEAD_S_MAX: Final = 300.0


def amqp(facts: Observations) -> Findings:
    """Whether the namespaces are reachable for messages."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "amqp", subjects=(named(namespace),))
        match namespace.amqp:
            case None:
                yield find(Severity.OK, summary="Reachable over AMQP")
            case AuthenticationFailed() as error:
                fix = error.hint or "Check the name and the key of the access rule"
                yield find(Severity.PROBLEM, summary=error.sentence, fix=fix)
            case error:
                fix = error.hint or "Check the host name, the port and the firewall for AMQP"
                yield find(Severity.PROBLEM, summary=error.sentence, fix=fix)


def management(facts: Observations) -> Findings:
    """Whether the entities can be administered."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "management", subjects=(named(namespace),))
        error = namespace.management
        if error is None:
            yield find(Severity.OK, summary="Reachable over HTTP, with the Manage claim")
        elif isinstance(error, AccessRefused):
            # The checks that need the claim report the consequences.
            yield find(Severity.NOTE, summary="The Manage claim is missing")
        else:
            yield find(
                Severity.WARNING,
                summary=f"Administration is not available: {error.sentence}",
                fix=error.hint or "Check the HTTP port",
            )


def same_place(facts: Observations) -> Findings:
    """Whether one failure would affect both."""
    primary, secondary = facts.primary, facts.secondary
    find = partial(Finding, "same-place", subjects=("both namespaces",))
    shared = primary.ip_addresses & secondary.ip_addresses
    if primary.address == secondary.address:
        yield find(
            Severity.PROBLEM,
            summary=f"Primary and secondary are the same namespace, {primary.address}",
            fix="Use another namespace as the secondary",
        )
    elif shared or primary.address.host == secondary.address.host:
        where = min(shared) if shared else primary.address.host
        yield find(
            Severity.WARNING,
            summary=f"Both are at {where}, so one failure would affect both",
            fix="Use a secondary on another machine, preferably in another region",
        )
    else:
        yield find(Severity.OK, summary="Primary and secondary are at different addresses")


def clocks(facts: Observations) -> Findings:
    """Whether the clocks agree, for tokens, schedules and times to live."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "clock", subjects=(named(namespace),))
        ahead_s = namespace.clock_ahead_s
        if ahead_s is None:
            yield find(
                Severity.NOTE, summary="The clock is unknown: the namespace did not return its time"
            )
            continue
        word = "behind" if ahead_s > 0 else "ahead"
        difference = f"The clock of this machine is {abs(ahead_s):.0f} s {word}"
        if abs(ahead_s) >= CLOCK_AHEAD_S_MAX:
            fix = "Set the clock (NTP): with this difference tokens are refused"
            yield find(Severity.PROBLEM, summary=difference, fix=fix)
        elif abs(ahead_s) >= CLOCK_AHEAD_S_NOTED:
            fix = "Set the clock (NTP): schedules and times to live are wrong by the same amount"
            yield find(Severity.WARNING, summary=difference, fix=fix)
        else:
            yield find(Severity.OK, summary="The clocks agree")


def primary_name(facts: Observations) -> Findings:
    """Whether the name of the primary, in the paths of the backlog queues, is known."""
    find = partial(Finding, "primary-name", subjects=(named(facts.primary),))
    if isinstance(facts.primary_name, TwinbusError):
        yield find(
            Severity.PROBLEM,
            summary=facts.primary_name.sentence,
            fix="Set the name with --primary-name",
        )
    else:
        yield find(Severity.OK, summary=f"Its name in backlog queues is {facts.primary_name!r}")


def entities(facts: Observations) -> Findings:
    """Whether the application can send to its entities."""
    if facts.primary.amqp is not None:
        return
    find = partial(Finding, "entities", Severity.PROBLEM)
    for entity in facts.entities:
        match entity.send:
            case None:
                continue
            case AccessRefused():
                fix = "Add the Send claim to the access rule of the primary"
                yield find((entity.path,), "The Send claim is missing on the primary", fix)
            case EntityNotFound():
                summary, fix = "Entity not found on the primary", "Create it, or correct its name"
                yield find((entity.path,), summary, fix)
            case error:
                fix = error.hint or "Check the entity on the primary"
                yield find((entity.path,), error.sentence, fix)
    reached = sum(entity.send is None for entity in facts.entities)
    if reached:
        summary = f"Messages can be sent to {counted(reached, 'entity', 'entities')}"
        yield Finding("entities", Severity.OK, (named(facts.primary),), summary)
    elif not facts.entities:
        yield Finding(
            "entities",
            Severity.NOTE,
            (named(facts.primary),),
            "No entity is known, so sending was not checked",
            "Pass the entities that you use with --entity",
        )


def duplicate_windows(facts: Observations) -> Findings:
    """Whether the primary detects a message that is moved twice."""
    outage = timedelta(seconds=facts.expectation.expected_outage_s)
    without = []
    for entity in facts.entities:
        properties = entity.properties
        if properties is None:
            continue
        window = properties.duplicate_detection_history_time_window
        if not properties.requires_duplicate_detection:
            without.append(entity.path)
        elif window < outage:
            yield Finding(
                "duplicate-window",
                Severity.WARNING,
                (entity.path,),
                f"Duplicate detection covers {window}, and the expected outage lasts {outage}: "
                "messages that are moved later may be delivered twice",
                f"Set DuplicateDetectionHistoryTimeWindow to more than {outage}",
            )
    if without:
        yield Finding(
            "duplicate-window",
            Severity.NOTE,
            tuple(without),
            "No duplicate detection: a message that is moved after a crash may be delivered twice",
            "Make receivers idempotent, or use entities with duplicate detection",
        )


def pings(facts: Observations) -> Findings:
    """Whether receivers on the primary do not get pings."""
    subjects = (named(facts.primary),)
    seen = [ping.path for ping in facts.pings if ping.was_seen]
    unseen = [ping.path for ping in facts.pings if ping.was_seen is False]
    failed = [ping for ping in facts.pings if ping.error is not None]
    if seen:
        yield Finding(
            "pings",
            Severity.PROBLEM,
            tuple(seen),
            "Pings are delivered to receivers like messages",
            'Set ping_mode="attach" in the pairing options',
        )
    elif unseen:
        yield Finding("pings", Severity.OK, subjects, "Pings are not delivered to receivers")
    for ping in failed:
        yield Finding(
            "pings",
            Severity.WARNING,
            (ping.path,),
            f"A ping was not accepted: {ping.error.sentence if ping.error else ''}",
            'Check the entity, or set ping_mode="attach" in the pairing options',
        )
    if not (seen or unseen or failed):
        yield _unknown_pings(facts)


def _unknown_pings(facts: Observations) -> Finding:
    find = partial(Finding, "pings", Severity.NOTE)
    other = 'or set ping_mode="attach" in the pairing options'
    if facts.pings_disabled:
        return find((named(facts.primary),), "Pings were not checked, because they are disabled")
    if facts.pings:
        return find(
            tuple(ping.path for ping in facts.pings),
            "Unknown whether pings are delivered to receivers: its messages cannot be peeked",
            f"Add the Listen or the Manage claim to the access rule of the primary, {other}",
        )
    return find(
        (named(facts.primary),),
        "Unknown whether pings are delivered to receivers",
        f"Use an access rule with the Manage claim, pass a quiet queue with --entity, {other}",
    )


PERCENT_FULL_NOTED: Final = 50.0
PERCENT_FULL_MAX: Final = 90.0
# Added to a message by its aliases and by the service.
OVERHEAD_BYTES: Final = 512
_MEGABYTE: Final = 1 << 20


def backlog_queues(facts: Observations) -> Findings:
    """Whether the backlog queues exist, or can be created."""
    if facts.secondary.amqp is not None or not facts.backlog:
        return
    missing = tuple(each.path for each in facts.backlog if _is_missing(each))
    unknown = tuple(each.path for each in facts.backlog if _is_unknown(each))
    existing = len(facts.backlog) - len(missing) - len(unknown)
    find = partial(Finding, "backlog-queues")
    if missing and facts.secondary.management is None:
        summary = f"{counted(len(missing), 'backlog queue')} will be created by pairing"
        yield find(Severity.NOTE, missing, summary)
    elif missing:
        # With some of them the pair works, with less capacity.
        yield find(
            Severity.WARNING if existing else Severity.PROBLEM,
            missing,
            "Backlog queues not found, and the Manage claim to create them is missing on the "
            "secondary",
            "Create them with `twinbus pair apply` and an access rule with the Manage claim",
        )
    if unknown:
        summary = "Unknown whether they exist: the access rule has neither Send nor Listen"
        yield find(Severity.NOTE, unknown, summary)
    if existing:
        summary = f"{existing} of {counted(len(facts.backlog), 'backlog queue')} exist"
        yield find(Severity.OK, (named(facts.secondary),), summary)


def backlog_claims(facts: Observations) -> Findings:
    """Whether the claims for the backlog queues are present."""
    if facts.secondary.amqp is not None:
        return
    yield from _claim(
        facts.backlog,
        "Send",
        lambda each: each.send,
        "diverted sends would fail",
        "Add the Send claim to the access rule of the secondary",
    )
    if facts.expectation.has_syphon:
        yield from _claim(
            facts.backlog,
            "Listen",
            lambda each: each.listen,
            "the syphon could not receive messages",
            "Add the Listen claim to the access rule of the secondary, or use --sender-only if the "
            "syphon uses another access rule",
        )


def _is_missing(queue: BacklogFacts) -> bool:
    """A request without its claim is refused; the other claim shows that the queue is missing."""
    return isinstance(queue.send, EntityNotFound) or isinstance(queue.listen, EntityNotFound)


def _is_unknown(queue: BacklogFacts) -> bool:
    is_refused = isinstance(queue.send, AccessRefused) and isinstance(queue.listen, AccessRefused)
    return is_refused and queue.properties is None


def _claim(
    queues: Sequence[BacklogFacts],
    claim: str,
    error_of: Callable[[BacklogFacts], TwinbusError | None],
    consequence: str,
    fix: str,
) -> Findings:
    refused = tuple(each.path for each in queues if isinstance(error_of(each), AccessRefused))
    if refused:
        summary = f"The {claim} claim is missing on the secondary: {consequence}"
        yield Finding("claims", Severity.PROBLEM, refused, summary, fix)
    existing = [each for each in queues if not _is_missing(each)]
    for each in existing:
        error = error_of(each)
        if error is not None and not isinstance(error, AccessRefused):
            check = error.hint or "Check the queue on the secondary"
            yield Finding("claims", Severity.PROBLEM, (each.path,), error.sentence, check)
    if existing and all(error_of(each) is None for each in existing):
        summary = f"The {claim} claim is present for every backlog queue"
        yield Finding("claims", Severity.OK, tuple(each.path for each in existing), summary)


def drift(facts: Observations) -> Findings:
    """Whether existing backlog queues have the properties of new ones (P4)."""
    alike = []
    used = _used(facts)
    for queue in _known(facts):
        danger = unsafe_property(queue, allow_lossy=facts.expectation.allow_lossy)
        differences = drift_of(queue, beside=used)
        if danger is not None:
            fix = "Delete it when it is empty: pairing creates it again"
            if unsafe_property(queue, allow_lossy=True) is None:
                fix += "; or set allow_lossy_backlog, and run preflight with --allow-lossy-backlog"
            summary = f"Not used as a backlog queue: {danger}"
            yield Finding("drift", Severity.PROBLEM, (queue.path,), summary, fix)
        elif differences:
            summary = "Different properties: " + "; ".join(
                f"{each.name} is {each.found}, not {each.wanted}" for each in differences
            )
            fix = "Change these properties if the differences matter: pairing never changes them"
            yield Finding("drift", Severity.WARNING, (queue.path,), summary, fix)
        else:
            alike.append(queue.path)
    if alike:
        summary = "The properties are those of backlog queues"
        yield Finding("drift", Severity.OK, tuple(alike), summary)


def leftovers(facts: Observations) -> Findings:
    """Whether messages wait in the backlog outside an outage."""
    waiting = {each.path: each.counts.active for each in _known(facts) if each.counts.active}
    if waiting:
        yield Finding(
            "leftovers",
            Severity.WARNING,
            tuple(waiting),
            f"Messages waiting in the backlog: {sum(waiting.values())}",
            "Move them with `twinbus syphon --local --once`",
        )
    dead = {each.path: each.counts.dead_letter for each in _known(facts) if each.counts.dead_letter}
    if dead:
        yield Finding(
            "leftovers",
            Severity.WARNING,
            tuple(dead),
            f"Messages in the dead-letter queues: {sum(dead.values())}",
            "Show them with `twinbus dlq show QUEUE --secondary`",
        )


def headroom(facts: Observations) -> Findings:
    """Whether the backlog queues have enough capacity for the expected outage."""
    for queue in _known(facts):
        if queue.percent_full >= PERCENT_FULL_NOTED:
            is_full = queue.percent_full >= PERCENT_FULL_MAX
            yield Finding(
                "headroom",
                Severity.PROBLEM if is_full else Severity.WARNING,
                (queue.path,),
                f"The queue is {queue.percent_full:.0f} % full",
                "Run a syphon, and purge its dead-letter queue",
            )
    rate = facts.expectation.rate_per_s
    if rate is None or not facts.backlog:
        return
    find = partial(Finding, "headroom", subjects=(named(facts.secondary),))
    if any(each.properties is None and each.send is None for each in facts.backlog):
        summary = "The free space of the backlog queues is unknown"
        yield find(
            Severity.NOTE,
            summary=summary,
            fix="Run preflight with an access rule that has the Manage claim",
        )
        return
    free = _free_bytes(facts)
    needed = int(
        rate
        * facts.expectation.expected_outage_s
        * (facts.expectation.message_bytes + OVERHEAD_BYTES)
    )
    summary = f"The expected outage needs {needed >> 20} MB of {max(0, free) >> 20} MB free space"
    if needed <= free:
        yield find(Severity.OK, summary=summary)
    else:
        more = -(-(needed - free) // (BACKLOG_SIZE_MB * _MEGABYTE))
        yield find(
            Severity.PROBLEM,
            summary=summary,
            fix=f"Add {counted(more, 'backlog queue')}, or use larger ones",
        )


def message_sizes(facts: Observations) -> Findings:
    """Whether messages that fit the primary fit the backlog (P13)."""
    limits = [each.message_bytes_max for each in facts.backlog if each.message_bytes_max]
    if not limits:
        return
    larger = [each.path for each in facts.entities if (each.message_bytes_max or 0) > min(limits)]
    if larger:
        yield Finding(
            "message-size",
            Severity.WARNING,
            tuple(larger),
            f"They accept larger messages than a backlog queue ({min(limits)} bytes); a paired "
            "sender always refuses these",
            "Send smaller messages, or use a secondary of the same tier",
        )


def _free_bytes(facts: Observations) -> int:
    """Free space of the backlog queues, including those that pairing will create."""
    room = sum(each.max_size_in_megabytes * _MEGABYTE - each.size_bytes for each in _used(facts))
    if facts.secondary.management is None:
        missing = [each for each in facts.backlog if _is_missing(each)]
        room += len(missing) * BACKLOG_SIZE_MB * _MEGABYTE
    return room


def _used(facts: Observations) -> list[QueueProperties]:
    """The queues that pairing would use (P20)."""
    allow_lossy = facts.expectation.allow_lossy
    return [
        each for each in _known(facts) if unsafe_property(each, allow_lossy=allow_lossy) is None
    ]


def _known(facts: Observations) -> list[QueueProperties]:
    return [each.properties for each in facts.backlog if each.properties is not None]


CHECKS: Final[tuple[Callable[[Observations], Iterator[Finding]], ...]] = (
    amqp,
    management,
    same_place,
    clocks,
    primary_name,
    entities,
    backlog_queues,
    backlog_claims,
    drift,
    leftovers,
    headroom,
    message_sizes,
    duplicate_windows,
    pings,
)


def run_checks(facts: Observations) -> Report:
    """Run all checks."""
    return Report.of(finding for check in CHECKS for finding in check(facts))

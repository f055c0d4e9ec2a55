"""The checks of a preflight, pure: observations in, findings out.

Checks of the two namespaces: their doors, their places, their clocks.

Checks of the primary: may the application send there, and what when it comes back.

Checks of the backlog queues: are they there, may they be used, have they room.

What the facts mean: one small function for each check, all of them pure.

checks.py   doors, places, clocks
checks.py      what the application uses
checks.py      where messages wait
model.py            how they name things

Rule 1: a finding says what was seen and, unless all is well, exactly what to do.
Rule 2: only what would make a send fail or lose messages in an outage is a problem.
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

# Schedules and lifetimes are off by as much as the clocks are.
CLOCK_AHEAD_S_NOTED: Final = 5.0
# A token may be refused as too old, or as not valid yet, from five minutes on.
CLOCK_AHEAD_S_MAX: Final = 300.0


def amqp(facts: Observations) -> Findings:
    """Whether messages can be sent there at all."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "amqp", subjects=(named(namespace),))
        match namespace.amqp:
            case None:
                yield find(Severity.OK, says="it answers over AMQP")
            case AuthenticationFailed() as error:
                fix = error.hint or "Check the name and the key of the access rule"
                yield find(Severity.PROBLEM, says=error.sentence, fix=fix)
            case error:
                fix = error.hint or "Check the host name, the port and the firewall for AMQP"
                yield find(Severity.PROBLEM, says=error.sentence, fix=fix)


def management(facts: Observations) -> Findings:
    """Whether its entities can be looked at."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "management", subjects=(named(namespace),))
        error = namespace.management
        if error is None:
            yield find(Severity.OK, says="it answers over HTTP, with the claim Manage")
        elif isinstance(error, AccessRefused):
            # What that means is for the checks to say that needed it.
            yield find(Severity.NOTE, says="the claim Manage is missing")
        else:
            yield find(
                Severity.WARNING,
                says=f"its management cannot be used: {error.sentence}",
                fix=error.hint or "Check its port for HTTP",
            )


def same_place(facts: Observations) -> Findings:
    """Whether one accident would take both."""
    ours, theirs = facts.primary, facts.secondary
    find = partial(Finding, "same-place", subjects=("both namespaces",))
    shared = ours.ip_addresses & theirs.ip_addresses
    if ours.address == theirs.address:
        yield find(
            Severity.PROBLEM,
            says=f"both are the same namespace, {ours.address}",
            fix="Name another namespace as the secondary",
        )
    elif shared or ours.address.host == theirs.address.host:
        where = min(shared) if shared else ours.address.host
        yield find(
            Severity.WARNING,
            says=f"both are at {where}, so one accident would take both",
            fix="Put the secondary on another machine, best in another region",
        )
    else:
        yield find(Severity.OK, says="they are at different addresses")


def clocks(facts: Observations) -> Findings:
    """Whether tokens, schedules and lifetimes mean the same time everywhere."""
    for namespace in (facts.primary, facts.secondary):
        find = partial(Finding, "clock", subjects=(named(namespace),))
        ahead_s = namespace.clock_ahead_s
        if ahead_s is None:
            yield find(Severity.NOTE, says="it did not tell the time")
            continue
        off = f"this machine's clock is {abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead'}"
        if abs(ahead_s) >= CLOCK_AHEAD_S_MAX:
            fix = "Set the clock (NTP): tokens are refused with such a difference"
            yield find(Severity.PROBLEM, says=off, fix=fix)
        elif abs(ahead_s) >= CLOCK_AHEAD_S_NOTED:
            fix = "Set the clock (NTP): schedules and lifetimes are off by as much"
            yield find(Severity.WARNING, says=off, fix=fix)
        else:
            yield find(Severity.OK, says="the clocks agree")


def primary_name(facts: Observations) -> Findings:
    """Whether the backlog queues have a name."""
    find = partial(Finding, "primary-name", subjects=(named(facts.primary),))
    if isinstance(facts.primary_name, TwinbusError):
        yield find(
            Severity.PROBLEM, says=facts.primary_name.sentence, fix="Give it with --primary-name"
        )
    else:
        yield find(Severity.OK, says=f"in its backlog queues it is called {facts.primary_name!r}")


def entities(facts: Observations) -> Findings:
    """Whether the application may send where it wants to."""
    if facts.primary.amqp is not None:
        return
    find = partial(Finding, "entities", Severity.PROBLEM)
    for entity in facts.entities:
        match entity.send:
            case None:
                continue
            case AccessRefused():
                fix = "Give the primary's access rule Send on it"
                yield find((entity.path,), "the claim Send is missing on the primary", fix)
            case EntityNotFound():
                says, fix = "the primary has no such entity", "Create it, or correct its name"
                yield find((entity.path,), says, fix)
            case error:
                fix = error.hint or "Look at it on the primary"
                yield find((entity.path,), error.sentence, fix)
    reached = sum(entity.send is None for entity in facts.entities)
    if reached:
        says = f"messages can be sent to {counted(reached, 'entity', 'entities')}"
        yield Finding("entities", Severity.OK, (named(facts.primary),), says)
    elif not facts.entities:
        yield Finding(
            "entities",
            Severity.NOTE,
            (named(facts.primary),),
            "no entity is known, so sending to one was not tried",
            "Name those that you use with --entity",
        )


def duplicate_windows(facts: Observations) -> Findings:
    """Whether a message that comes home twice is recognised."""
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
                f"it remembers message ids for {window}, and an outage may last {outage}: what "
                "comes home later than that may come twice",
                f"Set DuplicateDetectionHistoryTimeWindow to more than {outage}",
            )
    if without:
        yield Finding(
            "duplicate-window",
            Severity.NOTE,
            tuple(without),
            "without duplicate detection a message that comes home after a crash may come twice",
            "Make receivers idempotent, or use entities with duplicate detection",
        )


def pings(facts: Observations) -> Findings:
    """Whether the primary can be asked for its health without anybody noticing."""
    subjects = (named(facts.primary),)
    seen = [ping.path for ping in facts.pings if ping.was_seen]
    unseen = [ping.path for ping in facts.pings if ping.was_seen is False]
    failed = [ping for ping in facts.pings if ping.error is not None]
    if seen:
        yield Finding(
            "pings",
            Severity.PROBLEM,
            tuple(seen),
            "pings are handed out to receivers like messages",
            'Set ping_mode="attach" in the pairing options',
        )
    elif unseen:
        yield Finding("pings", Severity.OK, subjects, "pings are swallowed, as they should be")
    for ping in failed:
        yield Finding(
            "pings",
            Severity.WARNING,
            (ping.path,),
            f"a ping was not taken: {ping.error.sentence if ping.error else ''}",
            'Look at the entity, or set ping_mode="attach" in the pairing options',
        )
    if not (seen or unseen or failed):
        yield _unknown_pings(facts)


def _unknown_pings(facts: Observations) -> Finding:
    find = partial(Finding, "pings", Severity.NOTE)
    other = 'or set ping_mode="attach" in the pairing options'
    if facts.pings_left_out:
        return find((named(facts.primary),), "pings were left out")
    if facts.pings:
        return find(
            tuple(ping.path for ping in facts.pings),
            "whether its pings are swallowed is not known: messages in it cannot be looked at",
            f"Give the primary's access rule Listen on a queue, or Manage; {other}",
        )
    return find(
        (named(facts.primary),),
        "whether pings are swallowed is not known",
        f"Give a rule with Manage, or name a quiet queue with --entity; {other}",
    )


PERCENT_FULL_NOTED: Final = 50.0
PERCENT_FULL_MAX: Final = 90.0
# A message grows by its aliases and by what the service keeps beside it.
OVERHEAD_BYTES: Final = 512
_MEGABYTE: Final = 1 << 20


def backlog_queues(facts: Observations) -> Findings:
    """Whether there is a place for messages to wait."""
    if facts.secondary.amqp is not None or not facts.backlog:
        return
    missing = tuple(each.path for each in facts.backlog if _is_missing(each))
    unknown = tuple(each.path for each in facts.backlog if _is_unknown(each))
    there_count = len(facts.backlog) - len(missing) - len(unknown)
    find = partial(Finding, "backlog-queues")
    if missing and facts.secondary.management is None:
        says = f"{counted(len(missing), 'backlog queue')} will be made when the namespaces pair"
        yield find(Severity.NOTE, missing, says)
    elif missing:
        # With some of them there the pair works, with less room.
        yield find(
            Severity.WARNING if there_count else Severity.PROBLEM,
            missing,
            "they do not exist, and the claim Manage to make them is missing on the secondary",
            "Create them with `twinbus pair apply` and a rule that has Manage",
        )
    if unknown:
        says = "whether they exist is not known: this rule may neither send nor listen"
        yield find(Severity.NOTE, unknown, says)
    if there_count:
        says = f"{there_count} of {counted(len(facts.backlog), 'backlog queue')} exist"
        yield find(Severity.OK, (named(facts.secondary),), says)


def backlog_claims(facts: Observations) -> Findings:
    """Whether the backlog queues can be used."""
    if facts.secondary.amqp is not None:
        return
    yield from _claim(
        facts.backlog,
        "Send",
        lambda each: each.send,
        "sends that are diverted would fail",
        "Give the secondary's access rule Send on them",
    )
    if facts.expectation.has_syphon:
        yield from _claim(
            facts.backlog,
            "Listen",
            lambda each: each.listen,
            "the syphon could not bring messages home",
            "Give the secondary's access rule Listen on them, or check with --sender-only if the "
            "syphon uses another rule",
        )


def _is_missing(queue: BacklogFacts) -> bool:
    """Whoever lacks one claim is told by the other that there is no such queue."""
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
        says = f"the claim {claim} is missing on the secondary: {consequence}"
        yield Finding("claims", Severity.PROBLEM, refused, says, fix)
    there = [each for each in queues if not _is_missing(each)]
    for each in there:
        error = error_of(each)
        if error is not None and not isinstance(error, AccessRefused):
            look = error.hint or "Look at it on the secondary"
            yield Finding("claims", Severity.PROBLEM, (each.path,), error.sentence, look)
    if there and all(error_of(each) is None for each in there):
        says = f"the claim {claim} is there for every backlog queue"
        yield Finding("claims", Severity.OK, tuple(each.path for each in there), says)


def drift(facts: Observations) -> Findings:
    """Whether backlog queues that exist are like those that we would make (P4)."""
    alike = []
    used = _used(facts)
    for queue in _known(facts):
        danger = unsafe_property(queue, allow_lossy=facts.expectation.allow_lossy)
        differences = drift_of(queue, beside=used)
        if danger is not None:
            fix = "Delete it when it is empty: pairing makes it anew"
            if unsafe_property(queue, allow_lossy=True) is None:
                fix += "; or pair with allow_lossy_backlog, and check with --allow-lossy-backlog"
            says = f"it is not used: {danger}"
            yield Finding("drift", Severity.PROBLEM, (queue.path,), says, fix)
        elif differences:
            told = "; ".join(
                f"{each.name} is {each.found}, not {each.wanted}" for each in differences
            )
            fix = "Change these properties, or live with them: pairing leaves them alone"
            yield Finding("drift", Severity.WARNING, (queue.path,), told, fix)
        else:
            alike.append(queue.path)
    if alike:
        says = "they have the properties of backlog queues"
        yield Finding("drift", Severity.OK, tuple(alike), says)


def leftovers(facts: Observations) -> Findings:
    """Whether messages wait there although nothing is wrong."""
    waiting = {each.path: each.counts.active for each in _known(facts) if each.counts.active}
    if waiting:
        yield Finding(
            "leftovers",
            Severity.WARNING,
            tuple(waiting),
            f"{counted(sum(waiting.values()), 'message')} wait in the backlog",
            "Run a syphon: `twinbus syphon --local --once`",
        )
    dead = {each.path: each.counts.dead_letter for each in _known(facts) if each.counts.dead_letter}
    if dead:
        yield Finding(
            "leftovers",
            Severity.WARNING,
            tuple(dead),
            f"{counted(sum(dead.values()), 'message')} could not be delivered",
            "Look into the dead-letter queues: `twinbus dlq show QUEUE --secondary`",
        )


def headroom(facts: Observations) -> Findings:
    """Whether the backlog queues have room for the outage that is expected."""
    for queue in _known(facts):
        if queue.percent_full >= PERCENT_FULL_NOTED:
            is_full = queue.percent_full >= PERCENT_FULL_MAX
            yield Finding(
                "headroom",
                Severity.PROBLEM if is_full else Severity.WARNING,
                (queue.path,),
                f"it is {queue.percent_full:.0f} % full",
                "Run a syphon, and purge its dead-letter queue",
            )
    rate = facts.expectation.rate_per_s
    if rate is None or not facts.backlog:
        return
    find = partial(Finding, "headroom", subjects=(named(facts.secondary),))
    if any(each.properties is None and each.send is None for each in facts.backlog):
        says = "how much room the backlog queues have is not known"
        yield find(Severity.NOTE, says=says, fix="Check once with a rule that has Manage")
        return
    free = _room_bytes(facts)
    needed = int(
        rate
        * facts.expectation.expected_outage_s
        * (facts.expectation.message_bytes + OVERHEAD_BYTES)
    )
    says = f"{needed >> 20} MB of {max(0, free) >> 20} MB would be used in the expected outage"
    if needed <= free:
        yield find(Severity.OK, says=says)
    else:
        more = -(-(needed - free) // (BACKLOG_SIZE_MB * _MEGABYTE))
        yield find(
            Severity.PROBLEM,
            says=says,
            fix=f"Use {counted(more, 'backlog queue')} more, or larger ones",
        )


def message_sizes(facts: Observations) -> Findings:
    """Whether what fits the primary fits the backlog (P13)."""
    limits = [each.message_bytes_max for each in facts.backlog if each.message_bytes_max]
    if not limits:
        return
    larger = [each.path for each in facts.entities if (each.message_bytes_max or 0) > min(limits)]
    if larger:
        yield Finding(
            "message-size",
            Severity.WARNING,
            tuple(larger),
            f"they take larger messages than a backlog queue does ({min(limits)} bytes): paired "
            "sends refuse those, outage or not",
            "Keep messages smaller, or use a secondary of the same tier",
        )


def _room_bytes(facts: Observations) -> int:
    """What the backlog queues can take, those included that pairing will make."""
    room = sum(each.max_size_in_megabytes * _MEGABYTE - each.size_bytes for each in _used(facts))
    if facts.secondary.management is None:
        missing = [each for each in facts.backlog if _is_missing(each)]
        room += len(missing) * BACKLOG_SIZE_MB * _MEGABYTE
    return room


def _used(facts: Observations) -> list[QueueProperties]:
    """Those that pairing would use (P20)."""
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
    """All checks."""
    return Report.of(finding for check in CHECKS for finding in check(facts))

"""Checks of the backlog queues: are they there, may they be used, have they room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from twinbus.drivers.management import QueueProperties
from twinbus.errors import TwinbusError
from twinbus.pairing.backlog_queues import BACKLOG_SIZE_MB, drift_of, unsafe_property
from twinbus.pairing.preflight.facts import BacklogFacts, Observations
from twinbus.pairing.preflight.findings import Finding, Severity
from twinbus.pairing.preflight.wording import counted, named
from twinbus.service_errors import AccessRefused, EntityNotFound

Findings = Iterator[Finding]

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

"""Checks of the primary: may the application send there, and what when it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from twinbus.errors import TwinbusError
from twinbus.pairing.preflight.facts import Observations
from twinbus.pairing.preflight.findings import Finding, Severity
from twinbus.pairing.preflight.wording import counted, named
from twinbus.service_errors import AccessRefused, EntityNotFound

Findings = Iterator[Finding]


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

"""Checks of the two namespaces: their doors, their places, their clocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from twinbus.pairing.preflight.facts import Observations
from twinbus.pairing.preflight.findings import Finding, Severity
from twinbus.pairing.preflight.wording import named
from twinbus.service_errors import AccessRefused, AuthenticationFailed

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

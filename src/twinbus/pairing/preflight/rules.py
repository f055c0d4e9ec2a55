"""What the facts mean: one small function for each check, all of them pure.

rules_namespaces.py   doors, places, clocks
rules_primary.py      what the application uses
rules_backlog.py      where messages wait
wording.py            how they name things

Rule 1: a finding says what was seen and, unless all is well, exactly what to do.
Rule 2: only what would make a send fail or lose messages in an outage is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from twinbus.pairing.preflight import rules_backlog, rules_namespaces, rules_primary
from twinbus.pairing.preflight.facts import Observations
from twinbus.pairing.preflight.findings import Finding, Report

__all__ = ["run_checks"]

CHECKS: Final[tuple[Callable[[Observations], Iterator[Finding]], ...]] = (
    rules_namespaces.amqp,
    rules_namespaces.management,
    rules_namespaces.same_place,
    rules_namespaces.clocks,
    rules_primary.primary_name,
    rules_primary.entities,
    rules_backlog.backlog_queues,
    rules_backlog.backlog_claims,
    rules_backlog.drift,
    rules_backlog.leftovers,
    rules_backlog.headroom,
    rules_backlog.message_sizes,
    rules_primary.duplicate_windows,
    rules_primary.pings,
)


def run_checks(facts: Observations) -> Report:
    """All checks."""
    return Report.of(finding for check in CHECKS for finding in check(facts))

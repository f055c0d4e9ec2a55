"""Preflight: is this pair ready for the day on which the primary fails?

facts.py      what was seen of both namespaces: frozen values
probe.py      the edge: goes and looks
rules.py      pure: facts in, findings out
findings.py   what is well, what is not, and exactly what to do about it

Rule 1: nothing of the user's is changed. With Manage on the primary one empty probe queue is made
        and deleted again, to see whether pings are swallowed; without it a named entity is pinged.
Rule 2: whatever cannot be seen is said to be unknown, never assumed.
"""

from __future__ import annotations

from twinbus.pairing.preflight.facts import ExpectedLoad, Observations
from twinbus.pairing.preflight.findings import Finding, Report, Severity
from twinbus.pairing.preflight.probe import NamespaceAccess, collect_observations
from twinbus.pairing.preflight.rules import run_checks

__all__ = [
    "ExpectedLoad",
    "Finding",
    "NamespaceAccess",
    "Observations",
    "Report",
    "Severity",
    "collect_observations",
    "run_checks",
]

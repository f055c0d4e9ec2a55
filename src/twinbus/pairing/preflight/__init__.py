"""Preflight: is this pair ready for the day on which the primary fails?

probe     asks both namespaces
model     what was seen, and what was found, as values
checks    pure: what was seen in, findings out

Rule 1: nothing of the user's is changed. With Manage on the primary one empty probe queue is made
        and deleted again, to see whether pings are swallowed; without it a named entity is pinged.
Rule 2: whatever cannot be seen is said to be unknown, never assumed.
"""

from __future__ import annotations

from twinbus.pairing.preflight.checks import run_checks
from twinbus.pairing.preflight.model import ExpectedLoad, Finding, Observations, Report, Severity
from twinbus.pairing.preflight.probe import NamespaceAccess, collect_observations

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

"""Preflight: checks whether a pair is ready for an outage of the primary.

probe     sends requests to both namespaces
model     observations and findings, as values
checks    pure: observations in, findings out

Rule 1: nothing of the user is changed. With Manage on the primary one empty probe queue is created
        and deleted again, to check that pings are not delivered; without Manage the entities that
        the caller names are pinged.
Rule 2: a value that cannot be read is reported as unknown, never assumed.
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

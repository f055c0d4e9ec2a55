"""Failures that can be switched on, for an entity, a subsystem or the whole namespace.

fault                  Fault and Scope: one failure as a checked value; the table of kinds
registry               the active faults with their times and counts; the subsystems
effects                what happens when a fault begins or ends; diagnostics of a crash
injection              what a fault does to an attach, a send, a settlement, a request, a commit
http_injection         the same for administration requests
network                connections that are refused, reset or silent
degraded_connection    connections that are slow or frozen
"""

from __future__ import annotations

from twinbus.broker.faults.fault import KINDS, Fault, Scope
from twinbus.broker.faults.registry import FaultRegistry

__all__ = ["KINDS", "Fault", "FaultRegistry", "Scope"]

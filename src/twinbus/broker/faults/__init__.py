"""Failures that can be switched on, for an entity, a subsystem or the whole namespace.

fault                  Fault and Scope: one failure as a checked value; the table of kinds
registry               what is switched on, its times, chance and counts; which entities fail
together effects                what happens when a fault begins and ends; the report of a crash
injection              what happens to an attach, a send, a settlement, ... that meets one
http_injection         the same for administration
network                connections that are refused, reset or silent
degraded_connection    connections that are slow or frozen
"""

from __future__ import annotations

from twinbus.broker.faults.fault import KINDS, Fault, Scope
from twinbus.broker.faults.registry import FaultRegistry

__all__ = ["KINDS", "Fault", "FaultRegistry", "Scope"]

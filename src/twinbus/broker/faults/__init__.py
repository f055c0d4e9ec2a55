"""Failures that can be switched on, for an entity, a subsystem or the whole namespace.

kinds.py        the list: what each kind does and which options it has
fault.py        Fault and Scope: one failure as a checked value
board.py        FaultRegistry: what is switched on, its times, chance and counts
subsystems.py   which entities fail together
stage.py        what happens when a fault begins and ends
sends.py, attaches.py, receives.py, settlements.py, requests.py, administration.py
                what happens to a request that meets one
contact.py, line.py
                connections that are refused, reset, silent or slow
commits.py      a disk that is full or slow
crash.py        a subsystem goes down, and the file that says how it was found
"""

from __future__ import annotations

from twinbus.broker.faults.board import FaultRegistry
from twinbus.broker.faults.fault import Fault, Scope
from twinbus.broker.faults.kinds import KINDS

__all__ = ["KINDS", "Fault", "FaultRegistry", "Scope"]

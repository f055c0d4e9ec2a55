"""What a run had to do and did not: a promise is easily kept by somebody who does nothing.

Rule 1: this file reads no clock, no file and no network. Same events, same answer.
Rule 2: a syphon on Spark may end by itself soon after something was done to it. Anybody else who
        ends without being asked fails the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from verification.fault_campaign.cards import Fault
from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.history import Event
from verification.fault_campaign.plan import MOVING, TWIN, Plan, kind_of
from verification.fault_campaign.windows import windows_of

# A program whose JVM is gone sees it at its next call; a query gives up after a few trials.
SPARK_S_MAX: Final = 30.0


def undone(
    events: Sequence[Event], plan: Plan, faults: Sequence[Fault], verdict: Verdict
) -> list[str]:
    """Sentences about a run that is over; none if it did what was planned."""
    return [
        *_too_little(plan, faults, verdict),
        *_without_twin(events, plan),
        *_faults(events, faults),
        *_died(events, plan),
    ]


def _too_little(plan: Plan, faults: Sequence[Fault], verdict: Verdict) -> list[str]:
    found = []
    if verdict.acknowledged < plan.messages:
        found.append(
            f"{verdict.acknowledged:,} of {plan.messages:,} messages were acknowledged in time"
        )
    has_movers = any(kind_of(role) in MOVING for role in plan.roles)
    if faults and has_movers and not verdict.moved:
        found.append("nothing came home from the backlog")
    return found


def _without_twin(events: Sequence[Event], plan: Plan) -> list[str]:
    """Another primary that shares no queue with ours proves nothing."""
    was_there = any(event.what == "receive" and event.place == TWIN for event in events)
    return [] if was_there or not plan.has_twin else ["no message of the other primary was left"]


def _faults(events: Sequence[Event], faults: Sequence[Fault]) -> list[str]:
    """Counted and not compared by name: an error of a disk may have been a plain kill."""
    told = Counter(event.type for event in events if event.what == "fault")
    if told["ok"] >= len(faults):
        return []
    nobody = sorted({each.detail for each in events if (each.what, each.type) == ("fault", "info")})
    why = f"; nobody was there for: {', '.join(nobody)}" if nobody else ""
    return [f"{told['ok']} of {len(faults)} faults happened and ended{why}"]


def _died(events: Sequence[Event], plan: Plan) -> list[str]:
    windows = windows_of(events)
    found = []
    for event in events:
        if event.what != "died":
            continue
        role = event.process.partition(".")[0]
        is_excused = plan.is_on_spark(role) and any(
            window.process in (role, kind_of(role))
            and window.touches(event.at_s, event.at_s, SPARK_S_MAX)
            for window in windows
        )
        if not is_excused:
            found.append(f"{event.process} ended by itself with {event.detail}")
    return found

"""The verdict over the directory of a run: journals, receipts and audit logs, by one clock.

judged(directory, plan, faults)   after a run
judged_again(directory)           at any time later, with the checker as it is by then
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from verification.fault_campaign.availability import failed_sends, late_sends, probed
from verification.fault_campaign.books import Books
from verification.fault_campaign.cards import Fault
from verification.fault_campaign.checker import Verdict, check
from verification.fault_campaign.clocks import WallClock, clock_of, wall_clocks
from verification.fault_campaign.history import Event, What, merged
from verification.fault_campaign.messages import message_of, print_of
from verification.fault_campaign.plan import PRIMARY, SECONDARY, Plan
from verification.fault_campaign.processes import METERING_SUFFIX
from verification.fault_campaign.schedule import schedule
from verification.fault_campaign.syphon import RECEIPTS_SUFFIX, receipts_in
from verification.fault_campaign.undone import undone

__all__ = ["PLAN", "judged", "judged_again"]

PLAN: Final = "plan.json"
NO_FAULT: Final = "no fault, and others on the machine"
# What nobody but a broker can tell.
AUDITED: Final[tuple[tuple[str, What], ...]] = (
    (SECONDARY, "stored"),
    (SECONDARY, "delivered"),
    (PRIMARY, "scheduled"),
    (PRIMARY, "completed"),
    (PRIMARY, "expired"),
)


def judged_again(directory: Path) -> tuple[Plan, list[Event], Verdict]:
    """A run that was kept, by the schedule of its seed."""
    plan = Plan.from_json((directory / PLAN).read_text(encoding="utf-8"))
    return plan, *judged(directory, plan, schedule(plan))


def judged(directory: Path, plan: Plan, faults: Sequence[Fault]) -> tuple[list[Event], Verdict]:
    """Everything that happened, and what is to be said about it."""
    events = _events(directory)
    rules = replace(plan.rules, expected_print=lambda value: print_of(message_of(plan, value)))
    verdict = check(events, rules)
    verdict.unavailable, verdict.excused = failed_sends(events)
    verdict.late = late_sends(events, plan.send_timeout_s)
    verdict.disturbed, verdict.probe_s = probed(events, is_expected=plan.has_spark)
    if not plan.has_spark:  # It shares its machine with other tests.
        verdict.excused[NO_FAULT] = len(verdict.unavailable)
        verdict.unavailable, verdict.late = [], []
    verdict.undone = undone(events, plan, faults, verdict)
    return events, verdict


def _events(directory: Path) -> list[Event]:
    written = merged(directory.glob("*.jsonl"))
    clocks = wall_clocks(written)
    primary = clock_of(clocks, PRIMARY)
    events = [
        event
        if event.enqueued_s is None
        else replace(event, enqueued_s=primary.monotonic(event.enqueued_s))
        for event in written
    ]
    for path in directory.glob(f"*{RECEIPTS_SUFFIX}"):
        name = path.name.removesuffix(RECEIPTS_SUFFIX)
        events += receipts_in(path, name, clock_of(clocks, name).monotonic)
    for broker, what in AUDITED:
        metering = directory / f"{broker}{METERING_SUFFIX}"
        events += _audited(metering, broker, what, clock_of(clocks, broker))
    return sorted(events, key=lambda event: event.at_s)


def _audited(metering: Path, broker: str, what: What, clock: WallClock) -> Iterator[Event]:
    for at_s, place, copy, value in Books(metering).told(what):
        yield Event(
            what=what,
            type="ok",
            process=broker,
            at_s=clock.monotonic(at_s),
            values=(value,),
            place=place,
            copy=copy,
        )

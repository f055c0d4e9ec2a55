"""The verdict of a run as one table, and how to run it again."""

from __future__ import annotations

from campaign.checker import Verdict
from campaign.plan import Plan

SHOWN_MAX = 5
"""Examples of each complaint; the journals have all of them."""


def report(plan: Plan, verdict: Verdict) -> str:
    """What was counted, what went wrong, and the command that repeats the run."""
    rows: list[tuple[str, object]] = [
        ("acknowledged", verdict.acknowledged),
        ("failed or unanswered", verdict.failed),
        ("of those arrived all the same", verdict.recovered),
        ("received (message and place)", verdict.received),
        ("came home from the backlog", verdict.moved),
        ("dead-lettered with a reason", verdict.dead_lettered),
        ("expired", verdict.expired),
        ("faults", verdict.faults.total()),
        *((f"  {name}", count) for name, count in sorted(verdict.faults.items())),
        ("duplicates with a reason", verdict.duplicates.total()),
        *((f"  {name}", count) for name, count in sorted(verdict.duplicates.items())),
        ("LOST", len(verdict.lost)),
        ("UNEXPECTED", len(verdict.unexpected)),
        ("PINGS SEEN", len(verdict.pings_seen)),
        ("UNEXPLAINED DUPLICATES", len(verdict.unexplained) + len(verdict.repeated)),
        ("LEFT BEHIND", len(verdict.left)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    for name, values in verdict.complaints.items():
        lines += [f"{name}: {value}" for value in values[:SHOWN_MAX]]
    return "\n".join([*lines, replay(plan)])


def replay(plan: Plan) -> str:
    return (
        f"SEED={plan.seed} REPLAY: python -m campaign --seed {plan.seed} "
        f"--messages {plan.messages} --fault-seconds {plan.fault_s:g}"
    )

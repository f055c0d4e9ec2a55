"""The verdict of a run, or of many, as one table, and how to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.plan import Plan

SHOWN_MAX = 5
"""Examples of each complaint; the journals have all of them."""


def report(plan: Plan, verdict: Verdict) -> str:
    """What was counted, what went wrong, and the command that repeats the run."""
    lines = [table(verdict)]
    for name, values in verdict.complaints.items():
        lines += [f"{name}: {value}" for value in values[:SHOWN_MAX]]
    return "\n".join([*lines, replay(plan)])


def table(verdict: Verdict) -> str:
    rows: list[tuple[str, object]] = [
        ("acknowledged", verdict.acknowledged),
        ("failed or unanswered", verdict.failed),
        *((f"  sends: {name}", count) for name, count in sorted(verdict.excused.items())),
        ("of those arrived all the same", verdict.recovered),
        ("received (message and place)", verdict.received),
        ("came home from the backlog", verdict.moved),
        ("dead-lettered", verdict.dead_lettered),
        ("expired", verdict.expired),
        ("in a queue when it was deleted", verdict.removed),
        ("faults", verdict.faults.total()),
        *((f"  {name}", count) for name, count in sorted(verdict.faults.items())),
        ("duplicates with a reason", verdict.duplicates.total()),
        *((f"  {name}", count) for name, count in sorted(verdict.duplicates.items())),
        *(
            (f"prober, 99 of 100 within ({name})", f"{seconds * 1_000:.0f} ms")
            for name, seconds in verdict.probe_s.items()
        ),
        ("LOST", len(verdict.lost)),
        ("UNEXPECTED", len(verdict.unexpected)),
        ("PINGS SEEN", len(verdict.pings_seen)),
        ("UNEXPLAINED DUPLICATES", len(verdict.unexplained) + len(verdict.repeated)),
        ("FIELDS CHANGED", len(verdict.changed)),
        ("SENDS FAILED WITH A LIVING BACKLOG", len(verdict.unavailable)),
        ("SENDS THAT ENDED TOO LATE", len(verdict.late)),
        ("OUT OF ORDER", len(verdict.disordered)),
        ("PROBER DISTURBED", len(verdict.disturbed)),
        ("LEFT BEHIND", len(verdict.left)),
        ("NOT DONE", len(verdict.undone)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in rows)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def total(verdicts: Sequence[Verdict]) -> Verdict:
    """All of them together; of the prober, the worst."""
    whole = Verdict()
    for verdict in verdicts:
        for field in fields(Verdict):
            mine, other = getattr(whole, field.name), getattr(verdict, field.name)
            if field.name == "probe_s":
                mine = {
                    name: max(mine.get(name, 0.0), other.get(name, 0.0))
                    for name in {**mine, **other}
                }
            else:
                mine = mine + other
            setattr(whole, field.name, mine)
    return whole


def replay(plan: Plan) -> str:
    spark = "--spark " if plan.has_spark else ""
    return (
        f"SEED={plan.seed} REPLAY: python -m verification.fault_campaign {spark}--seed {plan.seed} "
        f"--messages {plan.messages} --fault-seconds {plan.fault_s:g}"
    )

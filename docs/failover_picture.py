"""Writes the picture and the table of ``docs/FAILOVER.md`` from the code's own table.

``python docs/failover_picture.py`` replaces what stands between the two markers of that page;
a test compares them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from twinbus.core.failover import TRANSITIONS, Health, Signal

PAGE = Path(__file__).with_name("FAILOVER.md")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def picture() -> str:
    """Every change of health, the signals of one arrow joined; what changes nothing is left out."""
    arrows: dict[tuple[Health, Health], list[str]] = defaultdict(list)
    for before, row in TRANSITIONS.items():
        for signal, after in row.items():
            if before is not after:
                arrows[before, after].append(signal.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Health.HEALTHY.name}"]
    lines += [
        f"    {before.name} --> {after.name}: {', '.join(signals)}"
        for (before, after), signals in arrows.items()
    ]
    return "\n".join([*lines, "```"])


def table() -> str:
    """The whole table; a dot stands for "stays as it is"."""
    healths = list(Health)
    lines = [
        "| Signal | " + " | ".join(health.value for health in healths) + " |",
        "|---" * (len(healths) + 1) + "|",
    ]
    for signal in Signal:
        cells = [
            "·" if TRANSITIONS[health][signal] is health else TRANSITIONS[health][signal].value
            for health in healths
        ]
        lines.append(f"| {signal.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def generated() -> str:
    return f"{BEGIN}\n\n{picture()}\n\n{table()}\n\n{END}"


def with_picture(page: str) -> str:
    """The page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + generated() + after


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

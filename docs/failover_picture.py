"""Draws ``docs/failover.svg`` and writes the table of ``docs/FAILOVER.md``, from the code.

``python docs/failover_picture.py`` writes both again; a test compares them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from twinbus.failover.state_machine import TRANSITIONS, Health, Signal

sys.path.insert(0, str(Path(__file__).parent))
from flow_picture import box, page, text, way

PAGE = Path(__file__).with_name("FAILOVER.md")
PICTURE = Path(__file__).with_name("failover.svg")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
TITLE = "The health of one entity, and the signals that change it; the table has all of them."

WIDTH, HEIGHT = 960, 500
BOX_WIDTH, BOX_HEIGHT = 170, 64
# The left upper corner of each box.
PLACES = {
    Health.HEALTHY: (60, 150),
    Health.SUSPECT: (370, 150),
    Health.DIVERTED: (720, 150),
    Health.HELD_ON_PRIMARY: (60, 350),
    Health.HELD_ON_BACKLOG: (720, 350),
}
# Each arrow: its path, and where the middle of its words stands.
ARROWS = {
    (Health.HEALTHY, Health.SUSPECT): ("M230 168H366", (298, 160)),
    (Health.SUSPECT, Health.HEALTHY): ("M370 196H234", (302, 214)),
    (Health.SUSPECT, Health.DIVERTED): ("M540 168H716", (628, 144)),
    (Health.HEALTHY, Health.DIVERTED): (
        "M170 150V120Q170 100 190 100H740Q760 100 760 120V146",
        (455, 92),
    ),
    (Health.DIVERTED, Health.HEALTHY): (
        "M850 150V70Q850 50 830 50H120Q100 50 100 70V146",
        (455, 42),
    ),
    (Health.HEALTHY, Health.HELD_ON_PRIMARY): ("M120 214V346", (98, 286)),
    (Health.HELD_ON_PRIMARY, Health.HEALTHY): ("M170 350V218", (230, 286)),
    (Health.SUSPECT, Health.HELD_ON_PRIMARY): ("M455 214V348Q455 368 435 368H234", (345, 360)),
    (Health.HELD_ON_PRIMARY, Health.DIVERTED): (
        "M230 396H650Q670 396 670 376V216Q670 196 690 196H716",
        (455, 414),
    ),
    (Health.DIVERTED, Health.HELD_ON_BACKLOG): ("M780 214V346", (758, 286)),
    (Health.HELD_ON_BACKLOG, Health.DIVERTED): ("M830 350V218", (892, 286)),
    (Health.HELD_ON_BACKLOG, Health.HEALTHY): (
        "M805 414V440Q805 460 785 460H50Q30 460 30 440V202Q30 182 44 182H56",
        (455, 478),
    ),
}


def changes() -> dict[tuple[Health, Health], list[str]]:
    """Every change of health with its signals; what changes nothing is left out."""
    found: dict[tuple[Health, Health], list[str]] = defaultdict(list)
    for before, row in TRANSITIONS.items():
        for signal, after in row.items():
            if before is not after:
                found[before, after].append(signal.value)
    return found


def arrow(before: Health, after: Health, signals: list[str]) -> str:
    """One change of health; its colour says where the sends go afterwards."""
    kind = {Health.HEALTHY: "home", Health.DIVERTED: "detour"}.get(after, "direct")
    path, (x, y) = ARROWS[before, after]
    # Between two boxes there is room for short lines, elsewhere for one long line.
    lines = signals if path.count("Q") == 0 else [", ".join(signals)]
    words = [text(x, y + 16 * row, line, kind, "middle") for row, line in enumerate(lines)]
    return "\n".join([way(kind, path), *words])


def drawn() -> str:
    """The whole picture."""
    sends = {Health.DIVERTED: "sends go to the backlog", Health.HELD_ON_BACKLOG: "no ping is sent"}
    parts = page(WIDTH, HEIGHT, TITLE)
    for health, (x, y) in PLACES.items():
        more = sends.get(health, "sends go to the primary")
        parts.append(box(x, y, BOX_WIDTH, BOX_HEIGHT, health.value, more))
    parts += [arrow(before, after, signals) for (before, after), signals in changes().items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


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
    return f"{BEGIN}\n\n![{TITLE}]({PICTURE.name})\n\n{table()}\n\n{END}"


def with_picture(page: str) -> str:
    """The page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + generated() + after


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Tables: the data behind a plot, and the answer itself.

Rule: a table of very many rows shows the first of them and says how many it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.pages.markup import Markup, joined, tag

__all__ = ["ROWS_MAX", "Column", "behind", "table"]

# A page of a megabyte is still opened at once; whoever wants more rows wants a file of them.
ROWS_MAX: Final = 1_000
# Days, times and words of operations are not broken into lines.
SHORT_WORD: Final = 24
NO_WORD: Final = "\u2013"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and whether figures stand below it."""

    heading: str
    is_number: bool = True


def table(
    name: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], *feet: Sequence[str]
) -> Markup:
    """Rows under their headings, in a box that scrolls when they are too many or too wide."""
    headings = [
        tag("th", column.heading, scope="col", class_="number" if column.is_number else None)
        for column in columns
    ]
    body = [tag("tr", _cells(columns, row, NO_WORD)) for row in rows]
    foot = [tag("tr", _cells(columns, row, "")) for row in feet]
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", *headings)),
            tag("tbody", *body),
            tag("tfoot", *foot) if foot else "",
        ),
        class_="scroll",
        # A box that scrolls must be reachable without a mouse.
        tabindex=0,
        role="region",
        aria_label=name,
    )


def _cells(columns: Sequence[Column], row: Sequence[str], blank: str) -> Markup:
    return joined(_cell(column, text, blank) for column, text in zip(columns, row, strict=True))


def _cell(column: Column, text: str, blank: str) -> Markup:
    if column.is_number:
        return tag("td", text, class_="number")
    short = " short" if len(text) <= SHORT_WORD else ""
    return tag("td", tag("bdi", text if text.strip() else blank), class_=f"word{short}")


def behind(
    name: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], what: str = "figures"
) -> Markup:
    """The figures of a plot, for whoever wants to read or copy them."""
    shown = rows[:ROWS_MAX]
    left_out = len(rows) - len(shown)
    return tag(
        "details",
        tag("summary", f"Show the {what}"),
        table(f"{name}: {what}", columns, shown),
        tag("p", f"{left_out:,} more are left out here.", class_="pale") if left_out else "",
    )

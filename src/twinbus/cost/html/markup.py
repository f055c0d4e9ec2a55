"""HTML and SVG: escaping, elements and tables.

Rule 1: text becomes markup only by ``escape`` or ``tag``; everything that is not ``Markup`` yet is
        escaped. Names come from senders, so they may be hostile.
Rule 2: characters that are invisible, or that change the direction of the text around them, are
        shown by their number; right-to-left letters stay, isolated from the text around them.
Rule 3: a table of very many rows shows the first of them and the number of the others.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "ROWS_MAX",
    "Column",
    "Markup",
    "data_table",
    "escape",
    "isolate",
    "join",
    "table",
    "tag",
    "visible",
]

# Control, format (joiners, marks of direction), surrogates, unassigned, line and paragraph ends.
_INVISIBLE = {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
_ISOLATE, _END_OF_ISOLATE = "\u2068", "\u2069"
_VOID = {"meta", "link"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """The text as markup; markup stays as it is."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(visible(text)))


def visible(text: str) -> str:
    """The text with numbers in place of invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_show_character(character) for character in text)


def _show_character(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def isolate(text: str) -> Markup:
    """The text with its own direction, for places that allow no elements."""
    return Markup(_ISOLATE + escape(text) + _END_OF_ISOLATE)


def join(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(escape(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` means class and ``text_anchor`` text-anchor; None omits one."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


# A page of a megabyte opens at once; more rows belong in a CSV file.
ROWS_MAX: Final = 1_000
# Days, times and words of operations are not broken into lines.
SHORT_WORD: Final = 24
NO_WORD: Final = "\u2013"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and whether the column has numbers."""

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
    return join(_cell(column, text, blank) for column, text in zip(columns, row, strict=True))


def _cell(column: Column, text: str, blank: str) -> Markup:
    if column.is_number:
        return tag("td", text, class_="number")
    short = " short" if len(text) <= SHORT_WORD else ""
    return tag("td", tag("bdi", text if text.strip() else blank), class_=f"word{short}")


def data_table(
    name: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], what: str = "figures"
) -> Markup:
    """The data of a chart as a table that can be opened."""
    shown = rows[:ROWS_MAX]
    left_out = len(rows) - len(shown)
    return tag(
        "details",
        tag("summary", f"Show {what}"),
        table(f"{name}: {what}", columns, shown),
        tag("p", f"{left_out:,} more are not shown.", class_="pale") if left_out else "",
    )

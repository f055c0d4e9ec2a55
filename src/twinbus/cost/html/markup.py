"""HTML: escaping, tags and tables.

HTML and SVG as text that cannot be broken by what it shows.

Tables: the data behind a plot, and the answer itself.

Rule: a table of very many rows shows the first of them and says how many it leaves out.

Rule 1: text becomes markup only by ``escaped`` or ``tag``; whatever is not ``Markup`` yet is
        escaped on the way in. Names come from senders, so they are hostile until then.
Rule 2: characters that nobody can see, or that turn the text around them, are shown by their
        number; letters that are read from right to left stay, kept apart from their neighbours.
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
    "behind",
    "escaped",
    "isolated",
    "joined",
    "table",
    "tag",
    "visible",
]

# Control, format (joiners, marks of direction), surrogates, unassigned, line and paragraph ends.
_UNSEEN = {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
_ISOLATE, _END_OF_ISOLATE = "\u2068", "\u2069"
_VOID = {"meta", "link"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """The text as markup that shows it; markup stays as it is."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(visible(text)))


def visible(text: str) -> str:
    """The text with numbers in place of what nobody can see."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_seen(character) for character in text)


def _seen(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def isolated(text: str) -> Markup:
    """For places that take no elements: the text's direction does not reach its neighbours."""
    return Markup(_ISOLATE + escaped(text) + _END_OF_ISOLATE)


def joined(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(escaped(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` means class and ``text_anchor`` text-anchor; None leaves one out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{joined(children)}</{name}>")


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

"""HTML and SVG as text that cannot be broken by what it shows.

Rule 1: text becomes markup only by ``escaped`` or ``tag``; whatever is not ``Markup`` yet is
        escaped on the way in. Names come from senders, so they are hostile until then.
Rule 2: characters that nobody can see, or that turn the text around them, are shown by their
        number; letters that are read from right to left stay, kept apart from their neighbours.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

__all__ = ["Markup", "escaped", "isolated", "joined", "tag", "visible"]

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

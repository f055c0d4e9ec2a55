"""Entries, feeds and errors as XML text.

Written as text and not as a tree, because the stock client wants default namespaces and a page
of a hundred entries should cost little.

Rule 1: whatever came from somebody goes through ``escaped``.
Rule 2: a character that XML cannot spell becomes U+FFFD: one strange name or note must not make
        a whole page unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from xml.sax.saxutils import escape

from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.vocabulary import ATOM, SCHEMA_INSTANCE, SERVICE_BUS

__all__ = ["FeedEntry", "element", "entry", "entry_text", "error", "escaped", "feed"]

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'
# XML 1.0 has no way to write these, not even escaped.
_UNSPEAKABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A bare carriage return would come back as a line feed.
_ENTITIES = {'"': "&quot;", "'": "&apos;", "\r": "&#13;"}


class FeedEntry(NamedTuple):
    """One thing that is told: a queue, a rule, the namespace."""

    href: str
    title: str
    kind: str
    """The name of the description's element."""
    content: str
    """What is inside that element, as XML."""
    created_at_ms: int = 0
    updated_at_ms: int = 0


def escaped(text: str) -> str:
    """The text as it may stand in an element or an attribute."""
    return escape(_UNSPEAKABLE.sub("\ufffd", text), _ENTITIES)


def element(name: str, content: str | None) -> str:
    """An element around XML that is ready; nothing at all for None."""
    return "" if content is None else f"<{name}>{content}</{name}>"


def entry(item: FeedEntry, author: str) -> bytes:
    """A document with one entry."""
    return f"{DECLARATION}{entry_text(item, author)}".encode()


def feed(
    title: str,
    href: str,
    next_href: str | None,
    entries: Iterable[str],
    *,
    now_ms: int,
) -> bytes:
    """A page of entries (entry_text); the second link leads to the next page."""
    links = [("self", href)] if next_href is None else [("self", href), ("next", next_href)]
    parts = [
        f'{DECLARATION}<feed xmlns="{ATOM}"><title type="text">{escaped(title)}</title>',
        element("id", escaped(href)),
        element("updated", time_text(now_ms)),
        *(f'<link rel="{rel}" href="{escaped(to)}"/>' for rel, to in links),
        *entries,
        "</feed>",
    ]
    return "".join(parts).encode()


def error(status: int, sentence: str) -> bytes:
    """The body of a refusal."""
    return f"<Error><Code>{status}</Code><Detail>{escaped(sentence)}</Detail></Error>".encode()


def entry_text(item: FeedEntry, author: str) -> str:
    """An entry as it stands in a feed."""
    href = escaped(item.href)
    return (
        f'<entry xmlns="{ATOM}"><id>{href}</id><title type="text">{escaped(item.title)}</title>'
        f"<published>{time_text(item.created_at_ms)}</published>"
        f"<updated>{time_text(item.updated_at_ms)}</updated>"
        f"<author><name>{escaped(author)}</name></author>"
        f'<link rel="self" href="{href}"/><content type="application/xml">'
        f'<{item.kind} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">'
        f"{item.content}</{item.kind}></content></entry>"
    )

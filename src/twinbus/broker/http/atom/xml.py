"""XML of the administration protocol: a bounded reader, a writer, and the spelling of values.

Entries, feeds and errors are written as text and not as a tree, because the official client wants
default namespaces and a page of a hundred entries should cost little.

Rule 1: document types, entities and external references are refused where they are declared.
Rule 2: deep or long documents are refused while they are read, not after a tree was built.
Rule 3: an element is known, in its namespace, and occurs at most once; a misspelt property is
        refused instead of replaced by the default.
Rule 4: a value has one reading, or is refused with a sentence that names its element.
Rule 5: the longest duration of .NET means "never", which is None here.
Rule 6: everything that a client sent goes through ``escaped``.
Rule 7: a character that XML cannot contain becomes U+FFFD: one unusual name must not make a whole
        page unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.sax.saxutils import escape

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import DefusedXMLParser  # type: ignore[import-untyped]

from twinbus.broker.engine.descriptions import DURATION_MS_MAX
from twinbus.broker.http.request_checks import HttpError
from twinbus.common.durations import NEVER, format_duration_us, parse_duration_us
from twinbus.errors import ConfigurationError

__all__ = [
    "ATOM",
    "COUNT_DETAILS",
    "SCHEMA",
    "SCHEMA_INSTANCE",
    "SCHEMA_PREFIX",
    "SERVICE_BUS",
    "FeedEntry",
    "children",
    "description_in",
    "duration_ms",
    "duration_text",
    "duration_us",
    "element",
    "entry",
    "entry_text",
    "error",
    "escaped",
    "feed",
    "flag",
    "flag_text",
    "is_empty",
    "items",
    "lifetime_ms",
    "lifetime_text",
    "local_name",
    "text_of",
    "time_text",
    "type_of",
    "whole_number",
]

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

# Names of types are written with this prefix, which the official client removes at the colon.
SCHEMA_PREFIX: Final = "d6p1"


# The deepest regular document is a rule's parameter: entry, content, description, filter,
# parameters, pair, value.
DEPTH_MAX: Final = 32
# A rule with all values that it may have is 400 elements. 64 KB could contain 16,000, and reading
# them would block all other clients for a tenth of a second.
ELEMENTS_MAX: Final = 2_000
# What an Atom entry may have beside its content; it is ignored.
_ENTRY_EXTRAS: Final = {
    "author",
    "category",
    "contributor",
    "id",
    "link",
    "published",
    "rights",
    "source",
    "summary",
    "title",
    "updated",
}
_NAME_SHOWN_LENGTH_MAX: Final = 60


class _BoundedBuilder(TreeBuilder):
    """Builds a tree of bounded depth and size."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._depth += 1
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise HttpError(400, f"The XML must have at most {ELEMENTS_MAX} elements.")
        if self._depth > DEPTH_MAX:
            raise HttpError(400, f"The XML must have at most {DEPTH_MAX} levels.")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def description_in(body: bytes, kinds: Collection[str]) -> Element:
    """The description inside an Atom entry; ``kinds`` are the names it may have."""
    root = _parsed(body)
    if root.tag != f"{{{ATOM}}}entry":
        raise HttpError(400, f"The body must be an entry in the namespace {ATOM}.")
    content = None
    for child in root:
        name = local_name(child, ATOM)
        if name == "content" and content is None:
            content = child
        elif name not in _ENTRY_EXTRAS:
            raise HttpError(
                400, f"The element {_shown(name)} is repeated or not allowed here. Remove it."
            )
    if content is None or len(content) != 1:
        raise HttpError(400, "The entry must have one content element with one description.")
    if local_name(content[0]) not in kinds:
        raise HttpError(400, f"The content must be a {' or a '.join(sorted(kinds))}.")
    return content[0]


def children(element: Element, known: Collection[str]) -> dict[str, Element]:
    """The children by name: known ones, once each."""
    found: dict[str, Element] = {}
    parent = local_name(element)
    for child in element:
        name = local_name(child)
        if name not in known:
            raise HttpError(
                400, f"The element {_shown(name)} is not allowed in {parent}. Check its spelling."
            )
        if name in found:
            raise HttpError(
                400, f"The element {name} occurs more than once in {parent}. Send it once."
            )
        found[name] = child
    return found


def items(element: Element, name: str) -> Iterator[Element]:
    """The children of a list, which all have the one name."""
    for child in element:
        if local_name(child) != name:
            raise HttpError(400, f"{local_name(element)} must contain only {name} elements.")
        yield child


def local_name(element: Element, namespace: str = SERVICE_BUS) -> str:
    """The element's name without its namespace, which must be the right one."""
    found, brace, name = str(element.tag).rpartition("}")
    if found + brace != f"{{{namespace}}}":
        raise HttpError(400, f"The element {_shown(name)} must be in the namespace {namespace}.")
    return name


def text_of(element: Element) -> str:
    """The text of an element that contains only text."""
    if len(element):
        raise HttpError(400, f"The element {_shown(local_name(element))} must contain only text.")
    return element.text or ""


def is_empty(element: Element) -> bool:
    """Whether the element is null or without content."""
    if element.get(f"{{{SCHEMA_INSTANCE}}}nil", "").strip().lower() in ("true", "1"):
        return True
    return not len(element) and not (element.text or "").strip()


def type_of(element: Element) -> str:
    """The element's declared type without its prefix; empty when it has none."""
    return element.get(f"{{{SCHEMA_INSTANCE}}}type", "").rpartition(":")[2].strip()


def _parsed(body: bytes) -> Element:
    parser = DefusedXMLParser(
        target=_BoundedBuilder(), forbid_dtd=True, forbid_entities=True, forbid_external=True
    )
    try:
        parser.feed(body)
        root: Element = parser.close()
    except DefusedXmlException:
        raise HttpError(400, "The XML must not have a document type or entities.") from None
    except (ParseError, LookupError, ValueError):
        # The parser's own message may repeat what was sent.
        raise HttpError(400, "The body is not well-formed XML. Send one Atom entry.") from None
    return root


def _shown(name: str) -> str:
    return ascii(name[:_NAME_SHOWN_LENGTH_MAX])


# What an error repeats of a value that it refuses.
VALUE_SHOWN_LENGTH_MAX: Final = 64

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What the service returns for a time that is not set.
_NO_TIME: Final = "0001-01-01T00:00:00Z"
# Until the end of year 9999, which calendars can still show.
_TIME_MS_MAX: Final = 253_402_300_799_999


def duration_us(text: str, name: str) -> int:
    """Microseconds of an ISO 8601 duration; what is finer is cut off."""
    total_us = parse_duration_us(text)
    if total_us is None:
        raise ConfigurationError(
            f"{name} must be an ISO 8601 duration, got {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Use days, hours, minutes and seconds, for example P1DT2H30M or PT30S",
        )
    return total_us


def duration_ms(text: str, name: str) -> int:
    """Milliseconds of a duration that .NET could hold too."""
    total_ms = duration_us(text, name) // 1_000
    # The official client rounds the longest duration up by less than a millisecond.
    if total_ms > DURATION_MS_MAX + 1:
        raise ConfigurationError(f"{name} must be at most {NEVER}", hint=f"Use {NEVER} for 'never'")
    return min(total_ms, DURATION_MS_MAX)


def duration_text(total_ms: int) -> str:
    """The shortest spelling of a duration in milliseconds."""
    return format_duration_us(total_ms * 1_000)


def lifetime_ms(text: str, name: str) -> int | None:
    """A duration that may be "never"."""
    total_ms = duration_ms(text, name)
    return None if total_ms >= DURATION_MS_MAX else total_ms


def lifetime_text(total_ms: int | None) -> str:
    return NEVER if total_ms is None else duration_text(total_ms)


def time_text(wall_ms: int) -> str:
    """A time in UTC; 0 is a time that is not set."""
    if not 0 < wall_ms <= _TIME_MS_MAX:
        return _NO_TIME
    moment = _EPOCH + timedelta(milliseconds=wall_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1_000:03}Z"


def whole_number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(
            f"{name} must be a whole number, got {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Use digits only",
        )
    return int(text)


def flag(text: str, name: str) -> bool:
    value = _FLAGS.get(text.lower())
    if value is None:
        raise ConfigurationError(
            f"{name} must be true or false, got {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Use true or false",
        )
    return value


def flag_text(value: bool) -> str:
    return "true" if value else "false"


DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'
# XML 1.0 has no way to write these, not even escaped.
_UNSPEAKABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A bare carriage return would come back as a line feed.
_ENTITIES = {'"': "&quot;", "'": "&apos;", "\r": "&#13;"}


class FeedEntry(NamedTuple):
    """One resource of a response: an entity, a rule or the namespace."""

    href: str
    title: str
    kind: str
    """The name of the description's element."""
    content: str
    """What is inside that element, as XML."""
    created_at_ms: int = 0
    updated_at_ms: int = 0


def escaped(text: str) -> str:
    """The text, escaped for an element or an attribute."""
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
    """The body of an error."""
    return f"<Error><Code>{status}</Code><Detail>{escaped(sentence)}</Detail></Error>".encode()


def entry_text(item: FeedEntry, author: str) -> str:
    """An entry of a feed."""
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

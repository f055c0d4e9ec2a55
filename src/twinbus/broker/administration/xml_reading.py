"""XML from a client, read within bounds.

Rule 1: no document type, no entities, nothing from outside: refused where they are declared.
Rule 2: deep or long documents are refused while they are read, not after a tree was built.
Rule 3: an element stands in the namespace it belongs to, at most once, and is known; a client
        that misspells a property is told so instead of getting the default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import DefusedXMLParser  # type: ignore[import-untyped]

from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.vocabulary import ATOM, SCHEMA_INSTANCE, SERVICE_BUS

__all__ = ["children", "description_in", "is_empty", "items", "local_name", "text_of", "type_of"]

# The deepest honest document is a rule's parameter: entry, content, description, filter,
# parameters, pair, value.
DEPTH_MAX: Final = 32
# A rule with all values that it may have is 400 elements. 64 KB could hold 16,000, whose reading
# would stop everybody else for a tenth of a second.
ELEMENTS_MAX: Final = 2_000
# What an Atom entry may have beside its content; it is for people and passes unread.
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
    """Builds a tree that can be neither deep nor wide."""

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
            raise HttpError(
                400, f"The XML is nested deeper than the {DEPTH_MAX} levels it may have."
            )
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
            raise HttpError(400, f"The entry has {_shown(name)} twice or must not have it at all.")
    if content is None or len(content) != 1:
        raise HttpError(400, "The entry must have one content with one description in it.")
    if local_name(content[0]) not in kinds:
        raise HttpError(400, f"The content must be a {' or a '.join(sorted(kinds))} here.")
    return content[0]


def children(element: Element, known: Collection[str]) -> dict[str, Element]:
    """The children by name: known ones, once each."""
    found: dict[str, Element] = {}
    parent = local_name(element)
    for child in element:
        name = local_name(child)
        if name not in known:
            raise HttpError(400, f"A {parent} has no {_shown(name)}. Check its spelling.")
        if name in found:
            raise HttpError(400, f"The {parent} has {name} twice. Say it once.")
        found[name] = child
    return found


def items(element: Element, name: str) -> Iterator[Element]:
    """The children of a list, which all have the one name."""
    for child in element:
        if local_name(child) != name:
            raise HttpError(400, f"{local_name(element)} must hold {name} elements only.")
        yield child


def local_name(element: Element, namespace: str = SERVICE_BUS) -> str:
    """The element's name without its namespace, which must be the right one."""
    found, brace, name = str(element.tag).rpartition("}")
    if found + brace != f"{{{namespace}}}":
        raise HttpError(400, f"The element {_shown(name)} must be in the namespace {namespace}.")
    return name


def text_of(element: Element) -> str:
    """The text of an element that has nothing else."""
    if len(element):
        raise HttpError(400, f"The element {_shown(local_name(element))} must hold text only.")
    return element.text or ""


def is_empty(element: Element) -> bool:
    """Whether the element says nothing: null, or without content."""
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
        # The parser's own words may repeat what was sent.
        raise HttpError(400, "The body is not well-formed XML. Send one Atom entry.") from None
    return root


def _shown(name: str) -> str:
    return ascii(name[:_NAME_SHOWN_LENGTH_MAX])

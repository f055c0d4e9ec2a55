"""An entity's description as it was told, with a few things changed: what an update sends.

Rule 1: an update replaces the whole description, so whatever was told goes back as it was, also
        what is not understood here. Only what the service counts by itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from twinbus.drivers.management.atom import SERVICE_BUS

__all__ = ["AccessRule", "access_rules_in", "changed_xml", "set_key", "set_status"]

_CONNECT: Final = f"{{{SERVICE_BUS}}}"
_COUNTED: Final = (
    "SizeInBytes",
    "MessageCount",
    "CountDetails",
    "SubscriptionCount",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
)
_KEYS: Final = {"primary": "PrimaryKey", "secondary": "SecondaryKey"}


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An access rule of one entity. Its keys are in no repr."""

    name: str
    rights: tuple[str, ...]
    primary_key: str
    secondary_key: str

    def __repr__(self) -> str:
        return f"AccessRule({self.name!r}, {self.rights!r})"


def changed_xml(described: Element) -> bytes:
    """The body of a request that updates the entity to this description."""
    for name in _COUNTED:
        for each in described.findall(_CONNECT + name):
            described.remove(each)
    entry = Element("{http://www.w3.org/2005/Atom}entry")
    content = SubElement(entry, "{http://www.w3.org/2005/Atom}content", type="application/xml")
    content.append(described)
    written: bytes = tostring(entry, encoding="utf-8", xml_declaration=True)
    return written


def set_status(described: Element, status: str) -> None:
    """The status must be there: its place in the order matters, and every service tells it."""
    found = described.find(_CONNECT + "Status")
    if found is not None:
        found.text = status


def access_rules_in(described: Element) -> list[AccessRule]:
    return [
        AccessRule(
            _text(rule, "KeyName"),
            tuple((each.text or "").strip() for each in rule.iter(_CONNECT + "AccessRights")),
            _text(rule, "PrimaryKey"),
            _text(rule, "SecondaryKey"),
        )
        for rule in _rules(described)
    ]


def set_key(described: Element, rule_name: str, which: str, key: str) -> bool:
    """Give a rule another key; False when there is no such rule."""
    for rule in _rules(described):
        if _text(rule, "KeyName").lower() == rule_name.lower():
            found = rule.find(_CONNECT + _KEYS[which])
            if found is not None:
                found.text = key
                return True
    return False


def _rules(described: Element) -> Iterator[Element]:
    return described.iterfind(f"{_CONNECT}AuthorizationRules/{_CONNECT}AuthorizationRule")


def _text(rule: Element, name: str) -> str:
    return (rule.findtext(_CONNECT + name) or "").strip()

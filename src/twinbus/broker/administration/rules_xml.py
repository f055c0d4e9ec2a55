"""Access rules as elements of an entity's description.

Rule 1: a rule that comes without a key keeps the key that it has; a new one gets a fresh key.
        Whoever changes a key through an update sends the new one.
Rule 2: only shared access rules exist here.
"""

from __future__ import annotations

import secrets
from typing import Final
from xml.etree.ElementTree import Element

from twinbus.broker.access.claims import AuthorizationRule, Claim, RuleSet, new_key
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.xml_reading import children, items, text_of, type_of
from twinbus.broker.administration.xml_writing import element, escaped

__all__ = ["read_rules", "rules_text"]

RULE_TYPE: Final = "SharedAccessAuthorizationRule"
_ELEMENTS: Final = (
    "ClaimType",
    "ClaimValue",
    "Rights",
    "CreatedTime",
    "ModifiedTime",
    "KeyName",
    "PrimaryKey",
    "SecondaryKey",
)


def read_rules(parent: Element, known: RuleSet) -> RuleSet:
    """The rules in ``AuthorizationRules``; ``known`` are those that the entity has now."""
    return RuleSet(tuple(_read_rule(each, known) for each in items(parent, "AuthorizationRule")))


def rules_text(rules: RuleSet, changed_at_ms: int) -> str:
    """The rules with their keys: for holders of Manage."""
    return "".join(_rule_text(rule, time_text(changed_at_ms)) for rule in rules)


def _read_rule(rule: Element, known: RuleSet) -> AuthorizationRule:
    if type_of(rule) not in ("", RULE_TYPE):
        raise HttpError(400, f"An access rule must have the type {RULE_TYPE}.")
    found = children(rule, _ELEMENTS)
    texts = {name: text_of(each).strip() for name, each in found.items() if name != "Rights"}
    name = texts.get("KeyName", "")
    before = known.find(name)
    keys = ("", "") if before is None else before.keys
    return AuthorizationRule(
        name,
        _claims(found.get("Rights")),
        texts.get("PrimaryKey") or keys[0] or new_key(secrets.token_bytes),
        texts.get("SecondaryKey") or keys[1] or new_key(secrets.token_bytes),
    )


def _claims(rights: Element | None) -> Claim:
    if rights is None:
        return Claim(0)
    return Claim.from_names(text_of(each).strip() for each in items(rights, "AccessRights"))


def _rule_text(rule: AuthorizationRule, time: str) -> str:
    rights = "".join(element("AccessRights", name) for name in rule.claims.names())
    return (
        f'<AuthorizationRule i:type="{RULE_TYPE}">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"{element('Rights', rights)}<CreatedTime>{time}</CreatedTime>"
        f"<ModifiedTime>{time}</ModifiedTime>{element('KeyName', escaped(rule.name))}"
        f"{element('PrimaryKey', escaped(rule.primary_key))}"
        f"{element('SecondaryKey', escaped(rule.secondary_key))}</AuthorizationRule>"
    )

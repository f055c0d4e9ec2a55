"""The access rules of the namespaces, kept between runs in a file that only its owner can read.

A namespace starts with one rule, RootManageSharedAccessKey, as it does in Azure. SAS needs the
keys themselves, so they are stored as they are: protect the data directory like a password.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from twinbus.broker.access.claims import AuthorizationRule, Claim, RuleSet
from twinbus.broker.store.datadir import read_private, write_private
from twinbus.errors import ConfigurationError

ROOT_RULE = "RootManageSharedAccessKey"
FILE_NAME = "keys.json"


class KeyRing:
    """The rules of every namespace; without a directory they live as long as the process."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / FILE_NAME
        self._rules: dict[str, RuleSet] = {}
        if self._path is not None:
            content = read_private(self._path)
            if content is not None:
                self._rules = parse_keys(content, self._path)

    def rules_of(self, namespace: str) -> RuleSet:
        """The rules of a namespace; a new one gets the root rule with fresh keys."""
        known = self._rules.get(namespace)
        if known is not None:
            return known
        root = AuthorizationRule.generate(ROOT_RULE, Claim.all(), secrets.token_bytes)
        self.replace(namespace, RuleSet((root,)))
        return self._rules[namespace]

    def replace(self, namespace: str, rules: RuleSet) -> None:
        """Keep changed rules; they are on disk when this returns."""
        changed = {**self._rules, namespace: rules}
        if self._path is not None:
            write_private(self._path, _format(changed))
        self._rules = changed


def _format(rules: dict[str, RuleSet]) -> bytes:
    stored: dict[str, Any] = {
        name: [
            {
                "name": rule.name,
                "claims": rule.claims.names(),
                "primary_key": rule.primary_key,
                "secondary_key": rule.secondary_key,
            }
            for rule in rule_set
        ]
        for name, rule_set in rules.items()
    }
    return json.dumps({"version": 1, "namespaces": stored}, indent=1).encode()


def parse_keys(content: bytes, path: Path) -> dict[str, RuleSet]:
    """The rules in a key file; ConfigurationError if it is damaged."""
    try:
        namespaces = json.loads(content)["namespaces"]
        return {
            name: RuleSet(
                tuple(
                    AuthorizationRule(
                        rule["name"],
                        Claim.from_names(rule["claims"]),
                        rule["primary_key"],
                        rule["secondary_key"],
                    )
                    for rule in rules
                )
            )
            for name, rules in namespaces.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # No "from": the original error may quote a key.
        raise ConfigurationError(
            f"The key file {path.name!r} is damaged",
            hint="Restore it from a copy, or delete it to have new keys made",
        ) from None

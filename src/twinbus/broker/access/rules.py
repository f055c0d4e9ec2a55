"""Access rules: a name, claims and two keys, for a namespace or for one entity.

Rule 1: Manage includes Send and Listen, and a rule with Manage must list all three, so that
        what it allows is visible.
Rule 2: a RuleSet never changes; every change returns a new one for the caller to store.
Rule 3: both keys allow the same. One is regenerated while clients still use the other.
"""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from twinbus.errors import ConfigurationError

__all__ = ["AuthorizationRule", "Claim", "RandomBytes", "RuleSet", "WhichKey"]

# The limits that Azure Service Bus documents: rules per entity, and letters in a rule's name.
RULES_MAX: Final = 12
RULE_NAME_LENGTH_MAX: Final = 50
# 256 bits, the block that HMAC-SHA256 can use best; as base64 that is Azure's 44 characters.
KEY_SIZE_BYTES: Final = 32
KEY_LENGTH_MAX: Final = 256

RandomBytes = Callable[[int], bytes]
"""Returns that many unpredictable bytes: ``secrets.token_bytes`` in production."""
WhichKey = Literal["primary", "secondary"]

_RULE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
# What fits into a connection string and a log line: no spaces, no ';', no control characters.
_KEY = re.compile(r"[!-:<-~]+", re.ASCII)


class Claim(enum.Flag):
    """What a rule allows."""

    SEND = enum.auto()
    LISTEN = enum.auto()
    MANAGE = enum.auto()

    @classmethod
    def all(cls) -> Claim:
        return cls.SEND | cls.LISTEN | cls.MANAGE

    @classmethod
    def from_names(cls, names: Iterable[str]) -> Claim:
        """Read ``["Send", "Listen"]``; letter case does not matter."""
        claims = cls(0)
        for name in names:
            try:
                claims |= cls[name.upper()]
            except KeyError:
                raise ConfigurationError(
                    f"Unknown claim: {name[:20]!a}", hint="Use Send, Listen or Manage"
                ) from None
        return claims

    def names(self) -> list[str]:
        """The claims as Azure spells them, in one fixed order."""
        return [claim.name.capitalize() for claim in Claim if claim in self and claim.name]


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """One named pair of keys and what they allow."""

    name: str
    claims: Claim
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)

    def __post_init__(self) -> None:
        check_rule_name(self.name)
        if not self.claims:
            raise ConfigurationError(
                f"Access rule {self.name!r} has no claim", hint="Add Send, Listen or Manage"
            )
        if Claim.MANAGE in self.claims and self.claims != Claim.all():
            raise ConfigurationError(
                f"Access rule {self.name!r} has the Manage claim without Send and Listen",
                hint="Add Send and Listen, or remove Manage",
            )
        for key in (self.primary_key, self.secondary_key):
            if len(key) > KEY_LENGTH_MAX or not _KEY.fullmatch(key):
                raise ConfigurationError(
                    f"A key of access rule {self.name!r} is empty, longer than {KEY_LENGTH_MAX} "
                    "characters, or contains an invalid character",
                    hint="Use 32 random bytes in base64",
                )

    @classmethod
    def generate(cls, name: str, claims: Claim, random_bytes: RandomBytes) -> AuthorizationRule:
        """A rule with two fresh keys."""
        return cls(name, claims, new_key(random_bytes), new_key(random_bytes))

    @property
    def keys(self) -> tuple[str, str]:
        return self.primary_key, self.secondary_key

    def with_new_key(self, which: WhichKey, random_bytes: RandomBytes) -> AuthorizationRule:
        """The same rule after one of its keys was regenerated."""
        if which == "primary":
            return replace(self, primary_key=new_key(random_bytes))
        return replace(self, secondary_key=new_key(random_bytes))


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one namespace or of one entity."""

    rules: tuple[AuthorizationRule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rules) > RULES_MAX:
            raise ConfigurationError(
                f"{len(self.rules)} access rules exceed the maximum of {RULES_MAX}",
                hint="Remove an access rule first",
            )
        names = [rule.name.lower() for rule in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"Duplicate access rule name: {name!r}", hint="Choose another name"
                )

    def __iter__(self) -> Iterator[AuthorizationRule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def find(self, name: str) -> AuthorizationRule | None:
        return next((rule for rule in self.rules if rule.name == name), None)

    def with_rule(self, rule: AuthorizationRule) -> RuleSet:
        """The set with one more rule; a name that exists is refused."""
        return RuleSet((*self.rules, rule))

    def without(self, name: str) -> RuleSet:
        self._expect(name)
        return RuleSet(tuple(rule for rule in self.rules if rule.name != name))

    def with_new_key(self, name: str, which: WhichKey, random_bytes: RandomBytes) -> RuleSet:
        """The set after one key of one rule was regenerated."""
        renewed = self._expect(name).with_new_key(which, random_bytes)
        return RuleSet(tuple(renewed if rule.name == name else rule for rule in self.rules))

    def _expect(self, name: str) -> AuthorizationRule:
        rule = self.find(name)
        if rule is None:
            raise ConfigurationError(
                f"Access rule {name[:60]!a} not found", hint="List the access rules first"
            )
        return rule


def check_rule_name(name: str) -> None:
    """Refuse what does not fit into a connection string, a token or a log line."""
    if len(name) > RULE_NAME_LENGTH_MAX or not _RULE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"Invalid access rule name: {name[:60]!a}",
            hint=f"Use up to {RULE_NAME_LENGTH_MAX} letters, digits, '.', '-' and '_'; start and "
            "end with a letter or a digit",
        )


def new_key(random_bytes: RandomBytes) -> str:
    return base64.b64encode(random_bytes(KEY_SIZE_BYTES)).decode("ascii")

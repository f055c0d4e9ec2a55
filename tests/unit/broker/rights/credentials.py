"""The rules of the matrix, with their keys, and every token that is made with them.

claim   none, Send, Listen, Send and Listen, Manage; expired, wrong key, deleted rule
scope   the namespace, or an entity
path    what the token is made out to, in every relation to the scope
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.unit.broker.rights.addresses import RESOURCES
from tests.unit.broker.rights.oracle import Credential
from twinbus.common.sas_token import make_token

__all__ = ["CLAIMS", "DELETED", "SCOPES", "Shown", "credentials", "key_of", "shown"]

CLAIMS: Final[dict[str, frozenset[str]]] = {
    "sender": frozenset({"Send"}),
    "listener": frozenset({"Listen"}),
    "worker": frozenset({"Send", "Listen"}),
    "owner": frozenset({"Send", "Listen", "Manage"}),
}
"""By the names of the rules; every scope has them all."""
DELETED: Final = "deleted"
"""The name of a rule with every claim that every scope had once."""
SCOPES: Final = ("tenant", "news", "tenant/private", "tenant2", "other", "")
LIFE_S: Final = 3_600

# Which resources are tried with the rules of a scope; those of the namespace are tried with all.
_TRIED: Final = {
    "tenant": (
        *("", "tenant", "Tenant/", "tenant/private", "tenant/x-servicebus-transfer/0"),
        *("tenant/$deadletterqueue", "tenant/$management", "tenant/subscriptions/s", "tenant2"),
    ),
    "tenant/private": ("", "tenant", "tenant/private"),
    "tenant2": ("tenant", "tenant2"),
    "other": ("", "other", "tenant"),
    "news": (
        *("", "news", "news/subscriptions/s", "news/subscriptions", "news/private"),
        "news/subscriptions/s/rules/r",
    ),
}


@dataclass(frozen=True)
class Shown:
    """A token as it is shown, with what is known about it."""

    credential: Credential
    rule: str
    key: str
    resource: str
    expires_s: int

    def token(self, port: int) -> str:
        return make_token(
            resource=f"sb://localhost:{port}/{self.resource}",
            rule_name=self.rule,
            key=self.key,
            expires_s=self.expires_s,
        )


def key_of(scope: str, rule: str, which: str = "primary") -> str:
    """A key that nobody guesses and everybody here knows."""
    return hashlib.sha256(f"{scope} {rule} {which}".encode()).hexdigest()[:44]


def shown(scope: str, rule: str, resource: str, fault: str = "") -> Shown:
    """A token of a rule for a resource; with a fault it is worth nothing."""
    key = key_of(scope, rule)
    life_s = LIFE_S
    if fault == "wrong key":
        key = key_of(scope, rule, "wrong")
    elif fault == "expired":
        life_s = -10
    claims = CLAIMS.get(rule, CLAIMS["owner"])
    is_good = not fault and rule != DELETED
    label = f"{fault or 'good'} token of {rule} on {scope or 'the namespace'!r} for {resource!r}"
    credential = Credential(label, claims, scope, RESOURCES[resource], is_good)
    return Shown(credential, rule, key, resource, int(time.time()) + life_s)


def credentials() -> Iterator[Shown]:
    """Every token of the matrix."""
    for scope in SCOPES:
        tried = _TRIED.get(scope, tuple(RESOURCES))
        for resource in tried:
            for rule in CLAIMS:
                yield shown(scope, rule, resource)
        best = scope if scope in RESOURCES else tried[0]
        for fault in ("wrong key", "expired"):
            yield shown(scope, "owner", best, fault)
        yield shown(scope, DELETED, best)

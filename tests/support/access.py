"""Connection strings with fewer claims than the root rule has."""

from __future__ import annotations

import os

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.testing.namespaces import NamespaceFixture


def connection_string_with(bus: NamespaceFixture, claims: Claim, *, name: str = "app") -> str:
    """That of a new access rule of the namespace with just these claims."""

    def add() -> str:
        bus._namespace.add_rule(name, claims)
        return bus._namespace.connection_string_for(name)

    return bus._thread.run_function(add)


def entity_rule(claims: Claim, *, name: str = "app") -> RuleSet:
    """Access rules for one entity, with one of these claims."""
    return RuleSet([AuthorizationRule.generate(name, claims, os.urandom)])


def connection_string_of(
    bus: NamespaceFixture, queue: str, *, name: str = "app", for_it_alone: bool = False
) -> str:
    """That of an access rule of the queue or topic itself."""
    text = bus._thread.run_function(lambda: bus._namespace.connection_string_for(name, queue))
    return f"{text}EntityPath={queue};" if for_it_alone else text

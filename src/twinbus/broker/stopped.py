"""A namespace that was stopped while the broker runs on (rule M9).

Its store is closed and its port is free. All that is left is what is needed to start it again
and to know who may do that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.broker.access.claims import RuleSet
from twinbus.broker.access.sas import Audience
from twinbus.clock import Clock, Instant

if TYPE_CHECKING:
    from twinbus.broker.broker import NamespaceSpec


@dataclass(frozen=True, slots=True)
class StoppedNamespace:
    """What remains of it."""

    spec: NamespaceSpec
    """With the port it had, so that clients find it again."""
    rules: RuleSet
    audience: Audience
    clock: Clock

    @property
    def access(self) -> StoppedNamespace:
        """What the HTTP side needs to check tokens: the same as of one that runs."""
        return self

    def now(self) -> Instant:
        return self.clock.now()

    def rules_for(self, path: str) -> RuleSet | None:
        """The rules of the namespace; those of its entities are on disk."""
        return None if path else self.rules

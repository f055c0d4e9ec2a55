"""Connection strings with fewer claims than the root rule has."""

from __future__ import annotations

from twinbus.broker.access.claims import Claim
from twinbus.testing.bus import Bus


def connection_string_with(bus: Bus, claims: Claim, *, name: str = "app") -> str:
    """That of a new access rule of the namespace with just these claims."""

    def add() -> str:
        bus._namespace.add_rule(name, claims)
        return bus._namespace.connection_string_for(name)

    return bus._thread.call_now(add)

"""What one connection has been granted so far, and whether that opens a given door.

Rule 1: without a grant nothing is allowed.
Rule 2: grants add up. A link stays open as long as any grant covers it.
Rule 3: bounded: a peer that puts token after token pushes its own oldest ones out.
Rule 4: a question costs as much as the path has segments, however many grants there are: a peer
        may have a thousand of them and a thousand links, and all links are asked about at once.
"""

from __future__ import annotations

from typing import Final

from twinbus.broker.access.claims import Claim
from twinbus.broker.access.sas import AccessGrant, RuleLookup, is_backed

__all__ = ["Grants"]

# One token for each link that a connection may have; more is a flood, not an application.
GRANTS_PER_CONNECTION_MAX: Final = 1_024


class Grants:
    """The grants of one connection."""

    __slots__ = ("_by_segments", "_grants")

    def __init__(self) -> None:
        self._grants: dict[tuple[object, ...], AccessGrant] = {}
        self._by_segments: dict[tuple[str, ...], dict[tuple[object, ...], AccessGrant]] = {}
        """The same by the path that each is made out to; few are made out to one path."""

    def __len__(self) -> int:
        return len(self._grants)

    def add(self, grant: AccessGrant, *, now_s: float) -> None:
        """Keep a grant; a renewed one takes the place of the one it renews."""
        key = (grant.segments, grant.scope, grant.rule_name, grant.key_fingerprint)
        self._grants.pop(key, None)
        self._grants[key] = self._by_segments.setdefault(grant.segments, {})[key] = grant
        if len(self._grants) > GRANTS_PER_CONNECTION_MAX:
            self._make_room(now_s)

    def allows(self, entity_path: str, claim: Claim, *, now_s: float) -> bool:
        """Whether the canonical path (an Address's ``path``) is open for all of ``claim``."""
        return self.allowed_until_s(entity_path, claim, now_s=now_s) is not None

    def allowed_until_s(self, entity_path: str, claim: Claim, *, now_s: float) -> int | None:
        """When the last grant that covers this ends; None when none does now."""
        segments = tuple(entity_path.split("/"))
        ends = [
            grant.expires_s
            for length in range(len(segments) + 1)
            for grant in self._by_segments.get(segments[:length], _NONE).values()
            if grant.expires_s > now_s and claim in grant.claims and grant.covers(segments)
        ]
        return max(ends, default=None)

    def last_until_s(self, *, now_s: float) -> int | None:
        """When the last of the grants ends; None when all have ended, which are then forgotten."""
        ends = [grant.expires_s for grant in self._grants.values() if grant.expires_s > now_s]
        if not ends:
            self._grants.clear()
            self._by_segments.clear()
        return max(ends, default=None)

    def drop_unbacked(self, rules: RuleLookup) -> bool:
        """Forget what was signed with a key or a rule that is gone; say whether there was any."""
        # A thousand grants are of a few keys, and to compare a key is a digest.
        backed: dict[tuple[object, ...], bool] = {}
        unbacked = []
        for key, grant in self._grants.items():
            signer = (grant.scope, grant.rule_name, grant.key_fingerprint, grant.claims)
            if signer not in backed:
                backed[signer] = is_backed(grant, rules)
            if not backed[signer]:
                unbacked.append(key)
        for key in unbacked:
            self._drop(key)
        return bool(unbacked)

    def _make_room(self, now_s: float) -> None:
        for key in [key for key, grant in self._grants.items() if grant.expires_s <= now_s]:
            self._drop(key)
        while len(self._grants) > GRANTS_PER_CONNECTION_MAX:
            self._drop(next(iter(self._grants)))

    def _drop(self, key: tuple[object, ...]) -> None:
        grant = self._grants.pop(key)
        same_path = self._by_segments[grant.segments]
        del same_path[key]
        if not same_path:
            del self._by_segments[grant.segments]


_NONE: Final[dict[tuple[object, ...], AccessGrant]] = {}

"""Who may do what, as rules M6 and M14 say it, and nothing else.

It is the other opinion in the matrix of rights, so it imports nothing of the broker: what an
address means is written down by hand where the address is (addresses.py), and what a token is
worth is known to whoever made it (credentials.py).

Rule 1 (M6): a rule claims Send, Listen or Manage; Manage includes the other two.
Rule 2 (M14): a rule of the namespace covers everything. A rule of a queue or topic covers that
        entity, its subscriptions, their and its dead letters and ``$management``.
Rule 3: a token is good for the path it is made out to and what is below it, by whole segments, and
        is worth nothing if its rule does not cover that path.
Rule 4 (M14): an entity may forward to where its administrator may send.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "NAMESPACE",
    "Credential",
    "Place",
    "may",
    "may_administer",
    "may_forward",
    "may_use_session",
]


@dataclass(frozen=True)
class Place:
    """What an address means."""

    owner: str
    """The queue or topic that it belongs to; empty for the namespace."""
    path: str
    """Its one spelling; ``$management`` is asked with the right to its entity."""


NAMESPACE = Place("", "")


@dataclass(frozen=True)
class Credential:
    """A token, and what its maker knows about it."""

    label: str
    claims: frozenset[str]
    scope: str
    """Where its rule stands: empty for the namespace, otherwise a queue or topic."""
    resource: Place | None
    """What it is made out to; None when that is no address."""
    is_good: bool = True
    """Signed with a key that stands, and in time."""


def may(who: Credential, claim: str, place: Place | None) -> bool:
    """Whether a connection or request with this token may do what needs the claim at a place."""
    if place is None or not _is_taken(who) or who.resource is None:
        return False
    covered = who.scope in ("", place.owner) and _is_within(place.path, who.resource.path)
    return covered and (claim in who.claims or "Manage" in who.claims)


def may_administer(who: Credential) -> bool:
    """Whether all of the namespace is the holder's to administer, as the JSON routes ask for."""
    return may(who, "Manage", NAMESPACE)


def may_forward(
    who: Credential,
    source: Place,
    target: Place,
    *,
    proof: Credential | None,
    is_unchanged: bool,
) -> bool:
    """Whether a source may be told to forward; ``proof`` is a token for the target."""
    may_send = may(who, "Send", target) or (proof is not None and may(proof, "Send", target))
    return may(who, "Manage", source) and (is_unchanged or may_send)


def may_use_session(who: Credential, place: Place, *, holds_session: bool) -> bool:
    """Whether a connection may do something with a session's lock, state or locked messages."""
    return holds_session and may(who, "Listen", place)


def _is_taken(who: Credential) -> bool:
    if not who.is_good or who.resource is None:
        return False
    return who.scope == "" or who.scope == who.resource.owner


def _is_within(path: str, prefix: str) -> bool:
    return prefix == "" or path == prefix or path.startswith(f"{prefix}/")

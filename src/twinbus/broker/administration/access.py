"""Whose token opens what, over HTTP.

Rule 1: the port in the audience is the socket's own; the Host header is the caller's word.
Rule 2: an unknown key name and a wrong signature get the same answer (see access/sas.py).
Rule 3: a token is looked at before the body is read, and its rule once more afterwards: a body may
        take its time, and its sender may have lost the right meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from starlette.requests import Request

from twinbus.broker.access.claims import Claim, RuleSet
from twinbus.broker.access.sas import AccessGrant, Audience, is_backed, parse_token, verify
from twinbus.broker.administration.requests import host_name_of
from twinbus.clock import Instant
from twinbus.errors import AccessDenied

__all__ = [
    "SLOT",
    "TokenAudience",
    "audience_of",
    "check_still_granted",
    "grant_in",
    "grant_of",
    "may_manage",
]

# With a ready-made signature the stock client writes this word before it.
_BEARER: Final = "Bearer "
SLOT: Final = "twinbus.slot"
"""The name under which a request's scope has the slot of its connection."""
_SIGNATURE: Final = "SharedAccessSignature "


class TokenAudience(Protocol):
    """What a token is shown to: a namespace, or what is left of one that was stopped."""

    @property
    def audience(self) -> Audience: ...

    def rules_for(self, path: str, /) -> RuleSet | None: ...

    def now(self) -> Instant: ...


def grant_of(request: Request, namespace: TokenAudience) -> AccessGrant:
    """What the request's token grants; raises AccessDenied."""
    shown = request.headers.get("authorization", "")
    if not shown:
        raise AccessDenied(
            "the request has no Authorization", hint="Make the client from a connection string"
        )
    grant = grant_in(shown, namespace, audience_of(request, namespace))
    slot = request.scope.get("state", {}).get(SLOT)
    if slot is not None:
        # Its connection is no stranger's any more (connection_slots.py).
        slot.authenticate((grant.scope, grant.rule_name))
    return grant


def grant_in(shown: str, namespace: TokenAudience, audience: Audience) -> AccessGrant:
    """What the token in a header grants; raises AccessDenied."""
    if shown.startswith(_BEARER):
        shown = shown[len(_BEARER) :]
        if not shown.startswith(_SIGNATURE):
            raise AccessDenied(
                "tokens of an identity provider are not understood here",
                hint="Make the client from a connection string with a shared access key",
            )
    return verify(
        parse_token(shown),
        audience=audience,
        rules=namespace.rules_for,
        now_s=namespace.now().wall_ms / 1000,
    )


def check_still_granted(grant: AccessGrant, namespace: TokenAudience) -> None:
    """Raise AccessDenied when the rule, its key or the token ended while a body was read."""
    is_over = grant.expires_s <= namespace.now().wall_ms / 1000
    if is_over or not is_backed(grant, namespace.rules_for):
        raise AccessDenied(
            "the token's rule or key ended before the request was complete",
            hint="Send the request again with a token that is good",
        )


def audience_of(request: Request, namespace: TokenAudience) -> Audience:
    """The names and the port under which the caller reached the namespace."""
    port = request.scope["server"][1]
    return replace(namespace.audience, port=port).known_as(host_name_of(request))


def may_manage(grant: AccessGrant, segments: tuple[str, ...]) -> bool:
    return Claim.MANAGE in grant.claims and grant.covers(segments)

"""Who may let an entity forward its messages: whoever may send to where they go.

Forwarding sends in its owner's name and goes on after the caller has left, so the right is asked
for when the forward is set.

Rule 1: a forward that is new or leads elsewhere needs Send on its target, from the caller's own
        token or from one that comes along in the header of that forward, as the stock clients
        write them.
Rule 2: a forward that stays as it is needs no proof: who keeps it has sent nothing anywhere.
Rule 3: the target is compared in its canonical form, in which it is stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starlette.requests import Request

from twinbus.broker.access.rules import Claim
from twinbus.broker.access.sas import AccessGrant, Audience
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.http.request_checks import TokenAudience, audience_of, grant_in
from twinbus.errors import AccessDenied

__all__ = ["PROOFS", "check_forwards"]

PROOFS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}
"""The header with a token for the target of each kind of forward."""


def check_forwards(
    request: Request,
    namespace: TokenAudience,
    caller: AccessGrant,
    before: QueueDescription | None,
    after: QueueDescription,
) -> None:
    """Raise AccessDenied unless the caller may send wherever the entity is to forward to."""
    for name, header in PROOFS.items():
        target: str | None = getattr(after, name)
        if target is None or (before is not None and getattr(before, name) == target):
            continue
        if not (_may_send(caller, target) or _is_proven(request, namespace, header, target)):
            raise AccessDenied(
                f"The property {name} requires the Send claim on {target!r}",
                hint=f"Send a token for it in the header {header}, or use a key that covers both",
            )


def _may_send(grant: AccessGrant, path: str) -> bool:
    return Claim.SEND in grant.claims and grant.covers(tuple(path.split("/")))


def _is_proven(request: Request, namespace: TokenAudience, header: str, target: str) -> bool:
    shown = request.headers.get(header)
    if not shown:
        return False
    try:
        grant = grant_in(shown, namespace, _audience(request, namespace))
    except AccessDenied:
        # It is said what is missing, whatever is wrong with what was shown.
        return False
    return _may_send(grant, target)


def _audience(request: Request, namespace: TokenAudience) -> Audience:
    """A client makes the token out to the URL of the target, which may name any of our ports."""
    here = audience_of(request, namespace)
    return replace(here, other_ports=here.other_ports | {namespace.audience.port})

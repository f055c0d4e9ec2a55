"""Whether a client may set a forward: it needs the Send claim on the target.

A forward sends messages as long as it exists, also when the client that set it is gone, so the
claim is checked when the forward is set.

Rule 1: a forward that is new or has another target requires Send on its target, by the client's
        own token or by one in the header of that forward, as the official clients write them.
Rule 2: a forward that does not change requires no claim.
Rule 3: the target is compared in its canonical form, in which it is stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starlette.requests import Request

from twinbus.broker.access.rules import Claim
from twinbus.broker.access.sas import AccessGrant, Audience
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.http.request_checks import TokenAudience, audience_of, verify_header
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
    """Raise AccessDenied unless the client may send to all targets of the entity."""
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
        grant = verify_header(shown, namespace, _audience(request, namespace))
    except AccessDenied:
        # The error names the missing claim, whatever is wrong with this token.
        return False
    return _may_send(grant, target)


def _audience(request: Request, namespace: TokenAudience) -> Audience:
    """A client signs the token for the URL of the target, which may have any of our ports."""
    here = audience_of(request, namespace)
    return replace(here, other_ports=here.other_ports | {namespace.audience.port})

"""The tokens of a connection: the $cbs node, what they grant, and when they expire.

A client sends a token to the ``$cbs`` node, and its connection gets the claims of the token. The
SDK uses the type "jwt" for shared access signatures too, so the prefix of the token decides; a type
that no SDK uses for one is refused.

Rule 1: nothing is granted before a valid token was sent, and nothing longer than it is valid.
Rule 2: the links are checked when the first of them may have lost its token. If that token was
        renewed meanwhile, one check is superfluous, but no check is ever too late.
Rule 3: a connection whose last token has expired, or lost its rule or key, is unauthenticated
        again: it has the usual time to send another token, and is closed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from twinbus.amqp.codec.types import Int
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.rules import Claim
from twinbus.broker.access.sas import AccessGrant, Audience, Grants, parse_token, verify
from twinbus.broker.server.request_reply import Reply, Request
from twinbus.errors import AccessDenied

if TYPE_CHECKING:
    from twinbus.broker.server.attach import AnyLinkHandler
    from twinbus.broker.server.connection import ClientConnection


class ConnectionAuthorization:
    """The grants of one connection, and the timer that ends them."""

    def __init__(self, peer: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._grants = Grants()
        self._listens_until_s: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    @property
    def has_token(self) -> bool:
        return len(self._grants) > 0

    def audience(self) -> Audience:
        """The names for which a token of this connection may be signed."""
        remote = self._peer.connection.remote_open
        hostname = remote.hostname if remote is not None else None
        if hostname is not None and hostname.count(":") == 1:
            hostname = hostname.partition(":")[0]
        return self._peer.namespace.audience.known_as(hostname)

    def grant(self, grant: AccessGrant) -> None:
        self._listens_until_s.clear()
        self._grants.add(grant, now_s=self._wall_s())
        if self._timer is None:
            self._check_when_all_end()

    def demand(self, path: str, claim: Claim) -> None:
        """Raise unless a token of this connection grants the claim on the path."""
        if not self._grants.allows(path, claim, now_s=self._wall_s()):
            raise AmqpError(
                Condition.UNAUTHORIZED_ACCESS,
                f"The {claim.names()[0]} claim on {path!r} is missing or has expired. "
                "Use a key whose access rule has it.",
            )

    def may_listen(self, path: str) -> bool:
        """Whether the Listen claim covers the path now; called for every settlement."""
        until_s = self._listens_until_s.get(path)
        now_s = self._peer.now.wall_ms / 1000
        if until_s is None:
            until_s = self._grants.allowed_until_s(path, Claim.LISTEN, now_s=now_s) or 0
            self._listens_until_s[path] = until_s
        return until_s > now_s

    # -- expiry ---------------------------------------------------------------------------

    def watch(self, end: AnyLinkHandler) -> None:
        """A link was opened: check it again when its token may have expired."""
        if end.claim is None:
            return
        now_s = self._wall_s()
        self._check_at(self._grants.allowed_until_s(end.path, end.claim, now_s=now_s) or now_s)

    def _check_at(self, at_s: float) -> None:
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_later(max(0.0, at_s - self._wall_s()), self._peer.check)

    def _check_when_all_end(self) -> None:
        last_s = self._grants.last_until_s(now_s=self._wall_s())
        if last_s is None:
            self._peer.lost_all_grants()
        else:
            self._check_at(last_s)

    def drop_unbacked(self) -> None:
        """Keys or rules changed: drop the grants of those that were removed."""
        if self._grants.drop_unbacked(self._peer.namespace.rules_for):
            self._listens_until_s.clear()

    def checks(self) -> Iterator[None]:
        """Detach every link whose token has expired or whose key was removed, link by link."""
        self.stop()
        now_s = self._wall_s()
        # Of a thousand links most have the same path; each path is checked once.
        known: dict[tuple[str, Claim], int | None] = {}
        for link, end in self._peer.links_and_ends():
            yield
            if end.claim is None or not self._peer.has_end(link, end):
                continue
            asked = end.path, end.claim
            if asked not in known:
                known[asked] = self._grants.allowed_until_s(*asked, now_s=now_s)
            until_s = known[asked]
            if until_s is not None:
                self._check_at(until_s)
                continue
            error = AmqpError(
                Condition.UNAUTHORIZED_ACCESS,
                "The token has expired or its key was changed. Send a new token to $cbs.",
            )
            self._peer.detach(link, error)
        self._check_when_all_end()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wall_s(self) -> float:
        return self._peer.namespace.now().wall_ms / 1000


TOKEN_TYPES = frozenset({"jwt", "servicebus.windows.net:sastoken"})
# Tokens that one connection may send in a minute; an SDK sends one per link and hour.
TOKENS_PER_MINUTE_MAX = 600


class CbsNode:
    """The $cbs node of one connection: accepts its tokens."""

    def __init__(self, peer: ClientConnection) -> None:
        self._peer = peer
        self._window_began_s = 0.0
        self._window_count = 0

    def handle(self, request: Request, answer: Callable[[Reply], None]) -> None:
        now = self._peer.namespace.now()
        if self._is_flood(now.monotonic_s):
            answer(_reply(503, "Too many tokens on this connection. Wait one minute."))
            return
        if request.operation != "put-token" or not isinstance(request.body, str):
            answer(_reply(400, "Not a token. Send the operation put-token with a string."))
            return
        try:
            _check_type(request.properties.get("type"))
            grant = verify(
                parse_token(request.body),
                audience=self._peer.authorization.audience(),
                rules=self._peer.namespace.rules_for,
                now_s=now.wall_ms / 1000,
            )
        except AccessDenied as refusal:
            self._peer.note_refusal("token refused")
            answer(_reply(401, str(refusal)))
            return
        if self._peer.granted(grant):
            answer(_reply(202, "Accepted"))

    def _is_flood(self, now_s: float) -> bool:
        if now_s - self._window_began_s > 60:
            self._window_began_s, self._window_count = now_s, 0
        self._window_count += 1
        return self._window_count > TOKENS_PER_MINUTE_MAX


def _check_type(kind: object) -> None:
    if not isinstance(kind, str) or kind not in TOKEN_TYPES:
        raise AccessDenied(
            "The type of the token is not supported", hint="Use servicebus.windows.net:sastoken"
        )


def _reply(status: int, description: str) -> Reply:
    return Reply({"status-code": Int(status), "status-description": description})

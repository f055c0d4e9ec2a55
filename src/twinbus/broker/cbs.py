"""The ``$cbs`` node: a client shows a token, and its connection is granted what it allows.

The SDK says type "jwt" for shared access signatures too, so the token's own beginning decides;
a type that no SDK uses for one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp.types import Int
from twinbus.broker.access.sas import parse_token, verify
from twinbus.broker.replies import Reply, Request
from twinbus.errors import AccessDenied

if TYPE_CHECKING:
    from twinbus.broker.peer import ClientConnection

TOKEN_TYPES = frozenset({"jwt", "servicebus.windows.net:sastoken"})
# Tokens that one connection may put in a minute; an SDK puts one per link and hour.
TOKENS_PER_MINUTE_MAX = 600


class CbsNode:
    """Takes the tokens of one connection."""

    def __init__(self, peer: ClientConnection) -> None:
        self._peer = peer
        self._window_began_s = 0.0
        self._window_count = 0

    def handle(self, request: Request, answer: Callable[[Reply], None]) -> None:
        now = self._peer.namespace.now()
        if self._is_flood(now.monotonic_s):
            answer(_reply(503, "Too many tokens from this connection. Wait a minute."))
            return
        if request.operation != "put-token" or not isinstance(request.body, str):
            answer(_reply(400, "This is no token. Send operation put-token with a string."))
            return
        try:
            _check_type(request.properties.get("type"))
            grant = verify(
                parse_token(request.body),
                audience=self._peer.admission.audience(),
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
            "the type of the token is not known", hint="Use servicebus.windows.net:sastoken"
        )


def _reply(status: int, description: str) -> Reply:
    return Reply({"status-code": Int(status), "status-description": description})

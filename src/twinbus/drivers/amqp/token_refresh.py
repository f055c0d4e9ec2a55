"""The tokens of a connection, each for one entity, and their renewal.

Rule 1: no link is attached before the service has accepted its token.
Rule 2: a token is renewed well before it expires, as long as a link needs it. If that fails, it is
        tried again until the service itself detaches the link.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.request_nodes import CbsNodeClient
from twinbus.drivers.amqp.shared_attempt import SharedAttempt, time_limit
from twinbus.drivers.credentials import Credential
from twinbus.errors import ServiceError

logger = logging.getLogger("twinbus.drivers")

# For a token of one hour, this leaves twelve minutes for failures of the token service.
RENEW_AT_SHARE: Final = 0.8
RENEW_RETRY_S: Final = 15.0
RENEW_TIMEOUT_S: Final = 60.0
# A token that expires sooner is renewed at this interval, not more often.
RENEW_PERIOD_S_MIN: Final = 1.0

# The names of the two kinds of token in $cbs.
_KINDS: Final = {"sas": "servicebus.windows.net:sastoken", "jwt": "jwt"}


class TokenRefresher:
    """Sends and renews the tokens of one connection."""

    def __init__(self, connection: AmqpConnection, credential: Credential) -> None:
        self._connection = connection
        self._credential = credential
        self._node: CbsNodeClient | None = None
        self._opening: SharedAttempt[CbsNodeClient] = SharedAttempt()
        self._sending: dict[str, SharedAttempt[None]] = {}
        self._good_until_s: dict[str, float] = {}
        """By path: Unix time, because timers do not run while a machine sleeps."""
        self._renewals: dict[str, asyncio.TimerHandle | asyncio.Task[None]] = {}

    async def authorize(self, path: str) -> bool:
        """Return once the service has a valid token for ``path``; whether a new one was sent."""
        if self._good_until_s.get(path, 0) > time.time():
            return False
        sending = self._sending.setdefault(path, SharedAttempt())
        await sending.result(partial(self._send_token, path))
        return True

    async def _send_token(self, path: str) -> None:
        began_s = time.time()
        audience = self._connection.endpoint.audience(path)
        token = await self._credential.token_for(audience)
        node = self._node
        if node is None or not node.is_open:
            node = await self._opening.result(self._open_node)
        await node.put_token(path=path, audience=audience, text=token.text, kind=_KINDS[token.kind])
        self._sending.pop(path, None)
        self._good_until_s[path] = token.expires_s
        self._renew_later(path, (token.expires_s - began_s) * RENEW_AT_SHARE)

    def forget(self, path: str) -> None:
        """The service refused the token: the next link sends a new one."""
        self._good_until_s.pop(path, None)

    async def _open_node(self) -> CbsNodeClient:
        node = CbsNodeClient(self._connection)
        await node.wait_attached()
        self._node = node
        return node

    # -- renewal --------------------------------------------------------------------------

    def _renew_later(self, path: str, in_s: float) -> None:
        known = self._renewals.pop(path, None)
        if isinstance(known, asyncio.TimerHandle):
            known.cancel()
        if self._connection.loss is None and in_s != float("inf"):
            loop = asyncio.get_running_loop()
            delay_s = max(RENEW_PERIOD_S_MIN, in_s)
            self._renewals[path] = loop.call_later(delay_s, self._renew, path)

    def _renew(self, path: str) -> None:
        if self._connection.loss is None and any(end.path == path for end in self._connection.ends):
            self._renewals[path] = asyncio.create_task(self._renew_now(path))
        else:
            # The next call that needs it sends a new one.
            self._renewals.pop(path, None)
            self.forget(path)

    async def _renew_now(self, path: str) -> None:
        try:
            async with time_limit(RENEW_TIMEOUT_S, path=path, doing="Sending a token for"):
                await self._send_token(path)
        except ServiceError as error:
            if self._connection.loss is not None:
                return
            logger.warning("The token for %r could not be renewed: %s", path, error)
            self._renew_later(path, RENEW_RETRY_S)

    def close(self) -> None:
        """The connection is gone: stop all renewals."""
        for renewal in self._renewals.values():
            renewal.cancel()
        self._renewals.clear()

"""The tokens that a connection has shown, each for one entity, and their renewal.

Rule 1: nothing is attached before the token for it was taken.
Rule 2: a token is shown again well before it expires, as long as a link needs it. If that fails,
        it is tried again until the service itself puts an end to the link.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.request_nodes import CbsNodeClient
from twinbus.drivers.amqp.shared_attempt import SharedAttempt, in_time
from twinbus.drivers.credentials import Credential
from twinbus.errors import ServiceError

logger = logging.getLogger("twinbus.drivers")

# Of an hour's token the last twelve minutes are left for trouble with the token service.
RENEW_AT_SHARE: Final = 0.8
RENEW_RETRY_S: Final = 15.0
RENEW_TIMEOUT_S: Final = 60.0
# A token that expires sooner is shown again at this pace, not faster.
RENEW_PERIOD_S_MIN: Final = 1.0

# What $cbs calls the two kinds of token.
_KINDS: Final = {"sas": "servicebus.windows.net:sastoken", "jwt": "jwt"}


class TokenRefresher:
    """Shows tokens on one line."""

    def __init__(self, line: AmqpConnection, credential: Credential) -> None:
        self._line = line
        self._credential = credential
        self._node: CbsNodeClient | None = None
        self._opening: SharedAttempt[CbsNodeClient] = SharedAttempt()
        self._showing: dict[str, SharedAttempt[None]] = {}
        self._good_until_s: dict[str, float] = {}
        """By path: Unix time, because a machine that slept has missed its timers."""
        self._renewals: dict[str, asyncio.TimerHandle | asyncio.Task[None]] = {}

    async def authorize(self, path: str) -> bool:
        """Return once the service knows who we are as far as ``path`` is concerned: whether it
        had to be told now."""
        if self._good_until_s.get(path, 0) > time.time():
            return False
        showing = self._showing.setdefault(path, SharedAttempt())
        await showing.result(partial(self._show, path))
        return True

    async def _show(self, path: str) -> None:
        began_s = time.time()
        audience = self._line.endpoint.audience(path)
        token = await self._credential.token_for(audience)
        node = self._node
        if node is None or not node.is_open:
            node = await self._opening.result(self._open_node)
        await node.show(path=path, audience=audience, text=token.text, kind=_KINDS[token.kind])
        self._showing.pop(path, None)
        self._good_until_s[path] = token.expires_s
        self._renew_later(path, (token.expires_s - began_s) * RENEW_AT_SHARE)

    def forget(self, path: str) -> None:
        """The service refused us all the same: the next link shows a new token."""
        self._good_until_s.pop(path, None)

    async def _open_node(self) -> CbsNodeClient:
        node = CbsNodeClient(self._line)
        await node.attached()
        self._node = node
        return node

    # -- renewal --------------------------------------------------------------------------

    def _renew_later(self, path: str, in_s: float) -> None:
        known = self._renewals.pop(path, None)
        if isinstance(known, asyncio.TimerHandle):
            known.cancel()
        if self._line.loss is None and in_s != float("inf"):
            loop = asyncio.get_running_loop()
            delay_s = max(RENEW_PERIOD_S_MIN, in_s)
            self._renewals[path] = loop.call_later(delay_s, self._renew, path)

    def _renew(self, path: str) -> None:
        if self._line.loss is None and any(end.path == path for end in self._line.ends):
            self._renewals[path] = asyncio.create_task(self._renewed(path))
        else:
            # Whoever needs it next shows a new one.
            self._renewals.pop(path, None)
            self.forget(path)

    async def _renewed(self, path: str) -> None:
        try:
            async with in_time(RENEW_TIMEOUT_S, path=path, doing="showing a token for"):
                await self._show(path)
        except ServiceError as error:
            if self._line.loss is not None:
                return
            logger.warning("The token for %r could not be renewed: %s", path, error)
            self._renew_later(path, RENEW_RETRY_S)

    def close(self) -> None:
        """The line is gone: nothing is renewed any more."""
        for renewal in self._renewals.values():
            renewal.cancel()
        self._renewals.clear()

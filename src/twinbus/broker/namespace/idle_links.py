"""Detaching of idle links, as Azure Service Bus does it.

Azure does it after ten minutes; this broker only with ``idle_detach_s``. A receiver that waits
longer for a message loses its link, and its credit with it.

Rule 1: use is a message, a grant of credit or a settlement. Unused credit is not a use.
Rule 2: never too early. The idle time of a link begins with the check that found it used, so it is
        detached between 1 and 1.1 times that time after its last use.
Rule 3: a check covers some hundred links, and then others have their turn.
Rule 4: links to ``$cbs`` and ``$management`` stay: they end with their connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.server.incoming_link import IncomingLink
from twinbus.broker.server.outgoing_link import OutgoingLink

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace

CHECKS_PER_IDLE_TIME: Final = 20
CHECKED_PER_TURN: Final = 256


class IdleLinks:
    """Watches the links of one namespace."""

    def __init__(self, namespace: Namespace, idle_s: float) -> None:
        self._namespace = namespace
        self._idle_s = idle_s
        self._seen: dict[Any, tuple[object, float]] = {}
        """The last observed use of each link, and since when it has not changed."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._set_timer()

    def stop(self) -> None:
        self._is_stopped = True
        self._seen.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        pause_s = self._idle_s / CHECKS_PER_IDLE_TIME
        self._timer = self._namespace.call_later(pause_s, self._check)

    def _check(self) -> None:
        self._check_some(self._links(), {})

    def _links(self) -> Iterator[tuple[Any, Any, IncomingLink | OutgoingLink]]:
        for peer in list(self._namespace.peers):
            for link, end in peer.links_and_ends():
                if isinstance(end, IncomingLink | OutgoingLink):
                    yield peer, link, end

    def _check_some(
        self, links: Iterator[tuple[Any, Any, Any]], seen: dict[Any, tuple[object, float]]
    ) -> None:
        if self._is_stopped:
            return
        now_s, count = self._namespace.now().monotonic_s, 0
        for peer, link, end in islice(links, CHECKED_PER_TURN):
            count += 1
            if not peer.has_end(link, end):  # Detached since the previous turn.
                continue
            marks = (link.delivery_count, getattr(end, "use_count", 0))
            known, since_s = self._seen.get(end, (None, now_s))
            if known != marks:
                since_s = now_s
            if now_s - since_s < self._idle_s:
                seen[end] = marks, since_s
            else:
                peer.detach(link, self._error(link))
                peer.flush()
        if count == CHECKED_PER_TURN:
            self._namespace.call_later(0, partial(self._check_some, links, seen))
        else:
            self._seen = seen
            self._set_timer()

    def _error(self, link: Any) -> AmqpError:
        return AmqpError(
            Condition.LINK_DETACH_FORCED,
            f"The link {link.name!r:.100} was idle for {self._idle_s:g} s and is detached. "
            "Attach it again.",
        )

"""Sends on the thread of a blocking caller, while the entity is healthy (P0).

    any thread --send()--> the caller's own link --> the primary
                       --> False: nothing was sent, and the loop must send it
                       --> error: the send continues on the loop, as one that failed there

The loop costs a blocking send two changes of thread, a fifth of its time. So a busy sender gets a
second link, which the thread of its caller uses directly.

Rule 1: nothing is decided here. Health, deadlines, retries and the backlog belong to the loop: a
        thread only checks whether the entity is healthy, and passes every error on.
Rule 2: a thread registers itself before it checks. The loop changes the health before it looks up
        threads to interrupt (P22). So either the thread sees the change, or the loop the thread.
Rule 3: one thread at a time has the link. The others do not wait for it: they use the loop.
Rule 4: a background thread opens the link; a link that fails is closed without an error.
Rule 5: it belongs to one process: a forked child has its own (``twinbus.common.fork``).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import CommunicationError, LinkDetached, ServiceError
from twinbus.failover.send_decision import first_attempt_s
from twinbus.failover.state_machine import Health
from twinbus.pairing.paired_sender import PairedSender, checked_timeout_s
from twinbus.pairing.routing import Entity, SendRouter

__all__ = ["ONE_WRITE_BYTES_MAX", "DirectSender", "MessageLink"]

_log = logging.getLogger("twinbus.pairing")

# A sender with this many sends in this time is busy: its own link saves time.
BUSY_SENDS: Final = 10
BUSY_S: Final = 10.0
# A send may start again on the loop if it took no longer than this: its deadline is kept.
BEGIN_AGAIN_S_MAX: Final = 1.0
# After a failure to open a link, the next attempt follows after this time.
OPEN_AGAIN_S: Final = 30.0
# A send in progress when its sender is closed gets as much time as one on the loop.
CLOSE_WAIT_S: Final = 10.0
# Every socket buffer takes this many bytes at once, also while the peer reads nothing. A blocking
# sender of the SDK ends a write after 0.2 s, which means nothing for the entity.
ONE_WRITE_BYTES_MAX: Final = 32_768

_NUMBERS: Final = itertools.count(1)

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class MessageLink(Protocol[M_contra]):
    """A link that one thread uses, and that any thread may interrupt."""

    def is_usable(self) -> bool:
        """Whether a message can be sent now. Clears an earlier interrupt()."""

    def send(self, message: M_contra, timeout_s: float) -> None:
        """Return once the service has stored it durably; raises ServiceError."""

    def interrupt(self) -> None:
        """End the send that is waiting, if there is one, with SendInterrupted."""

    def close(self) -> None:
        """Close the link."""


class DirectSender(Generic[M]):
    """The direct link of a PairedSender, for its blocking callers."""

    def __init__(
        self,
        sender: PairedSender,
        *,
        open_link: Callable[[], MessageLink[M]],
        fits: Callable[[M, int], bool],
        to_outgoing_messages: Callable[[M], list[OutgoingMessage]],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        """``fits`` checks a message (P12) and returns whether it can be sent directly, for the
        maximum message size of a backlog queue; ``run`` runs a coroutine on the loop."""
        self._sender = sender
        self._registry = sender.registry
        self._open_link = open_link
        self._fits = fits
        self._to_outgoing_messages = to_outgoing_messages
        self._run = run
        self._link: MessageLink[M] | None = None
        self._is_closed = False
        self._turn = threading.Lock()
        self._opening = threading.Lock()
        self._counted_since_s = self._not_before_s = 0.0
        self._count = 0

    # -- one send -----------------------------------------------------------------------------

    def send(self, message: M, timeout: float | None) -> bool:
        """Whether the message was sent; False: nothing was sent, and the loop must send it."""
        if not self._turn.acquire(blocking=False):
            return False
        link = self._link
        try:
            if link is None:
                return False
            routing, registry = self._registry.routing, self._registry
            entity, backlog = self._sender.entity_in(routing), routing.backlog
            if entity is None or backlog is None:
                return False
            if not self._fits(message, backlog.message_bytes_max):
                return False
            if not link.is_usable():
                self._forget(link)
                return False
            timeout_s = registry.operation_timeout_s if timeout is None else timeout
            registry.calls.direct.add(link)
            try:
                return self._send(link, message, routing, entity, checked_timeout_s(timeout_s))
            finally:
                registry.calls.direct.discard(link)
        finally:
            if self._is_closed and link is not None:
                self._forget(link)
            self._turn.release()

    def _send(
        self,
        link: MessageLink[M],
        message: M,
        routing: SendRouter,
        entity: Entity,
        timeout_s: float,
    ) -> bool:
        registry, failover = self._registry, entity.failover
        start_s, success_mark = registry.now_s(), failover.success_mark
        entity.direct.add(link)
        try:
            attempt_s = first_attempt_s(failover, timeout_s)
            if attempt_s is None or registry.is_suspended or not registry.calls.is_open:
                return False
            link.send(message, attempt_s)
        except ServiceError as error:
            failure = error
        except BaseException:
            # The caller was interrupted, for example by Ctrl-C: the state of the link is unknown.
            self._forget(link)
            self._run(self._report_cancelled(routing, entity, start_s, success_mark))
            raise
        else:
            self._succeeded(routing, entity)
            return True
        finally:
            entity.direct.discard(link)
        if not link.is_usable():
            self._forget(link)
        if (
            isinstance(failure, CommunicationError | LinkDetached)
            and not failure.is_ambiguous
            and registry.now_s() - start_s < BEGIN_AGAIN_S_MAX
        ):
            return False  # The link was closed before: the loop finds out the state of the entity.
        outgoing = self._to_outgoing_messages(message)
        self._run(self._sender.continue_send(outgoing, failure, start_s, timeout_s))
        return True

    def _succeeded(self, routing: SendRouter, entity: Entity) -> None:
        routing.rules.credential.has_succeeded = True
        if entity.failover.health is Health.HEALTHY:
            entity.failover.direct_success = next(_NUMBERS)
        else:
            self._run(_report_success(routing, entity))

    async def _report_cancelled(
        self, routing: SendRouter, entity: Entity, start_s: float, success_mark: tuple[int, int]
    ) -> None:
        self._sender.caller_left(routing, entity, start_s, success_mark)

    # -- the link -----------------------------------------------------------------------------

    def sent_by_loop(self, message: M) -> None:
        """Count a message that the loop has sent: a busy sender gets a direct link."""
        if self._link is not None or self._is_closed or not self._could_send(message):
            return
        now_s = time.monotonic()
        if now_s - self._counted_since_s > BUSY_S:
            self._counted_since_s, self._count = now_s, 0
        self._count += 1
        if self._count < BUSY_SENDS or now_s < self._not_before_s:
            return
        if self._opening.acquire(blocking=False):
            threading.Thread(target=self._open, name="twinbus-direct-link", daemon=True).start()

    def _could_send(self, message: M) -> bool:
        """Whether a link would be used: a diverted entity gets only pings (P8)."""
        routing = self._registry.routing
        entity, backlog = self._sender.entity_in(routing), routing.backlog
        return (
            entity is not None
            and backlog is not None
            and entity.failover.health is Health.HEALTHY
            and self._fits(message, backlog.message_bytes_max)
        )

    def _open(self) -> None:
        try:
            link = self._open_link()
        except Exception as error:
            _log.debug("Direct link to %s could not be opened: %s", self._sender.path, error)
            self._not_before_s = time.monotonic() + OPEN_AGAIN_S
        else:
            self._link, self._count = link, 0
            if self._is_closed:
                self.close()
        finally:
            self._opening.release()

    def _forget(self, link: MessageLink[M]) -> None:
        if self._link is link:
            self._link = None
        link.close()

    def close(self) -> None:
        """Close the link, after the send in progress; may be called twice."""
        self._is_closed = True
        if not self._turn.acquire(timeout=CLOSE_WAIT_S):
            if self._link is not None:
                self._link.interrupt()
            return
        try:
            link, self._link = self._link, None
            if link is not None:
                link.close()
        finally:
            self._turn.release()


async def _report_success(routing: SendRouter, entity: Entity) -> None:
    routing.first_attempt_succeeded(entity)

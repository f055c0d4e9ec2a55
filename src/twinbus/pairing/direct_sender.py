"""Sends on the thread of a blocking caller, while the entity is healthy (P0).

    any thread --send()--> the caller's own link --> the primary
                       --> False: nothing was sent, and the loop is to do it
                       --> trouble: the send goes on, on the loop, as one that failed there

Going through the loop costs a blocking send two changes of thread, a fifth of its time. So a
sender that is busy gets a second link, which its caller's thread uses by itself.

Rule 1: nothing is decided here. Health, deadlines, retries and the backlog are the loop's: a
        thread only asks whether the entity is healthy, and hands every trouble over.
Rule 2: a thread announces itself before it asks. The loop changes the health before it looks for
        threads to interrupt (P22). So either the thread sees the change, or the loop the thread.
Rule 3: one thread at a time has the link. The others do not wait for it: they use the loop.
Rule 4: the link is opened by a thread that nobody waits for, and closed in silence when it fails.
Rule 5: it belongs to one process: who is forked has another one (``twinbus.common.fork``).
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

# A sender with this many sends in this time is busy: a link of its own pays for itself.
BUSY_SENDS: Final = 10
BUSY_S: Final = 10.0
# A send may begin anew on the loop if it took no longer than this: its deadline is kept.
BEGIN_AGAIN_S_MAX: Final = 1.0
# A link that could not be opened is tried again after this time.
OPEN_AGAIN_S: Final = 30.0
# A send that is under way when its sender is closed gets as long as one on the loop.
CLOSE_WAIT_S: Final = 10.0
# Every socket buffer takes this many bytes at once, also while the peer reads nothing. A blocking
# sender of the SDK gives up on a write after 0.2 s, which says nothing about the entity.
ONE_WRITE_BYTES_MAX: Final = 32_768

_NUMBERS: Final = itertools.count(1)

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class MessageLink(Protocol[M_contra]):
    """A link that one thread uses, and any thread may interrupt."""

    def is_usable(self) -> bool:
        """Whether a message may be sent now. It forgets an earlier interrupt()."""

    def send(self, message: M_contra, timeout_s: float) -> None:
        """Return once the service holds it durably; raises ServiceError."""

    def interrupt(self) -> None:
        """End the send that is waiting, if there is one, with SendInterrupted."""

    def close(self) -> None:
        """Let go of the link."""


class DirectSender(Generic[M]):
    """Beside a PairedSender of the loop, for its blocking callers."""

    def __init__(
        self,
        sender: PairedSender,
        *,
        open_link: Callable[[], MessageLink[M]],
        fits: Callable[[M, int], bool],
        to_outgoing_messages: Callable[[M], list[OutgoingMessage]],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        """``fits`` checks a message (P12) and says whether it may go this way, given what a
        backlog queue takes; ``run`` carries out a coroutine on the loop."""
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
        """Whether it was sent; False: nothing has left, and the loop is to send it."""
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
            # The caller is interrupted, as by Ctrl-C, and the state of the link is unknown.
            self._forget(link)
            self._run(self._left(routing, entity, start_s, success_mark))
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
            return False  # The link was gone before: the loop finds out whether the entity is.
        self._run(
            self._sender.go_on(self._to_outgoing_messages(message), failure, start_s, timeout_s)
        )
        return True

    def _succeeded(self, routing: SendRouter, entity: Entity) -> None:
        routing.rules.credential.has_succeeded = True
        if entity.failover.health is Health.HEALTHY:
            entity.failover.direct_success = next(_NUMBERS)
        else:
            self._run(_noted(routing, entity))

    async def _left(
        self, routing: SendRouter, entity: Entity, start_s: float, success_mark: tuple[int, int]
    ) -> None:
        self._sender.caller_left(routing, entity, start_s, success_mark)

    # -- the link -----------------------------------------------------------------------------

    def sent_by_loop(self, message: M) -> None:
        """The loop has sent a message: a sender that could do so itself, and often, gets a link."""
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
        """Whether a link would be of use: nothing but pings goes to a diverted entity (P8)."""
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
            _log.debug("no link of its own for %s: %s", self._sender.path, error)
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
        """Let go of the link, after the send that is under way; may be called twice."""
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


async def _noted(routing: SendRouter, entity: Entity) -> None:
    routing.first_attempt_succeeded(entity)

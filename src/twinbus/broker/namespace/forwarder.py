r"""Automatic forwarding: one internal receiver for each entity that forwards.

    source --deliver--> deliver(): complete in the source, enqueue in the target --commit--> more
                          \--> topic evaluates its rules --> complete, pass on --commit--> more

Rule 1: the message leaves the source and enters the target in one transaction. After a crash, or
        with a full disk, it is in exactly one of them.
Rule 2: one slice is in progress at a time, so that memory does not grow with what is forwarded.
Rule 3: a slice that a topic evaluates stays in the source, under a lock without an end, until the
        topic has finished. When the forward is removed before that, the slice is released.
Rule 4: while the target is missing, disabled or full the messages wait in the source, and are tried
        once a second. One that the target can never accept goes to the source's dead letters.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.forwarding import find_rejection, forwarded
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import RELEASE, Complete, DeadLetter
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import IncomingMessage
from twinbus.broker.engine.topic import Topic
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace

# Messages in one slice: enough to be worth a commit, few enough for a turn of the loop.
SLICE_COUNT = 512
# The same into a topic, whose rules are evaluated for each of them.
TOPIC_SLICE_COUNT = 64
# The pause before a target that does not accept messages is tried again.
RETRY_S = 1.0
# A target that detects duplicates may have to wait for its own commit first.
RETRY_SOON_S = 0.02

_CREDIT = 1 << 30


class Forwarding:
    """The forwarders of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._forwarders: dict[Queue, Forwarder] = {}

    def entity_changed(self, entity: Queue) -> None:
        """An entity was created, changed or deleted."""
        description = entity.description
        self._set(entity, description.forward_to)
        if entity.dead_letters is not None:
            self._set(entity.dead_letters, description.forward_dead_lettered_messages_to)

    def _set(self, source: Queue, target_path: str | None) -> None:
        known = self._forwarders.pop(source, None)
        if known is not None:
            known.stop()
        if target_path is not None and not source.is_deleted:
            self._forwarders[source] = Forwarder(self._namespace, source, target_path)

    def stop(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.stop()
        self._forwarders.clear()


class Forwarder:
    """Forwards the messages of one queue, subscription or dead-letter queue."""

    def __init__(self, namespace: Namespace, source: Queue, target_path: str) -> None:
        self._namespace = namespace
        self._source = source
        self._target_path = target_path
        self._moved_on = Complete(forwarded_to=target_path)
        self._in_progress_count = 0
        self._evaluated: dict[LockRun, int] = {}
        """What a topic evaluates: locks, and which of their messages."""
        self._retry: asyncio.TimerHandle | None = None
        is_topic = isinstance(namespace.catalogue.find(target_path), Topic)
        slice_count = TOPIC_SLICE_COUNT if is_topic else SLICE_COUNT
        self._consumer = Consumer(self.deliver, unsettled_max=slice_count, credit=_CREDIT)
        source.attach(self._consumer)
        self._go_on()

    def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._source.detach(self._consumer)
        self._consumer.deliver = _nowhere
        evaluated, self._evaluated = self._evaluated, {}
        if not self._source.is_deleted:
            for run, mask in evaluated.items():
                self._unhold(run)
                self._release(run, mask)

    # -- one slice ------------------------------------------------------------------------

    def deliver(self, grant: DeliveryBatch) -> None:
        """Messages of the source, to be moved now or released."""
        now = self._namespace.now()
        target = self._open_target()
        messages: list[IncomingMessage] = []
        moved = back = size = 0
        impossible: list[tuple[int, DeadLetter]] = []
        for index in range(grant.start, grant.start + grant.count):
            if target is None or back:
                back |= 1 << index
                continue
            message = forwarded(self._source, grant, index, target.description, now)
            reason = find_rejection(message, target.description)
            if reason is not None:
                impossible.append((1 << index, reason))
            elif not target.has_room_for(size + len(message.record)):
                back |= 1 << index
            else:
                size += len(message.record)
                messages.append(message)
                moved |= 1 << index
        pause_s = RETRY_S
        if target is not None and _must_wait(target, messages):
            moved, back, pause_s = 0, moved | back, RETRY_SOON_S
        if moved and target is not None:
            self._move(grant, moved, messages, target, now)
        if back and grant.run is not None:
            self._try_later(grant.run, back, pause_s)
        for mask, reason in impossible:
            self._dead_letter(grant, mask, reason, now)

    def _open_target(self) -> Queue | None:
        target = self._namespace.catalogue.find(self._target_path)
        if target is None or not target.description.status.can_send:
            return None
        return target

    def _move(
        self,
        grant: DeliveryBatch,
        mask: int,
        messages: list[IncomingMessage],
        target: Queue,
        now: Instant,
    ) -> None:
        run = grant.run
        if run is None:
            return
        if isinstance(target, Topic):
            self._consumer.is_paused = True
            self._evaluated[run] = mask
            self._source.locks.hold(run)
            target.move_in(messages, partial(self._leave, run, messages, target))
            self._namespace.touch(target)
        elif self._complete(run, mask, target, now):
            target.enqueue(messages, None)

    def _leave(self, run: LockRun, messages: list[IncomingMessage], target: Topic) -> bool:
        """The topic has evaluated its rules: whether the messages go there now."""
        mask = self._evaluated.pop(run, 0)
        if not mask:
            return False  # The forward has ended meanwhile.
        self._unhold(run)
        if _must_wait(target, messages):
            self._try_later(run, mask, RETRY_SOON_S)
            return False
        is_open = self._open_target() is target
        if is_open and self._complete(run, mask, target, self._namespace.now()):
            return True
        self._try_later(run, mask, RETRY_S)
        return False

    def _unhold(self, run: LockRun) -> None:
        lock_s = self._source.description.lock_duration_ms / 1000
        self._source.locks.unhold(run, self._namespace.now().monotonic_s + lock_s)

    def _complete(self, run: LockRun, mask: int, target: Queue, now: Instant) -> bool:
        """Complete messages in the source; False when the lock is lost."""
        if self._source.settle(run, mask, self._moved_on, now, self) != mask:
            # The process was suspended for longer than a lock lasts.
            return False
        self._in_progress_count += 1
        self._consumer.is_paused = True
        self._write_together(target)
        return True

    def _write_together(self, target: Queue) -> None:
        dirty = self._namespace.catalogue.dirty
        dirty[self._source] = dirty[target] = None
        self._namespace.note_move(self._source, target)
        self._namespace.touch(self._source)
        self._namespace.touch(target)

    def _dead_letter(
        self, grant: DeliveryBatch, mask: int, reason: DeadLetter, now: Instant
    ) -> None:
        """Dead-letter messages. One of a dead-letter queue stays locked instead."""
        if self._source.dead_letters is not None and grant.run is not None:
            self._source.settle(grant.run, mask, reason, now, None)
            self._namespace.touch(self._source)

    def _try_later(self, run: LockRun, mask: int, pause_s: float) -> None:
        """Release messages, and receive them again after a pause."""
        self._consumer.is_paused = True
        self._release(run, mask)
        if self._retry is None:
            self._retry = self._namespace.call_later(pause_s, self._try_again)

    def _release(self, run: LockRun, mask: int) -> None:
        self._source.settle(run, mask, RELEASE, self._namespace.now(), None)
        self._namespace.touch(self._source)

    def _try_again(self) -> None:
        self._retry = None
        self._go_on()

    # -- the commit -----------------------------------------------------------------------

    def stored(self, seqs: range) -> None:
        """A slice is on disk, in the target and no longer in the source."""
        self._in_progress_count -= 1
        self._go_on()

    def failed(self, error: Exception) -> None:
        """The disk is full. The slice is tried again with the next commit, as a whole."""
        if not self._source.is_deleted:
            self._source.batch.tickets.append(self)

    def _go_on(self) -> None:
        if self._in_progress_count or self._evaluated or self._retry or self._source.is_deleted:
            return
        self._consumer.is_paused = False
        self._source.credit_available(self._consumer)
        self._namespace.touch(self._source)


def _must_wait(target: Queue, messages: list[IncomingMessage]) -> bool:
    return target.history is not None and target.history.must_wait(messages, is_ours=True)


def _nowhere(_grant: DeliveryBatch) -> None:
    """A consumer without credit gets no messages."""

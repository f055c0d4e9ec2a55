"""Bugs of the way there and back: senders, the envelope, the mover."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from twinbus.drivers.amqp.sender_endpoint import SenderEndpoint
from twinbus.encoding.envelope import restored_message
from twinbus.errors import ServiceError
from twinbus.failover.events import Event
from twinbus.failover.send_decision import SendDecision, SendSucceeded, SendToBacklog, Step
from twinbus.mover import queue_mover
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.chunk_transfer import ChunkTransfer
from twinbus.mover.planning import chunk_plan
from twinbus.mover.planning.chunk_ledger import RestoredDelivery
from twinbus.mover.planning.chunk_plan import MoveErrorClass, PoisonMessage, classify_error
from twinbus.mover.planning.deferred_messages import DeferredMessages
from twinbus.mover.planning.receipts import ReceiptOutcome

# A busy primary is this late to answer: long enough for something to happen meanwhile.
HASTE_S = 1.0


def complete_before_sending(patch: pytest.MonkeyPatch) -> None:
    """A message leaves the backlog before the primary has it."""
    attempt = ChunkTransfer._try

    async def hasty(
        self: ChunkTransfer, path: str, items: Sequence[RestoredDelivery], *, is_probe: bool
    ) -> None:
        await self._receiver.complete([each.delivered for each in items], timeout_s=5.0)
        await asyncio.sleep(HASTE_S)
        await attempt(self, path, items, is_probe=is_probe)

    patch.setattr(ChunkTransfer, "_try", hasty)


def complete_what_is_unsure(patch: pytest.MonkeyPatch) -> None:
    """A send that was not answered counts as done."""
    refused = ChunkTransfer._handle_error

    async def hopeful(
        self: ChunkTransfer,
        path: str,
        items: Sequence[RestoredDelivery],
        error: ServiceError,
        **more: Any,
    ) -> None:
        if classify_error(error) is MoveErrorClass.AMBIGUOUS:
            self._ledger.accepted(items)
            await self._complete(items)
        else:
            await refused(self, path, items, error, **more)

    patch.setattr(ChunkTransfer, "_handle_error", hopeful)


def complete_poison(patch: pytest.MonkeyPatch) -> None:
    """What nobody can deliver is taken out of the way."""

    async def swept(
        self: ChunkTransfer, items: list[RestoredDelivery], reason: str, description: str
    ) -> None:
        await self._receiver.complete([each.delivered for each in items], timeout_s=5.0)
        self._close(items, ReceiptOutcome.DEAD_LETTERED, reason)

    patch.setattr(ChunkTransfer, "_dead_letter", swept)


def give_no_reason(patch: pytest.MonkeyPatch) -> None:
    """Poison is dead-lettered, and nobody can tell why."""
    bury = ChunkTransfer._queue_dead_letters

    def silent(self: ChunkTransfer, poison: Sequence[PoisonMessage]) -> None:
        bury(self, [each._replace(reason="") for each in poison])

    patch.setattr(ChunkTransfer, "_queue_dead_letters", silent)


def forget_what_was_set_aside(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks again for what was deferred."""
    patch.setattr(DeferredMessages, "add", lambda _self, _path, _numbers: None)
    patch.setattr(queue_mover, "find_deferred", lambda *_args, **_more: {})


def look_at_known_queues_only(patch: pytest.MonkeyPatch) -> None:
    """A syphon with fewer queues than the senders leaves the others to nobody."""

    async def nothing(*_args: object, **_more: object) -> tuple[str, ...]:
        return ()

    patch.setattr(BacklogSearch, "find_holding", nothing)


def move_what_belongs_to_others(patch: pytest.MonkeyPatch) -> None:
    """The mark of a pair is not looked at."""
    patch.setattr(chunk_plan, "is_accepted", lambda *_args: True)


def hide_doubt(patch: pytest.MonkeyPatch) -> None:
    """A receipt never says that a second copy may be on the primary."""
    patch.setattr(ReceiptOutcome, "may_repeat", False)


def leave_the_aliases_on(patch: pytest.MonkeyPatch) -> None:
    """The properties of the diversion stay on the message with the message."""
    take = restored_message._take_aliases

    def kept(buf: bytes, start: int, stop: int) -> tuple[dict[str, Any], bytes]:
        found, _others = take(buf, start, stop)
        return found, buf[start:stop]

    patch.setattr(restored_message, "_take_aliases", kept)
    patch.setattr(restored_message, "restore_plain", lambda _encoded, _at: None)


def forget_the_time_to_live(patch: pytest.MonkeyPatch) -> None:
    """A message that made the detour lives for ever."""
    patch.setattr(restored_message, "_restored_header", lambda priority, _ttl_ms: b"")
    patch.setattr(restored_message, "_put_times", lambda *_args: None)


def forget_the_session(patch: pytest.MonkeyPatch) -> None:
    """A message comes home without the session that it was sent to."""
    take = restored_message._take_aliases

    def without(buf: bytes, start: int, stop: int) -> tuple[dict[str, Any], bytes]:
        found, others = take(buf, start, stop)
        found.pop(restored_message.SESSION_ID, None)
        return found, others

    patch.setattr(restored_message, "_take_aliases", without)


def acknowledge_before_the_backlog_has_it(patch: pytest.MonkeyPatch) -> None:
    """Now and then a diverted send is done when its queue has been chosen."""
    decide, diverted = SendDecision.step, count(1)

    def hasty(self: SendDecision, now_s: float) -> tuple[Step, list[Event]]:
        step, events = decide(self, now_s)
        if isinstance(step, SendToBacklog) and next(diverted) % 10 == 0:
            self._end = SendSucceeded(step.queue)
            return self._end, events
        return step, events

    patch.setattr(SendDecision, "step", hasty)


def take_a_write_for_an_answer(patch: pytest.MonkeyPatch) -> None:
    """The lean driver takes a send for accepted when its connection breaks before the answer."""
    give_up = SenderEndpoint.abort

    def hopeful(self: SenderEndpoint, loss: Any) -> None:
        for outgoing in self._under_way.values():
            if not outgoing.future.done():
                outgoing.future.set_result(None)
        give_up(self, loss)

    patch.setattr(SenderEndpoint, "abort", hopeful)

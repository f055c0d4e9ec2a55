"""Settling messages whose link is gone, or that came without one: by lock token (rule M2).

Rule 1: the service takes many tokens at once and refuses all when one lock is lost; then each is
        asked for alone, and the lost ones are known.
Rule 2: some requests are under way at once, so that they share the service's commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.delivery_states import (
    STATE_ABANDONED,
    STATE_ACCEPTED,
    STATE_DEFERRED,
    Error,
    Rejected,
    encode_state,
)
from twinbus.amqp.errors import Condition
from twinbus.amqp.types import Array, Symbol
from twinbus.core.parcel import ReceivedMessage
from twinbus.service_errors import MessageLockLost, MessageNotFound, MessageRefused, SessionLockLost

# Tokens in one request; the service's own limit is not written down, the broker's is 1,000.
TOKENS_PER_REQUEST_MAX: Final = 100
REQUESTS_AT_ONCE_MAX: Final = 16

_UUID: Final = 0x98
_TOKEN_BYTES: Final = 16


class Decision:
    """What becomes of messages: as a delivery state, and as a request."""

    __slots__ = ("body", "state")

    def __init__(self, state: bytes, status: str, **more: str) -> None:
        self.state = state
        self.body: dict[str, Any] = {"disposition-status": status}
        self.body |= {name.replace("_", "-"): value for name, value in more.items()}


COMPLETE: Final = Decision(STATE_ACCEPTED, "completed")
ABANDON: Final = Decision(STATE_ABANDONED, "abandoned")
DEFER: Final = Decision(STATE_DEFERRED, "defered")


def dead_letter(reason: str, description: str) -> Decision:
    """To the dead-letter queue, with a reason."""
    info = {
        Symbol("DeadLetterReason"): reason,
        Symbol("DeadLetterErrorDescription"): description,
    }
    state = encode_state(Rejected(Error(Condition.DEAD_LETTER, description, info)))
    return Decision(
        state, "suspended", deadletter_reason=reason, deadletter_description=description
    )


def tokens_of(messages: Sequence[ReceivedMessage]) -> Array:
    """Their lock tokens, as requests want them."""
    for each in messages:
        if len(each.lock_token) != _TOKEN_BYTES:
            raise MessageRefused(
                "a message without a lock cannot be settled",
                path=each.path,
                hint="Receive it first: peeking only looks",
            )
    return Array.of(_UUID, [UUID(bytes_le=each.lock_token) for each in messages])


Ask = Callable[[Sequence[ReceivedMessage]], Awaitable[Any]]


async def lost_of(messages: Sequence[ReceivedMessage], ask: Ask) -> list[ReceivedMessage]:
    """Ask for all of them; those whose lock was lost, in their order."""
    size = TOKENS_PER_REQUEST_MAX
    if len(messages) <= size:
        return await _lost_among(messages, ask)
    room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)

    async def in_turn(part: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        async with room:
            return await _lost_among(part, ask)

    parts = [messages[start : start + size] for start in range(0, len(messages), size)]
    found = await asyncio.gather(*map(in_turn, parts))
    return [each for part in found for each in part]


async def _lost_among(messages: Sequence[ReceivedMessage], ask: Ask) -> list[ReceivedMessage]:
    if not messages or not await _is_lost(messages, ask):
        return []
    if len(messages) == 1:
        return list(messages)
    answers = await asyncio.gather(*(_is_lost([each], ask) for each in messages))
    return [each for each, is_lost in zip(messages, answers, strict=True) if is_lost]


async def _is_lost(messages: Sequence[ReceivedMessage], ask: Ask) -> bool:
    try:
        await ask(messages)
    except (MessageLockLost, SessionLockLost, MessageNotFound):
        return True
    return False

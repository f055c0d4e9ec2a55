"""Sends dead letters to their entity again.

    receive under a lock -> send -> accepted -> complete

Rule 1: a message is completed in the dead-letter queue only when its entity has accepted it.
Rule 2: an entity with duplicate detection accepts a message whose id it has seen, and drops it.
        So a message gets a new id there, unless ``--ids keep`` is given; where it is unknown
        whether an entity detects duplicates, ``--ids`` is required.
Rule 3: when some messages are selected, the others are received too, and abandoned at the end.
Rule 4: a message that is dead-lettered again during the run is not sent again: the number of
        messages is counted at the start.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from twinbus.cli.entities.commands import find_entity
from twinbus.cli.entities.purge import count_in, pages
from twinbus.cli.shared.messages import MessageSource
from twinbus.cli.shared.output import plural
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    ConfigurationError,
    MessageLockLost,
    MessageNotFound,
    ServiceError,
    TwinbusError,
)
from twinbus.mover.planning.deferred_messages import DEFERRED, read_message_state

if TYPE_CHECKING:
    from twinbus.drivers.interface import Receiver, Sender
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["Choice", "ResubmitResult", "count_matching", "resubmit_dead_letters"]

# Small enough that every lock lasts until its message is accepted.
BATCH_COUNT: Final = 50
EMPTY_AFTER_S: Final = 1.0
TIMEOUT_S: Final = 60.0
# At most these other messages are locked while the selected ones are received.
PASSED_MAX: Final = 10_000
_REASONS: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


@dataclass(frozen=True, slots=True)
class ResubmitResult:
    """The result of a run."""

    count: int
    has_new_ids: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are selected; without conditions all of them."""

    ids: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    reason: str | None = None

    @property
    def is_all(self) -> bool:
        return not self.ids and not self.numbers and self.reason is None

    def matches(self, dead: ReceivedMessage) -> bool:
        """Whether a message matches all conditions."""
        if self.numbers and dead.sequence_number not in self.numbers:
            return False
        if not self.ids and self.reason is None:
            return True
        message = decode_message(dead)
        if self.ids and str(message.message_id) not in self.ids:
            return False
        reason = (message.dead_letter_reason or "").casefold()
        return self.reason is None or reason == self.reason.casefold()


async def count_matching(
    namespace: NamespaceConnection, source: MessageSource, choice: Choice, count: int | None
) -> int:
    """The number of messages that would be sent."""
    if not choice.is_all:
        return len(await _find_matching(namespace, source, choice, count))
    found = await count_in(namespace, source)
    return found if count is None else min(found, count)


async def resubmit_dead_letters(
    namespace: NamespaceConnection,
    source: MessageSource,
    target: str,
    choice: Choice,
    count: int | None,
    ids: str,
    progress: Callable[[int], None],
) -> ResubmitResult:
    """Send up to ``count`` messages, oldest first."""
    has_new_ids = ids == "new" or (ids == "auto" and await _detects_duplicates(namespace, target))
    chosen = None if choice.is_all else await _find_matching(namespace, source, choice, count)
    wanted = (
        await count_matching(namespace, source, choice, count) if chosen is None else len(chosen)
    )
    receiver, sender = namespace.driver.receiver(source.path), namespace.driver.sender(target)
    others: list[ReceivedMessage] = []
    done = 0
    try:
        while done < wanted:
            most = BATCH_COUNT if chosen is not None else min(BATCH_COUNT, wanted - done)
            messages = await receiver.receive(most, wait_s=EMPTY_AFTER_S)
            if not messages:
                break
            if chosen is not None:
                others += [each for each in messages if each.sequence_number not in chosen]
                messages = [each for each in messages if each.sequence_number in chosen]
                if len(others) > PASSED_MAX:
                    await receiver.abandon(messages, timeout_s=TIMEOUT_S)
                    break
            async for _ in _send_each(receiver, sender, messages, source, has_new_ids):
                done += 1
            progress(done)
        if chosen is not None and done < wanted:
            raise MessageNotFound(
                f"{plural(wanted - done, 'message')} of {source} could not be received; another "
                "receiver may have locked them",
                path=source.path,
                hint="Run the command again after these locks have expired",
            )
    except ServiceError as error:
        if not done:
            raise
        raise TwinbusError(
            f"{plural(done, 'message')} sent from {source} to {target!r}, then: {error.sentence}",
            hint=error.hint,
        ) from error
    finally:
        # Abandoned only now, because they would have been delivered again at once.
        with suppress(ServiceError):
            await receiver.abandon(others, timeout_s=TIMEOUT_S)
        await sender.close()
        await receiver.close()
    return ResubmitResult(done, has_new_ids)


async def _send_each(
    receiver: Receiver,
    sender: Sender,
    messages: Sequence[ReceivedMessage],
    source: MessageSource,
    has_new_ids: bool,
) -> AsyncIterator[None]:
    """Send and complete one message after the other."""
    for at, each in enumerate(messages):
        try:
            await sender.send([to_outgoing(each, has_new_ids)], timeout_s=TIMEOUT_S)
        except TwinbusError:
            # The error is not theirs: the next receiver gets them at once.
            await receiver.abandon(messages[at:], timeout_s=TIMEOUT_S)
            raise
        if await receiver.complete([each], timeout_s=TIMEOUT_S):
            raise MessageLockLost(
                f"Message {each.sequence_number} of {source} was sent to {sender.path!r}, but its "
                "lock was lost, so it is also still in the dead-letter queue",
                path=source.path,
                hint="Check it with `twinbus dlq show` before you send it again",
            )
        yield


async def _find_matching(
    namespace: NamespaceConnection, source: MessageSource, choice: Choice, count: int | None
) -> frozenset[int]:
    """The sequence numbers of selected messages that can be received, oldest first."""
    found: list[int] = []
    async for page in pages(namespace.driver.receiver(source.path)):
        found += [
            each.sequence_number
            for each in page
            if choice.matches(each) and read_message_state(each.encoded) != DEFERRED
        ]
    return frozenset(found[:count])


def to_outgoing(dead: ReceivedMessage, has_new_id: bool) -> OutgoingMessage:
    """The message as it was before it was dead-lettered."""
    message = decode_message(dead)
    for name in _REASONS:
        message.properties.pop(name, None)
    message.scheduled_enqueue_time_utc = None
    if has_new_id:
        message.message_id = str(uuid4())
    return OutgoingMessage(encode_message(message, now_ms=int(time.time() * 1000)))


async def _detects_duplicates(namespace: NamespaceConnection, target: str) -> bool:
    try:
        found = await find_entity(namespace.management, target)
    except (AccessRefused, AuthenticationFailed) as error:
        raise ConfigurationError(
            f"Unknown whether {target!r} detects duplicates: {error.sentence.rstrip('.')}",
            hint="Add --ids new, or --ids keep if it has no duplicate detection",
        ) from error
    return found is not None and found.requires_duplicate_detection

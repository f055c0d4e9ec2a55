"""Sends dead letters back to where they come from.

    receive under a lock -> send -> accepted -> complete

Rule 1: a message is completed in the dead-letter queue only when its entity has accepted it.
Rule 2: an entity that detects duplicates acknowledges a message whose id it has seen, and drops
        it. So there a message gets a new id, unless it was said that ids must be kept; where it
        cannot be found out, that has to be said.
Rule 3: where some are chosen, the others are received as well, and given back at the end.
Rule 4: what dies again while this runs is not sent again: as many are sent as were there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from twinbus.cli.entities.commands import taken
from twinbus.cli.entities.purge import count_in, pages
from twinbus.cli.shared.messages import MessageSource
from twinbus.cli.shared.output import counted
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

__all__ = ["Choice", "Resubmitted", "count_of", "resubmitted"]

# So few that every lock lasts until its message has been accepted.
BATCH_COUNT: Final = 50
EMPTY_AFTER_S: Final = 1.0
TIMEOUT_S: Final = 60.0
# So many others are held while the chosen ones are looked for.
PASSED_MAX: Final = 10_000
_REASONS: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """What was done."""

    count: int
    has_new_ids: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant; nothing said means all."""

    ids: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    reason: str | None = None

    @property
    def is_all(self) -> bool:
        return not self.ids and not self.numbers and self.reason is None

    def takes(self, dead: ReceivedMessage) -> bool:
        """Whether a message fits everything that was said."""
        if self.numbers and dead.sequence_number not in self.numbers:
            return False
        if not self.ids and self.reason is None:
            return True
        message = decode_message(dead)
        if self.ids and str(message.message_id) not in self.ids:
            return False
        died_of = (message.dead_letter_reason or "").casefold()
        return self.reason is None or died_of == self.reason.casefold()


async def count_of(
    namespace: NamespaceConnection, source: MessageSource, choice: Choice, count: int | None
) -> int:
    """How many would be sent."""
    if not choice.is_all:
        return len(await _chosen(namespace, source, choice, count))
    found = await count_in(namespace, source)
    return found if count is None else min(found, count)


async def resubmitted(
    namespace: NamespaceConnection,
    source: MessageSource,
    target: str,
    choice: Choice,
    count: int | None,
    ids: str,
    progress: Callable[[int], None],
) -> Resubmitted:
    """Send up to so many, the oldest first."""
    has_new_ids = ids == "new" or (ids == "auto" and await _detects(namespace, target))
    chosen = None if choice.is_all else await _chosen(namespace, source, choice, count)
    wanted = await count_of(namespace, source, choice, count) if chosen is None else len(chosen)
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
            async for _ in _sent_each(receiver, sender, messages, source, has_new_ids):
                done += 1
            progress(done)
        if chosen is not None and done < wanted:
            raise MessageNotFound(
                f"{counted(wanted - done, 'message')} of {source} could not be received",
                path=source.path,
                hint="Another receiver may hold them: try again when its locks have ended",
            )
    except ServiceError as error:
        if not done:
            raise
        raise TwinbusError(
            f"{counted(done, 'message')} sent from {source} to {target!r}, then: {error.sentence}",
            hint=error.hint,
        ) from error
    finally:
        # Kept until now, because they would have come again at once.
        with suppress(ServiceError):
            await receiver.abandon(others, timeout_s=TIMEOUT_S)
        await sender.close()
        await receiver.close()
    return Resubmitted(done, has_new_ids)


async def _sent_each(
    receiver: Receiver,
    sender: Sender,
    messages: Sequence[ReceivedMessage],
    source: MessageSource,
    has_new_ids: bool,
) -> AsyncIterator[None]:
    """Send and complete one after the other."""
    for at, each in enumerate(messages):
        try:
            await sender.send([fresh(each, has_new_ids)], timeout_s=TIMEOUT_S)
        except TwinbusError:
            # They are nobody's fault: the next receiver shall have them at once.
            await receiver.abandon(messages[at:], timeout_s=TIMEOUT_S)
            raise
        if await receiver.complete([each], timeout_s=TIMEOUT_S):
            raise MessageLockLost(
                f"message {each.sequence_number} of {source} was sent to {sender.path!r}, and "
                "its lock was lost: it stays there, too",
                path=source.path,
                hint="Look at it with `twinbus dlq show` before you send it again",
            )
        yield


async def _chosen(
    namespace: NamespaceConnection, source: MessageSource, choice: Choice, count: int | None
) -> frozenset[int]:
    """The sequence numbers of those that are meant and can be received, the oldest first."""
    found: list[int] = []
    async for page in pages(namespace.driver.receiver(source.path)):
        found += [
            each.sequence_number
            for each in page
            if choice.takes(each) and read_message_state(each.encoded) != DEFERRED
        ]
    return frozenset(found[:count])


def fresh(dead: ReceivedMessage, has_new_id: bool) -> OutgoingMessage:
    """The message as it was before it died."""
    message = decode_message(dead)
    for name in _REASONS:
        message.properties.pop(name, None)
    message.scheduled_enqueue_time_utc = None
    if has_new_id:
        message.message_id = str(uuid4())
    return OutgoingMessage(encode_message(message, now_ms=int(time.time() * 1000)))


async def _detects(namespace: NamespaceConnection, target: str) -> bool:
    try:
        found = await taken(namespace.management, target)
    except (AccessRefused, AuthenticationFailed) as error:
        raise ConfigurationError(
            f"whether {target!r} would drop a message that it has seen before is not known: "
            f"{error.sentence.rstrip('.')}",
            hint="Give --ids new, or --ids keep if it has no duplicate detection",
        ) from error
    return found is not None and found.requires_duplicate_detection

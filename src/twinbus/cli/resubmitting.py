"""Sends dead letters back to where they come from.

    receive under a lock -> send -> accepted -> complete

Rule 1: a message is completed in the dead-letter queue only when its entity has accepted it.
Rule 2: an entity that detects duplicates acknowledges a message whose id it has seen, and drops
        it. So there a message gets a new id, unless it was said that ids must be kept; where it
        cannot be found out, that has to be said.
Rule 3: what dies again while this runs is not sent again: as many are sent as were there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from twinbus.cli.entities import taken
from twinbus.cli.purging import count_in
from twinbus.cli.showing import counted
from twinbus.cli.sources import Source
from twinbus.core.encoding import decode_message, encode_message
from twinbus.core.parcel import Delivered, Parcel
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.service_errors import (
    AccessRefused,
    AuthenticationFailed,
    MessageLockLost,
    ServiceError,
)

if TYPE_CHECKING:
    from twinbus.pairing.open_namespace import OpenNamespace

__all__ = ["Resubmitted", "count_of", "resubmitted"]

# So few that every lock lasts until its message has been accepted.
BATCH_COUNT: Final = 50
EMPTY_AFTER_S: Final = 1.0
TIMEOUT_S: Final = 60.0
_REASONS: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """What was done."""

    count: int
    has_new_ids: bool


async def count_of(namespace: OpenNamespace, source: Source, count: int | None) -> int:
    """How many would be sent."""
    found = await count_in(namespace, source)
    return found if count is None else min(found, count)


async def resubmitted(
    namespace: OpenNamespace,
    source: Source,
    target: str,
    count: int | None,
    ids: str,
    progress: Callable[[int], None],
) -> Resubmitted:
    """Send up to so many, the oldest first."""
    has_new_ids = ids == "new" or (ids == "auto" and await _detects(namespace, target))
    wanted = await count_of(namespace, source, count)
    receiver, sender = namespace.driver.receiver(source.path), namespace.driver.sender(target)
    done = 0
    try:
        while done < wanted:
            messages = await receiver.receive(min(BATCH_COUNT, wanted - done), wait_s=EMPTY_AFTER_S)
            if not messages:
                break
            for at, each in enumerate(messages):
                try:
                    await sender.send([fresh(each, has_new_ids)], timeout_s=TIMEOUT_S)
                except TwinbusError:
                    # They are nobody's fault: the next receiver shall have them at once.
                    await receiver.abandon(messages[at:], timeout_s=TIMEOUT_S)
                    raise
                if await receiver.complete([each], timeout_s=TIMEOUT_S):
                    raise MessageLockLost(
                        f"message {each.sequence_number} of {source} was sent to {target!r}, and "
                        "its lock was lost: it stays there, too",
                        path=source.path,
                        hint="Look at it with `twinbus dlq show` before you send it again",
                    )
                done += 1
            progress(done)
    except ServiceError as error:
        if not done:
            raise
        raise TwinbusError(
            f"{counted(done, 'message')} sent from {source} to {target!r}, then: {error.sentence}",
            hint=error.hint,
        ) from error
    finally:
        await sender.close()
        await receiver.close()
    return Resubmitted(done, has_new_ids)


def fresh(dead: Delivered, has_new_id: bool) -> Parcel:
    """The message as it was before it died."""
    message = decode_message(dead)
    for name in _REASONS:
        message.properties.pop(name, None)
    message.scheduled_enqueue_time_utc = None
    if has_new_id:
        message.message_id = str(uuid4())
    return Parcel(encode_message(message, now_ms=int(time.time() * 1000)))


async def _detects(namespace: OpenNamespace, target: str) -> bool:
    try:
        found = await taken(namespace.management, target)
    except (AccessRefused, AuthenticationFailed) as error:
        raise ConfigurationError(
            f"whether {target!r} would drop a message that it has seen before is not known: "
            f"{error.sentence.rstrip('.')}",
            hint="Give --ids new, or --ids keep if it has no duplicate detection",
        ) from error
    return found is not None and found.requires_duplicate_detection

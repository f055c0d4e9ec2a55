"""Empties a queue, a subscription, all those of a topic, or dead-letter queues, in any namespace.

    active      received and deleted
    deferred    looked for, received by their numbers and deleted
    scheduled   looked for, and taken back

Rule 1: no purge of a service is needed, only the claim Listen (and Send for scheduled messages),
        so Azure, the official emulator and our broker are emptied in the same way.
Rule 2: what receivers hold stays theirs, and is told as left.
Rule 3: it ends also while somebody goes on sending: what came after its beginning does not keep
        it busy.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.cli.shared.messages import SUBSCRIPTIONS, MessageSource, source_of
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace
from twinbus.cli.shared.output import (
    check_output_format,
    confirm,
    counted,
    print_result,
    show_progress,
)

if TYPE_CHECKING:
    from twinbus.drivers.administration import QueueProperties, SubscriptionProperties
    from twinbus.drivers.interface import Receiver
    from twinbus.encoding.transit import ReceivedMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["count_in", "pages", "purge_it", "purge_topic"]

BATCH_COUNT: Final = 500
# The service shows at most so many at once.
PEEK_COUNT: Final = 250
# So long a queue must give nothing to be called empty.
EMPTY_AFTER_S: Final = 1.0
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which messages go, besides those that could be received now."""

    deferred: bool = True
    scheduled: bool = True


def purge_it(
    where: NamespaceTarget,
    output: str,
    path: str,
    *,
    dead_letters: bool,
    deferred: bool,
    scheduled: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Empty one place."""
    check_output_format(output)
    source = source_of(path, dead_letters=dead_letters)
    kinds = Kinds(deferred, scheduled and source.topic is None and not source.is_dead_letters)

    async def the_one(_namespace: NamespaceConnection) -> list[MessageSource]:
        return [source]

    _purge(where, output, str(source), the_one, kinds, yes=yes, dry_run=dry_run)


def purge_topic(
    where: NamespaceTarget,
    output: str,
    topic: str,
    *,
    dead_letters: bool,
    deferred: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Empty every subscription of a topic."""
    check_output_format(output)

    async def subscriptions(namespace: NamespaceConnection) -> list[MessageSource]:
        management = namespace.management
        if await management.get_topic(topic) is None:
            from twinbus.errors import EntityNotFound

            raise EntityNotFound(f"there is no topic {topic!r}", hint="Check its spelling")
        return [
            MessageSource(f"{topic}{SUBSCRIPTIONS}{each.name}", dead_letters)
            async for each in management.list_subscriptions(topic)
        ]

    what = "the dead-letter queues of the" if dead_letters else "the"
    named = f"{what} subscriptions of {topic!r}"
    kinds = Kinds(deferred, scheduled=False)
    _purge(where, output, named, subscriptions, kinds, yes=yes, dry_run=dry_run)


def _purge(
    where: NamespaceTarget,
    output: str,
    named: str,
    places: Callable[[NamespaceConnection], Awaitable[list[MessageSource]]],
    kinds: Kinds,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """A command's work: count, ask, remove, tell."""

    async def counts(namespace: NamespaceConnection) -> int:
        return sum([await count_in(namespace, each) for each in await places(namespace)])

    count = run_with_namespace(where, counts)
    found = counted(count, "message")
    if dry_run:
        print_result(output, {"would_remove": count}, f"{found} would be removed from {named}")
        return
    confirm(yes, f"Remove {found} from {named} for good?", "removes messages")
    with show_progress("removed", output) as progress:
        removed, left = run_with_namespace(
            where, lambda each: _removed(each, places, kinds, progress)
        )
    rest = f"; {counted(left, 'message')} stayed" if left else ""
    print_result(
        output,
        {"removed": removed, "left": left},
        f"{counted(removed, 'message')} removed from {named}{rest}",
    )


async def _removed(
    namespace: NamespaceConnection,
    places: Callable[[NamespaceConnection], Awaitable[list[MessageSource]]],
    kinds: Kinds,
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """Empty one place after the other: how many messages went, and how many are left."""
    removed = left = 0
    for each in await places(namespace):
        went, stayed = await _removed_from(namespace, each, kinds, progress, removed)
        removed, left = removed + went, left + stayed
    return removed, left


async def count_in(namespace: NamespaceConnection, source: MessageSource) -> int:
    """How many messages there are: as the namespace counts, or seen one by one without Manage."""
    described = await _described(namespace, source)
    if described is None:
        return sum([len(page) async for page in pages(namespace.driver.receiver(source.path))])
    counts = described.counts
    return counts.dead_letter if source.is_dead_letters else counts.active + counts.scheduled


async def _described(
    namespace: NamespaceConnection, source: MessageSource
) -> QueueProperties | SubscriptionProperties | None:
    """Its properties; None for who may not ask. A key of one entity is not even known to the
    management of the namespace."""
    from twinbus.errors import AccessRefused, AuthenticationFailed, CommunicationError

    try:
        return await source.described(namespace.management)
    except (AccessRefused, AuthenticationFailed, CommunicationError):
        return None


async def _removed_from(
    namespace: NamespaceConnection,
    source: MessageSource,
    kinds: Kinds,
    progress: Callable[[int], None],
    before: int,
) -> tuple[int, int]:
    removed = 0
    async for count in _received(namespace, source):
        removed += count
        progress(before + removed)
    removed += await _parked(namespace, source, kinds)
    left = sum([len(page) async for page in pages(namespace.driver.receiver(source.path))])
    return removed, left


# -- what can be received now ---------------------------------------------------------------


async def _received(namespace: NamespaceConnection, source: MessageSource) -> AsyncIterator[int]:
    from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode

    began_ms = time.time() * 1000
    session = NEXT_SESSION if await _has_sessions(namespace, source) else None
    while True:
        receiver = namespace.driver.receiver(
            source.path, mode=ReceiveMode.RECEIVE_AND_DELETE, session=session
        )
        try:
            async for count in _emptied(receiver, began_ms):
                yield count
            if session is None or receiver.session_id is None:
                return
        finally:
            await receiver.close()


async def _emptied(receiver: Receiver, began_ms: float) -> AsyncIterator[int]:
    while messages := await receiver.receive(BATCH_COUNT, wait_s=EMPTY_AFTER_S):
        yield len(messages)
        if all((each.enqueued_at_ms or 0) > began_ms for each in messages):
            return


async def _has_sessions(namespace: NamespaceConnection, source: MessageSource) -> bool:
    """Dead letters have none. Who may not ask finds out when the queue refuses to be received
    from without one."""
    if source.is_dead_letters:
        return False
    described = await _described(namespace, source)
    return described is not None and described.requires_session


# -- what waits for its number or its time --------------------------------------------------


async def _parked(namespace: NamespaceConnection, source: MessageSource, kinds: Kinds) -> int:
    from twinbus.mover.planning.deferred_messages import DEFERRED, SCHEDULED, read_message_state

    deferred: list[int] = []
    scheduled: list[int] = []
    async for page in pages(namespace.driver.receiver(source.path)):
        for each in page:
            state = read_message_state(each.encoded)
            if state == DEFERRED and kinds.deferred:
                deferred.append(each.sequence_number)
            elif state == SCHEDULED and kinds.scheduled:
                scheduled.append(each.sequence_number)
    removed = 0
    if deferred:
        removed += await _by_number(namespace, source, deferred)
    if scheduled:
        sender = namespace.driver.sender(source.entity)
        for some in _slices(scheduled):
            await sender.cancel_scheduled(some, timeout_s=TIMEOUT_S)
            removed += len(some)
        await sender.close()
    return removed


async def _by_number(
    namespace: NamespaceConnection, source: MessageSource, numbers: list[int]
) -> int:
    from twinbus.drivers.interface import ReceiveMode
    from twinbus.errors import ServiceError

    receiver = namespace.driver.receiver(source.path, mode=ReceiveMode.RECEIVE_AND_DELETE)
    removed = 0
    try:
        for some in _slices(numbers):
            removed += len(await receiver.receive_deferred(some, timeout_s=TIMEOUT_S))
    except ServiceError:
        # Of a session: only its holder may ask for them. They are told as left.
        pass
    finally:
        await receiver.close()
    return removed


def _slices(numbers: list[int]) -> list[list[int]]:
    return [numbers[at : at + PEEK_COUNT] for at in range(0, len(numbers), PEEK_COUNT)]


async def pages(receiver: Any) -> AsyncIterator[list[ReceivedMessage]]:
    """Everything that can be seen, and nothing is taken."""
    following = 1
    try:
        while page := await receiver.peek(PEEK_COUNT, from_sequence=following, timeout_s=TIMEOUT_S):
            yield page
            following = page[-1].sequence_number + 1
    finally:
        await receiver.close()

"""Purges a queue, a subscription, all subscriptions of a topic, or dead-letter queues.

    active      received and deleted
    deferred    found by peek, received by sequence number and deleted
    scheduled   found by peek and cancelled

Rule 1: only the Listen claim is required (and Send for scheduled messages), so Azure, the official
        emulator and the twinbus broker are purged in the same way.
Rule 2: messages that are locked by other receivers are kept, and are counted as left.
Rule 3: it ends although other clients keep sending: messages that were enqueued after its start do
        not prolong it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.cli.shared.messages import SUBSCRIPTIONS, MessageSource, parse_source
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace
from twinbus.cli.shared.output import (
    check_output_format,
    confirm,
    plural,
    print_result,
    show_progress,
)

if TYPE_CHECKING:
    from twinbus.drivers.administration import QueueProperties, SubscriptionProperties
    from twinbus.drivers.interface import Receiver
    from twinbus.encoding.transit import ReceivedMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["count_in", "pages", "purge_source", "purge_topic"]

BATCH_COUNT: Final = 500
# The maximum of one peek of the service.
PEEK_COUNT: Final = 250
# A queue is empty when a receive of this duration returns nothing.
EMPTY_AFTER_S: Final = 1.0
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which messages are removed besides the active ones."""

    deferred: bool = True
    scheduled: bool = True


def purge_source(
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
    """Purge a queue, a subscription or a dead-letter queue."""
    check_output_format(output)
    source = parse_source(path, dead_letters=dead_letters)
    kinds = Kinds(deferred, scheduled and source.topic is None and not source.is_dead_letters)

    async def only_source(_namespace: NamespaceConnection) -> list[MessageSource]:
        return [source]

    _purge(where, output, str(source), only_source, kinds, yes=yes, dry_run=dry_run)


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
    """Purge every subscription of a topic."""
    check_output_format(output)

    async def subscriptions(namespace: NamespaceConnection) -> list[MessageSource]:
        management = namespace.management
        if await management.get_topic(topic) is None:
            from twinbus.errors import EntityNotFound

            raise EntityNotFound(
                f"Topic {topic!r} not found in the namespace", hint="Check the name"
            )
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
    find_sources: Callable[[NamespaceConnection], Awaitable[list[MessageSource]]],
    kinds: Kinds,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Count, confirm, remove, and print the result."""

    async def counts(namespace: NamespaceConnection) -> int:
        return sum([await count_in(namespace, each) for each in await find_sources(namespace)])

    count = run_with_namespace(where, counts)
    found = plural(count, "message")
    if dry_run:
        print_result(output, {"would_remove": count}, f"{found} would be removed from {named}")
        return
    confirm(yes, f"Permanently remove {found} from {named}?", "removes messages")
    with show_progress("removed", output) as progress:
        removed, left = run_with_namespace(
            where, lambda each: _remove_all(each, find_sources, kinds, progress)
        )
    rest = f"; {plural(left, 'message')} left" if left else ""
    print_result(
        output,
        {"removed": removed, "left": left},
        f"{plural(removed, 'message')} removed from {named}{rest}",
    )


async def _remove_all(
    namespace: NamespaceConnection,
    find_sources: Callable[[NamespaceConnection], Awaitable[list[MessageSource]]],
    kinds: Kinds,
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """Purge one source after the other; how many messages were removed, and how many are left."""
    removed = left = 0
    for each in await find_sources(namespace):
        removed_here, left_here = await _remove_from(namespace, each, kinds, progress, removed)
        removed, left = removed + removed_here, left + left_here
    return removed, left


async def count_in(namespace: NamespaceConnection, source: MessageSource) -> int:
    """The number of messages, by the namespace's count or, without the Manage claim, by peek."""
    properties = await _properties(namespace, source)
    if properties is None:
        return sum([len(page) async for page in pages(namespace.driver.receiver(source.path))])
    counts = properties.counts
    return counts.dead_letter if source.is_dead_letters else counts.active + counts.scheduled


async def _properties(
    namespace: NamespaceConnection, source: MessageSource
) -> QueueProperties | SubscriptionProperties | None:
    """Its properties; None without the Manage claim. The administration endpoint does not accept
    the keys of one entity at all."""
    from twinbus.errors import AccessRefused, AuthenticationFailed, CommunicationError

    try:
        return await source.get_properties(namespace.management)
    except (AccessRefused, AuthenticationFailed, CommunicationError):
        return None


async def _remove_from(
    namespace: NamespaceConnection,
    source: MessageSource,
    kinds: Kinds,
    progress: Callable[[int], None],
    before: int,
) -> tuple[int, int]:
    removed = 0
    async for count in _receive_active(namespace, source):
        removed += count
        progress(before + removed)
    removed += await _remove_inactive(namespace, source, kinds)
    left = sum([len(page) async for page in pages(namespace.driver.receiver(source.path))])
    return removed, left


# -- active messages ------------------------------------------------------------------------


async def _receive_active(
    namespace: NamespaceConnection, source: MessageSource
) -> AsyncIterator[int]:
    from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode

    began_ms = time.time() * 1000
    session = NEXT_SESSION if await _has_sessions(namespace, source) else None
    while True:
        receiver = namespace.driver.receiver(
            source.path, mode=ReceiveMode.RECEIVE_AND_DELETE, session=session
        )
        try:
            async for count in _receive_all(receiver, began_ms):
                yield count
            if session is None or receiver.session_id is None:
                return
        finally:
            await receiver.close()


async def _receive_all(receiver: Receiver, began_ms: float) -> AsyncIterator[int]:
    while messages := await receiver.receive(BATCH_COUNT, wait_s=EMPTY_AFTER_S):
        yield len(messages)
        if all((each.enqueued_at_ms or 0) > began_ms for each in messages):
            return


async def _has_sessions(namespace: NamespaceConnection, source: MessageSource) -> bool:
    """Dead-letter queues have no sessions. Without the Manage claim the answer is False, and a
    queue with sessions refuses the receiver."""
    if source.is_dead_letters:
        return False
    properties = await _properties(namespace, source)
    return properties is not None and properties.requires_session


# -- deferred and scheduled messages --------------------------------------------------------


async def _remove_inactive(
    namespace: NamespaceConnection, source: MessageSource, kinds: Kinds
) -> int:
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
        removed += await _remove_deferred(namespace, source, deferred)
    if scheduled:
        sender = namespace.driver.sender(source.entity)
        for some in _slices(scheduled):
            await sender.cancel_scheduled(some, timeout_s=TIMEOUT_S)
            removed += len(some)
        await sender.close()
    return removed


async def _remove_deferred(
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
        # Deferred in a session: only the receiver of the session gets them. They count as left.
        pass
    finally:
        await receiver.close()
    return removed


def _slices(numbers: list[int]) -> list[list[int]]:
    return [numbers[at : at + PEEK_COUNT] for at in range(0, len(numbers), PEEK_COUNT)]


async def pages(receiver: Any) -> AsyncIterator[list[ReceivedMessage]]:
    """All messages by peek, in pages."""
    following = 1
    try:
        while page := await receiver.peek(PEEK_COUNT, from_sequence=following, timeout_s=TIMEOUT_S):
            yield page
            following = page[-1].sequence_number + 1
    finally:
        await receiver.close()

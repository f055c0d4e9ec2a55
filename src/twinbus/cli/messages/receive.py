"""``twinbus receive`` and ``twinbus peek``.

Rule 1: a message is shown before it is settled: whatever happens, it is seen or it comes again.
Rule 2: peek takes nothing, locks nothing and counts no delivery.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.shared.messages import SUBSCRIPTIONS, MessageSource, show_messages, source_of
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import Output, check_output_format, counted
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.drivers.interface import NextSession, Receiver
    from twinbus.encoding.transit import ReceivedMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["FromNumber", "peek", "peeked", "receive"]

# A table or a list is shown as a whole, and all of it must be settled before its locks end.
AT_ONCE_MAX: Final = 1_000
BATCH_COUNT: Final = 100
PEEK_COUNT: Final = 250
TIMEOUT_S: Final = 60.0
# They have 64 bits, with a sign.
SEQUENCE_NUMBER_MAX: Final = 2**63 - 1

Path = Annotated[str, typer.Argument(help="The queue, or <topic>/subscriptions/<name>.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", help="From its dead-letter queue.")]
FromNumber = Annotated[
    int,
    typer.Option("--from", help="From this sequence number on.", min=0, max=SEQUENCE_NUMBER_MAX),
]


@with_namespace
def receive(
    path: Path,
    count: Annotated[int, typer.Option(help="At most so many.", min=1)] = 1,
    wait: Annotated[
        str, typer.Option(help="How long to wait for the next one.", metavar="TIME")
    ] = "5s",
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete on receipt: what fails to be shown is lost."),
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Of this session alone.", metavar="TEXT")
    ] = None,
    next_session: Annotated[
        bool, typer.Option("--next-session", help="Of whichever session is free.")
    ] = False,
    dead_letters: DeadLetters = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Receive messages, show them, and complete them. Needs the claim Listen.

    Each is completed after it was shown. For more than 1,000 use --output jsonl, which shows and
    completes as they come.
    """
    check_output_format(output)
    if output != "jsonl" and count > AT_ONCE_MAX:
        raise ConfigurationError(
            f"{output} shows at most {AT_ONCE_MAX:,} messages", hint="Use --output jsonl"
        )
    if session is not None and next_session:
        raise ConfigurationError("--session and --next-session differ", hint="Give one of them")
    source = source_of(path, dead_letters=dead_letters)
    wait_s = seconds(wait)

    async def ask(namespace: NamespaceConnection) -> None:
        receiver = _receiver(namespace, source, session, next_session, delete)
        try:
            await _shown_and_completed(receiver, count, wait_s, output, source, delete)
        finally:
            await receiver.close()

    run_with_namespace(where, ask)


def _receiver(
    namespace: NamespaceConnection,
    source: MessageSource,
    session: str | None,
    next_session: bool,
    delete: bool,
) -> Receiver:
    from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode

    wanted: str | NextSession | None = NEXT_SESSION if next_session else session
    mode = ReceiveMode.RECEIVE_AND_DELETE if delete else ReceiveMode.PEEK_LOCK
    return namespace.driver.receiver(source.path, mode=mode, session=wanted)


async def _shown_and_completed(
    receiver: Receiver, count: int, wait_s: float, output: str, source: MessageSource, delete: bool
) -> None:
    """As they come, when each has a line of its own; all at once otherwise."""
    held: list[ReceivedMessage] = []
    left, lost = count, 0
    while left:
        messages = await receiver.receive(min(left, BATCH_COUNT), wait_s=wait_s)
        left = left - len(messages) if messages else 0
        held += messages
        if output == "jsonl" or not left:
            show_messages(held, output, as_dead_letters=source.is_dead_letters)
            sys.stdout.flush()
            if held and not delete:
                lost += len(await receiver.complete(held, timeout_s=TIMEOUT_S))
            held = []
    if lost:
        from twinbus.errors import MessageLockLost

        raise MessageLockLost(
            f"{counted(lost, 'message')} of {source} could not be completed in time",
            path=source.path,
            hint="They come again; ask for fewer at once, or use --output jsonl",
        )


@with_namespace
def peek(
    path: Path,
    count: Annotated[int, typer.Option(help="At most so many.", min=1)] = 10,
    from_number: FromNumber = 1,
    dead_letters: DeadLetters = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Look at messages without taking them. Needs the claim Listen."""
    check_output_format(output)
    source = source_of(path, dead_letters=dead_letters)
    found = run_with_namespace(where, lambda each: peeked(each, source, count, from_number))
    show_messages(found, output, as_dead_letters=source.is_dead_letters)


async def peeked(
    namespace: NamespaceConnection, source: MessageSource, count: int, from_number: int = 1
) -> list[ReceivedMessage]:
    """The first so many messages of a place, in the order of their numbers."""
    receiver = namespace.driver.receiver(source.path)
    found: list[ReceivedMessage] = []
    try:
        while len(found) < count:
            page = await receiver.peek(
                min(count - len(found), PEEK_COUNT),
                from_sequence=found[-1].sequence_number + 1 if found else from_number,
                timeout_s=TIMEOUT_S,
            )
            if not page:
                break
            found += page
    finally:
        await receiver.close()
    if not found:
        await _check_no_topic(namespace, source)
    return found


async def _check_no_topic(namespace: NamespaceConnection, source: MessageSource) -> None:
    """A topic has nothing to look at, which "no messages" would not say."""
    from twinbus.errors import ServiceError

    with suppress(ServiceError):  # Who may not ask is not told.
        if await namespace.management.get_topic(source.entity) is not None:
            raise ConfigurationError(
                f"{source.entity!r} is a topic, whose messages are in its subscriptions",
                hint=f"Name one of them: {source.entity}{SUBSCRIPTIONS}NAME",
            )

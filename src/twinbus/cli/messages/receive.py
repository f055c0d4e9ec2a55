"""``twinbus receive`` and ``twinbus peek``.

Rule 1: a message is printed before it is settled: if the command fails, it is delivered again.
Rule 2: peek removes nothing, locks nothing and does not increase delivery counts.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.shared.messages import SUBSCRIPTIONS, MessageSource, parse_source, show_messages
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import Output, check_output_format, plural
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.drivers.interface import NextSession, Receiver
    from twinbus.encoding.transit import ReceivedMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["FromNumber", "peek", "peek_messages", "receive"]

# A table or a JSON document is printed as a whole, before the locks of its messages expire.
AT_ONCE_MAX: Final = 1_000
BATCH_COUNT: Final = 100
PEEK_COUNT: Final = 250
TIMEOUT_S: Final = 60.0
# Signed 64-bit integers.
SEQUENCE_NUMBER_MAX: Final = 2**63 - 1

Path = Annotated[str, typer.Argument(help="Queue, or <topic>/subscriptions/<name>.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", help="Use the dead-letter queue.")]
FromNumber = Annotated[
    int,
    typer.Option("--from", help="First sequence number to show.", min=0, max=SEQUENCE_NUMBER_MAX),
]


@with_namespace
def receive(
    path: Path,
    count: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 1,
    wait: Annotated[
        str, typer.Option(help="Maximum wait for the next message.", metavar="TIME")
    ] = "5s",
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete on receipt; messages are lost if the command fails."),
    ] = False,
    session: Annotated[
        str | None, typer.Option(help="Session id of the messages.", metavar="TEXT")
    ] = None,
    next_session: Annotated[
        bool, typer.Option("--next-session", help="Receive from the next available session.")
    ] = False,
    dead_letters: DeadLetters = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Receive, show and complete messages.

    A message is completed after it was shown. For more than 1,000 messages use --output jsonl,
    which shows and completes them as they arrive. Requires the Listen claim.
    """
    check_output_format(output)
    if output != "jsonl" and count > AT_ONCE_MAX:
        raise ConfigurationError(
            f"--count must be at most {AT_ONCE_MAX:,} with --output {output}, got {count:,}",
            hint="Use --output jsonl",
        )
    if session is not None and next_session:
        raise ConfigurationError(
            "--session and --next-session exclude each other",
            hint="Remove --session or --next-session",
        )
    source = parse_source(path, dead_letters=dead_letters)
    wait_s = seconds(wait)

    async def ask(namespace: NamespaceConnection) -> None:
        receiver = _receiver(namespace, source, session, next_session, delete)
        try:
            await _show_and_complete(receiver, count, wait_s, output, source, delete)
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


async def _show_and_complete(
    receiver: Receiver, count: int, wait_s: float, output: str, source: MessageSource, delete: bool
) -> None:
    """Show messages as they arrive if each is one line, otherwise all at the end."""
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
            f"The locks of {plural(lost, 'message')} of {source} expired before completion; they "
            "will be delivered again",
            path=source.path,
            hint="Use a lower --count, or --output jsonl",
        )


@with_namespace
def peek(
    path: Path,
    count: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 10,
    from_number: FromNumber = 1,
    dead_letters: DeadLetters = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Peek at messages.

    Requires the Listen claim.
    """
    check_output_format(output)
    source = parse_source(path, dead_letters=dead_letters)
    found = run_with_namespace(where, lambda each: peek_messages(each, source, count, from_number))
    show_messages(found, output, as_dead_letters=source.is_dead_letters)


async def peek_messages(
    namespace: NamespaceConnection, source: MessageSource, count: int, from_number: int = 1
) -> list[ReceivedMessage]:
    """The first ``count`` messages of a source, by sequence number."""
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
        await _check_not_topic(namespace, source)
    return found


async def _check_not_topic(namespace: NamespaceConnection, source: MessageSource) -> None:
    """Refuse a topic: it has no messages of its own, and "No messages" would be misleading."""
    from twinbus.errors import ServiceError

    with suppress(ServiceError):  # Without the Manage claim this is unknown.
        if await namespace.management.get_topic(source.entity) is not None:
            raise ConfigurationError(
                f"{source.entity!r} is a topic; its messages are in its subscriptions",
                hint=f"Use {source.entity}{SUBSCRIPTIONS}NAME",
            )

"""``twinbus send``: messages into a queue or topic.

Rule 1: messages go in batches; each batch is taken as a whole or not at all, and what was taken
        before an error is told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    check_output_format,
    counted,
    print_result,
    show_progress,
)
from twinbus.cli.shared.values import moment, settings_in
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError, TwinbusError

if TYPE_CHECKING:
    from twinbus.drivers.interface import Sender
    from twinbus.message import BrokeredMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["send"]

BATCH_COUNT: Final = 100
TIMEOUT_S: Final = 60.0
# What a batch takes around its messages.
BATCH_OVERHEAD: Final = 1_024
MESSAGE_OVERHEAD: Final = 16


@with_namespace
def send(
    path: Annotated[str, typer.Argument(help="The queue or topic.")],
    body: Annotated[str | None, typer.Argument(help="What the message says.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="The body is in this file; - is standard input.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is a message.")
    ] = False,
    count: Annotated[int, typer.Option(help="Send it so many times.", min=1)] = 1,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Its id [one of its own for each].", metavar="TEXT")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Its session.", metavar="TEXT")] = None,
    subject: Annotated[str | None, typer.Option(help="Its subject.", metavar="TEXT")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="What it answers to.", metavar="TEXT")
    ] = None,
    reply_to: Annotated[str | None, typer.Option(help="Where answers go.", metavar="TEXT")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="As application/json.", metavar="TEXT")
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option(help="Keeps messages on one partition.", metavar="TEXT")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            help="A property; NAME:=3 is a number, NAME:=true a truth value; repeatable.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="How long it may wait to be received.", metavar="TIME")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="When it becomes visible: in 10m, or at 2026-11-16T12:00Z.", metavar="TIME"
        ),
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Send a message, or many. Needs the claim Send.

    The body is the second argument, a file (--file), or each line of standard input (--lines).
    The command returns when the namespace has stored everything.
    """
    check_output_format(output)
    if sum((body is not None, file is not None, lines)) != 1:
        raise ConfigurationError(
            "a message needs one body", hint="Give it behind the path, or --file, or --lines"
        )
    if message_id is not None and (lines or count > 1):
        raise ConfigurationError(
            "--id gives many messages one id", hint="Leave it out, and each gets its own"
        )
    if lines and count > 1:
        raise ConfigurationError("--lines counts by itself", hint="Leave --count out")
    from twinbus.common.entity_path import parse_entity_path

    parse_entity_path(path)
    common = {
        "session_id": session,
        "subject": subject,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "content_type": content_type,
        "partition_key": partition_key,
        "properties": settings_in("--property", properties or []),
        "time_to_live": None if ttl is None else timedelta(seconds=seconds(ttl)),
        "scheduled_enqueue_time_utc": _scheduled(schedule),
    }
    if message_id is not None:
        common["message_id"] = message_id
    messages = _made(_bodies(body, file, count), common)
    if dry_run:
        # Everything is checked as if it were sent.
        sent = sum(1 for each in messages if _encoded(each))
        print_result(
            output, {"would_send": sent}, f"{counted(sent, 'message')} would be sent to {path!r}"
        )
        return
    with show_progress("sent", output) as progress:
        sent = run_with_namespace(where, lambda each: _sent(each, path, messages, progress))
    print_result(output, {"sent": sent}, f"{counted(sent, 'message')} sent to {path!r}")


def _scheduled(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.now(UTC) + timedelta(seconds=seconds(text))
    except ConfigurationError:
        return moment("--schedule", text, also="10m, ")


def _bodies(body: str | None, file: Path | None, count: int) -> Iterator[bytes]:
    if body is not None:
        yield from (body.encode(errors="surrogateescape") for _ in range(count))
    elif file is not None:
        content = _content(file)
        yield from (content for _ in range(count))
    else:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")


def _content(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{str(file)!r:.200} cannot be read: {error.strerror}", hint="Check --file"
        ) from error


def _made(bodies: Iterable[bytes], common: dict[str, Any]) -> Iterator[BrokeredMessage]:
    from twinbus.message import BrokeredMessage

    return (BrokeredMessage(each, **common) for each in bodies)


def _encoded(message: BrokeredMessage) -> bytes:
    import time

    from twinbus.encoding.brokered_message import encode_message

    return encode_message(message, now_ms=int(time.time() * 1000))


async def _sent(
    namespace: NamespaceConnection, path: str, messages: Iterator[BrokeredMessage], progress: Any
) -> int:
    sender = namespace.driver.sender(path)
    sent = 0
    try:
        for batch in _batches(messages, await _limit(sender)):
            await _send(sender, batch)
            sent += len(batch)
            progress(sent)
    except TwinbusError as error:
        if not sent:
            raise
        raise TwinbusError(
            f"{counted(sent, 'message')} sent to {path!r}, then: {error.sentence}",
            hint=error.hint,
        ) from error
    finally:
        await sender.close()
    return sent


async def _limit(sender: Sender) -> int:
    return (await sender.attach(timeout_s=TIMEOUT_S)).batch_limit_bytes


def _batches(messages: Iterator[BrokeredMessage], limit: int) -> Iterator[list[bytes]]:
    """So that each fits; one that does not fit alone is for the namespace to refuse."""
    while some := [_encoded(each) for each in islice(messages, BATCH_COUNT)]:
        batch: list[bytes] = []
        size = BATCH_OVERHEAD
        for each in some:
            if batch and size + len(each) + MESSAGE_OVERHEAD > limit:
                yield batch
                batch, size = [], BATCH_OVERHEAD
            batch.append(each)
            size += len(each) + MESSAGE_OVERHEAD
        yield batch


async def _send(sender: Sender, batch: list[bytes]) -> None:
    from twinbus.encoding.transit import OutgoingMessage

    await sender.send([OutgoingMessage(each) for each in batch], timeout_s=TIMEOUT_S)

"""``twinbus send``: sends messages to a queue or topic.

Rule 1: messages are sent in batches. A batch is accepted as a whole or not at all, and after an
        error the number of accepted messages is printed.
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
    plural,
    print_result,
    show_progress,
)
from twinbus.cli.shared.values import moment, parse_settings
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError, TwinbusError

if TYPE_CHECKING:
    from twinbus.drivers.interface import Sender
    from twinbus.message import BrokeredMessage
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["send"]

BATCH_COUNT: Final = 100
TIMEOUT_S: Final = 60.0
# The overhead of a batch in bytes.
BATCH_OVERHEAD: Final = 1_024
MESSAGE_OVERHEAD: Final = 16


@with_namespace
def send(
    path: Annotated[str, typer.Argument(help="Queue or topic.")],
    body: Annotated[str | None, typer.Argument(help="Body of the message.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="File with the body; - for standard input.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line of standard input as a message.")
    ] = False,
    count: Annotated[int, typer.Option(help="Number of copies to send.", min=1)] = 1,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Message id [a unique id].", metavar="TEXT")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Session id.", metavar="TEXT")] = None,
    subject: Annotated[str | None, typer.Option(help="Subject.", metavar="TEXT")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="Correlation id.", metavar="TEXT")
    ] = None,
    reply_to: Annotated[
        str | None, typer.Option(help="Entity that replies are sent to.", metavar="TEXT")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Content type, for example application/json.", metavar="TEXT")
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option(help="Partition key.", metavar="TEXT")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            help="Application property; NAME:=3 for a number, NAME:=true for a boolean; "
            "repeatable.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="Time to live, for example 10m.", metavar="TIME")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Scheduled enqueue time: 10m from now, or 2026-11-16T12:00Z.", metavar="TIME"
        ),
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Send one or more messages.

    The body is the second argument, a file (--file), or each line of standard input (--lines).
    The command ends when the namespace has stored all messages. Requires the Send claim.
    """
    check_output_format(output)
    if sum((body is not None, file is not None, lines)) != 1:
        raise ConfigurationError(
            "A message must have exactly one body",
            hint="Use the second argument, --file or --lines",
        )
    if message_id is not None and (lines or count > 1):
        raise ConfigurationError(
            "--id cannot be used with --lines or with a --count above 1",
            hint="Remove --id to give each message a unique id",
        )
    if lines and count > 1:
        raise ConfigurationError(
            "--lines and --count exclude each other", hint="Remove --lines or --count"
        )
    from twinbus.common.entity_path import parse_entity_path

    parse_entity_path(path)
    common = {
        "session_id": session,
        "subject": subject,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "content_type": content_type,
        "partition_key": partition_key,
        "properties": parse_settings("--property", properties or []),
        "time_to_live": None if ttl is None else timedelta(seconds=seconds(ttl)),
        "scheduled_enqueue_time_utc": _scheduled(schedule),
    }
    if message_id is not None:
        common["message_id"] = message_id
    messages = _create_messages(_bodies(body, file, count), common)
    if dry_run:
        # All messages are encoded, so that invalid values are reported.
        sent = sum(1 for each in messages if _encode(each))
        print_result(
            output, {"would_send": sent}, f"{plural(sent, 'message')} would be sent to {path!r}"
        )
        return
    with show_progress("sent", output) as progress:
        sent = run_with_namespace(where, lambda each: _send_all(each, path, messages, progress))
    print_result(output, {"sent": sent}, f"{plural(sent, 'message')} sent to {path!r}")


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
            f"Cannot read {str(file)!r:.200}: {error.strerror}", hint="Check the path in --file"
        ) from error


def _create_messages(bodies: Iterable[bytes], common: dict[str, Any]) -> Iterator[BrokeredMessage]:
    from twinbus.message import BrokeredMessage

    return (BrokeredMessage(each, **common) for each in bodies)


def _encode(message: BrokeredMessage) -> bytes:
    import time

    from twinbus.encoding.brokered_message import encode_message

    return encode_message(message, now_ms=int(time.time() * 1000))


async def _send_all(
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
            f"{plural(sent, 'message')} sent to {path!r}, then: {error.sentence}",
            hint=error.hint,
        ) from error
    finally:
        await sender.close()
    return sent


async def _limit(sender: Sender) -> int:
    return (await sender.attach(timeout_s=TIMEOUT_S)).batch_limit_bytes


def _batches(messages: Iterator[BrokeredMessage], limit: int) -> Iterator[list[bytes]]:
    """Batches within the size limit; the service refuses a message that is too large alone."""
    while some := [_encode(each) for each in islice(messages, BATCH_COUNT)]:
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

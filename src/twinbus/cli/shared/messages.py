"""Where commands receive messages from, and how they print them.

A source is a queue, a subscription, or the dead-letter queue of one:

    orders   news/subscriptions/all   orders/$DeadLetterQueue

A message is printed as one record of plain values.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from twinbus.cli.shared.output import plain, show_records
from twinbus.common.entity_path import parse_address
from twinbus.errors import InvalidEntityPath

if TYPE_CHECKING:
    from twinbus.drivers.administration import (
        AdministrationClient,
        QueueProperties,
        SubscriptionProperties,
    )
    from twinbus.encoding.transit import ReceivedMessage

__all__ = [
    "SUBSCRIPTIONS",
    "MessageSource",
    "parse_source",
    "show_message_records",
    "show_messages",
    "split_subscription",
    "to_message_record",
]

SUBSCRIPTIONS: Final = "/subscriptions/"
_SUBSCRIPTIONS: Final = re.compile(re.escape(SUBSCRIPTIONS), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MessageSource:
    """An entity that messages can be received from."""

    entity: str
    """The queue, or ``<topic>/subscriptions/<name>``."""
    is_dead_letters: bool = False

    @property
    def path(self) -> str:
        """The address of a receiver."""
        return f"{self.entity}/$DeadLetterQueue" if self.is_dead_letters else self.entity

    @property
    def topic(self) -> str | None:
        """The topic of a subscription; None for a queue."""
        topic, found, _name = self.entity.partition(SUBSCRIPTIONS)
        return topic if found else None

    def __str__(self) -> str:
        """The source in a sentence."""
        return (
            f"the dead-letter queue of {self.entity!r}"
            if self.is_dead_letters
            else repr(self.entity)
        )

    async def get_properties(
        self, management: AdministrationClient
    ) -> QueueProperties | SubscriptionProperties:
        """Its properties; raises EntityNotFound."""
        topic, found, name = self.entity.partition(SUBSCRIPTIONS)
        entity: QueueProperties | SubscriptionProperties | None
        if found:
            entity = await management.get_subscription(topic, name)
        else:
            entity = await management.get_queue(topic)
        if entity is None:
            from twinbus.errors import EntityNotFound

            kind = "Subscription" if found else "Queue"
            raise EntityNotFound(
                f"{kind} {self.entity!r} not found in the namespace",
                path=self.entity,
                hint="Check the name",
            )
        return entity


def split_subscription(path: str) -> tuple[str, str] | None:
    """Topic and name in ``TOPIC/subscriptions/NAME``; None for another path."""
    parts = _SUBSCRIPTIONS.split(path)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def parse_source(path: str, *, dead_letters: bool = False) -> MessageSource:
    """The source with this path; raises InvalidEntityPath."""
    address = parse_address(path)
    if address.node != "entity" or address.sub_queue == "transfer-dead-letter":
        raise InvalidEntityPath(
            f"{path!r:.80} cannot be received from",
            hint="Use a queue, <topic>/subscriptions/<name>, or one of them with --dead-letters",
        )
    return MessageSource(address.entity, dead_letters or address.sub_queue == "dead-letter")


# A row of a table shows the beginning of the body; JSON has all of it.
BODY_CHARACTERS_SHOWN: Final = 60
COLUMNS: Final = ("number", "enqueued", "message_id", "session_id", "subject", "text")
DEAD_COLUMNS: Final = (*COLUMNS[:-1], "dead_letter_reason", "dead_letter_description", "text")
# 2026-11-16T20:29:55, in UTC.
SECONDS_LENGTH: Final = 19
_STATES: Final = ("active", "deferred", "scheduled")
_TEXTS: Final = (
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "content_type",
    "content_encoding",
    "partition_key",
    "priority",
    "time_to_live",
)


def to_message_record(delivered: ReceivedMessage) -> dict[str, Any]:
    """All fields of a message. A body that is not UTF-8 is in ``body_base64``."""
    from twinbus.encoding.brokered_message import decode_message
    from twinbus.mover.planning.deferred_messages import read_message_state

    message = decode_message(delivered)
    state = read_message_state(delivered.encoded)
    record: dict[str, Any] = {
        "sequence_number": message.sequence_number,
        "message_id": message.message_id,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        **_body(message.body),
        **{name: getattr(message, name) for name in _TEXTS},
        "enqueued": message.enqueued_time_utc,
        "scheduled": message.scheduled_enqueue_time_utc,
        "state": _STATES[state] if state < len(_STATES) else str(state),
        "delivery_count": message.delivery_count,
        "dead_letter_source": message.dead_letter_source,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_error_description,
        "properties": message.properties,
    }
    return {name: plain(value) for name, value in record.items()}


def _body(body: Any) -> dict[str, Any]:
    if isinstance(body, bytes):
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            return {"body_base64": base64.b64encode(body).decode()}
    return {"body": body}


def show_messages(
    found: Sequence[ReceivedMessage], output: str, *, as_dead_letters: bool = False
) -> None:
    """Print messages as a table, a JSON list or JSON lines."""
    records = [to_message_record(each) for each in found]
    show_message_records(records, output, DEAD_COLUMNS if as_dead_letters else COLUMNS)


def show_message_records(
    records: Sequence[dict[str, Any]], output: str, columns: Sequence[str]
) -> None:
    """Print records; a table has no empty columns."""
    if output != "table":
        show_records(records, output, columns)
        return
    if not records:
        typer.echo("No messages")
        return
    rows = [_row(each) for each in records]
    show_records(rows, output, [name for name in columns if any(row.get(name) for row in rows)])


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """A shortened record; the number has no separators, so that it can be copied."""
    enqueued = str(record["enqueued"] or "")
    return {
        **record,
        "number": str(record["sequence_number"]),
        "enqueued": enqueued[:SECONDS_LENGTH].replace("T", " "),
        "text": _short(record),
    }


def _short(record: dict[str, Any]) -> str:
    body = str(record.get("body", record.get("body_base64")))
    cut = body[:BODY_CHARACTERS_SHOWN]
    return cut if cut == body else f"{cut}…"

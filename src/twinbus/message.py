"""The message of the public API: a plain value, the same for every driver.

    message = BrokeredMessage(b"...", session_id="berlin", properties={"colour": "red"})

Rule 1: sending never changes a message; a receiver returns a new one.
Rule 2: a value that no service accepts raises InvalidMessage, when the message is created and,
        because it can be changed afterwards, again when it is encoded.
Rule 3: times have a time zone. A naive datetime is refused: it would mean another time on another
        machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID, uuid4

from twinbus.errors import ConfigurationError, InvalidMessage

__all__ = ["BrokeredMessage"]

# The limit of Azure Service Bus for ids and keys.
ID_CHARACTERS_MAX: Final = 128
PRIORITY_MAX: Final = 255
# All properties of a message together, in Azure Service Bus and in our broker.
PROPERTIES_BYTES_MAX: Final = 65_536
# TimeSpan.MaxValue of .NET, which every SDK can express.
TTL_MAX: Final = timedelta(milliseconds=922_337_203_685_477)

_TEXTS: Final = (
    "session_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "content_type",
    "content_encoding",
    "partition_key",
)
_KEYS: Final = ("message_id", "session_id", "reply_to_session_id", "partition_key")


@dataclass(slots=True, kw_only=True)
class BrokeredMessage:
    """One message, to be sent or received.

    Equality compares every field, also those that the service sets on a received message.
    """

    body: Any = field(default=b"", kw_only=False)
    """``bytes`` or text (sent as UTF-8), a list of ``bytes`` (several data sections), one of
    ``twinbus.amqp.message.message``'s AmqpValue, AmqpSequence and DataSections, or None for no
    body. A received body is bytes, one of the three, or None; a body whose decoding would block
    its receiver (thousands of map keys that are numbers or UUIDs) is an UndecodedBody. One of
    thousands of elements is decoded when it is first read."""

    message_id: str | int | bytes | UUID | None = field(default_factory=lambda: str(uuid4()))
    """What duplicate detection compares; a new UUID by default."""
    session_id: str | None = None
    """Messages of one session are received in order, by one receiver at a time."""
    correlation_id: str | int | bytes | UUID | None = None
    subject: str | None = None
    """Called label in older libraries."""
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    partition_key: str | None = None
    """Keeps messages of a partitioned entity together; equal to the session id if both are set."""
    priority: int | None = None
    """Passed to the receiver; it has no effect on the order."""
    time_to_live: timedelta | None = None
    """How long the message may wait for a receiver; None for as long as the entity allows."""
    scheduled_enqueue_time_utc: datetime | None = None
    """When the message becomes visible; None for at once."""
    properties: dict[str, Any] = field(default_factory=dict)
    """Application properties: text, numbers, booleans, bytes, UUIDs, aware datetimes, and the
    classes of ``twinbus.amqp.codec.types`` where the exact AMQP type matters."""

    sequence_number: int | None = None
    """This field and those below are set by the service on a received message."""
    enqueued_sequence_number: int | None = None
    enqueued_time_utc: datetime | None = None
    locked_until_utc: datetime | None = None
    delivery_count: int = 0
    """Earlier deliveries: 0 the first time."""
    lock_token: UUID | None = None
    dead_letter_source: str | None = None
    """The entity that the message was moved from, in a dead-letter queue."""
    held: Any = field(default=None, init=False, repr=False, compare=False)
    """What its receiver needs to settle it; None for a message that was not received."""
    unread: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)
    """How to decode the body or the properties of a received message that take long, by field."""

    def __post_init__(self) -> None:
        self.check()

    @property
    def dead_letter_reason(self) -> str | None:
        """Why the message is in a dead-letter queue."""
        reason: str | None = self.properties.get("DeadLetterReason")
        return reason

    @property
    def dead_letter_error_description(self) -> str | None:
        description: str | None = self.properties.get("DeadLetterErrorDescription")
        return description

    @property
    def expires_at_utc(self) -> datetime | None:
        """When a received message with a time to live expires."""
        if self.time_to_live is None or self.enqueued_time_utc is None:
            return None
        try:
            return self.enqueued_time_utc + self.time_to_live
        except OverflowError:  # Outside the range of datetime: never.
            return None

    # -- settlement of a received message: to be awaited if its receiver is async -------------

    def complete(self) -> Any:
        """Remove the message from its queue: it was processed."""
        return self._settle("complete")

    def abandon(self) -> Any:
        """End the lock at once: the message is delivered again, with a higher delivery count."""
        return self._settle("abandon")

    def defer(self) -> Any:
        """Defer the message: it is received again by its sequence number only."""
        return self._settle("defer")

    def dead_letter(self, *, reason: str = "", description: str = "") -> Any:
        """Move the message to the dead-letter queue, with a reason."""
        return self._settle("dead_letter", reason=reason, description=description)

    def renew_lock(self) -> Any:
        """Renew the lock for another lock duration."""
        return self._settle("renew_lock")

    def _settle(self, verb: str, **reasons: str) -> Any:
        if self.held is None:
            raise ConfigurationError(
                "a message can be settled only if it was received with a lock",
                hint="Receive the message in peek-lock mode",
            )
        return self.held.settle(verb, self, **reasons)

    def check(self) -> None:
        """Raise InvalidMessage if no service accepts the message."""
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidMessage(name, f"must be a str or None, got {_kind(value)}")
        for name in _KEYS:
            value = getattr(self, name)
            if isinstance(value, str | bytes) and len(value) > ID_CHARACTERS_MAX:
                raise InvalidMessage(
                    name,
                    f"must have at most {ID_CHARACTERS_MAX} characters, got {len(value)}",
                )
        if self.time_to_live is not None:
            _check_time_to_live(self.time_to_live)
        if self.scheduled_enqueue_time_utc is not None:
            check_moment("scheduled_enqueue_time_utc", self.scheduled_enqueue_time_utc)
        if self.priority is not None:
            _check_priority(self.priority)
        if (
            self.partition_key is not None
            and self.session_id is not None
            and self.partition_key != self.session_id
        ):
            raise InvalidMessage(
                "partition_key", "differs from session_id", hint="Set one of them only"
            )

    def __repr__(self) -> str:
        """The fields that are set, without body and properties, which may be confidential."""
        shown = [f"{len(self.body)} bytes" if isinstance(self.body, bytes) else _kind(self.body)]
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            if item.repr and value not in (None, 0) and item.name != "properties":
                shown.append(f"{item.name}={value!r}")
        return f"BrokeredMessage({', '.join(shown)})"


class PartlyRead(BrokeredMessage):
    """A received message with a part that is decoded when it is first read (``unread``).

    It is a separate class because ``__getattr__`` makes every attribute access of a class slower;
    when everything was read the object becomes an ordinary BrokeredMessage.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for a slot that is still empty.
            unread = None if name == "unread" else self.unread
            if not unread or name not in unread:
                raise AttributeError(name)
            value = unread[name].read()
            setattr(self, name, value)
            return value

    def __eq__(self, other: object) -> bool:
        return self.read() == (other.read() if isinstance(other, PartlyRead) else other)

    __hash__ = None  # type: ignore[assignment]

    def read(self) -> BrokeredMessage:
        """The message, with nothing left to decode."""
        for name in self.unread or ():
            getattr(self, name)
        self.unread = None
        self.__class__ = BrokeredMessage  # type: ignore[assignment]
        return cast(BrokeredMessage, self)


def check_moment(name: str, value: Any) -> None:
    """Raise InvalidMessage unless the value is a datetime with a time zone."""
    if not isinstance(value, datetime):
        raise InvalidMessage(name, f"must be a datetime with a time zone, got {_kind(value)}")
    if value.utcoffset() is None:
        raise InvalidMessage(
            name, "has no time zone", hint="Use datetime.now(UTC), or add tzinfo=UTC"
        )


def _check_time_to_live(value: Any) -> None:
    if not isinstance(value, timedelta):
        raise InvalidMessage("time_to_live", f"must be a timedelta or None, got {_kind(value)}")
    if not timedelta(0) < value <= TTL_MAX:
        raise InvalidMessage(
            "time_to_live",
            f"must be above 0 and at most {TTL_MAX.days} days, got {value}",
            hint="Use None for no limit",
        )


def _check_priority(value: Any) -> None:
    if not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise InvalidMessage(
            "priority", f"must be a whole number from 0 to {PRIORITY_MAX}, got {value!r:.40}"
        )


def _kind(value: Any) -> str:
    return type(value).__name__

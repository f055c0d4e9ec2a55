"""The message of the public API: a plain value, the same for every driver.

    message = BrokeredMessage(b"...", session_id="berlin", properties={"colour": "red"})

Rule 1: sending never changes a message; what a receiver hands out is a new one.
Rule 2: what no service would take is refused with a sentence, when the message is built and,
        because it can be changed afterwards, again when it is encoded.
Rule 3: times carry their zone. A naive datetime is refused: it would mean another moment on
        another machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID, uuid4

from twinbus.errors import ConfigurationError, InvalidMessage

__all__ = ["BrokeredMessage"]

# Azure Service Bus's limits for what is used as a key.
ID_CHARACTERS_MAX: Final = 128
PRIORITY_MAX: Final = 255
# All properties of a message together, in Azure Service Bus and in our broker.
PROPERTIES_BYTES_MAX: Final = 65_536
# TimeSpan.MaxValue of .NET, which every SDK can say.
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

    Equality compares every field; messages that were received differ in what the service says.
    """

    body: Any = field(default=b"", kw_only=False)
    """``bytes`` or text (sent as UTF-8), a list of ``bytes`` (several data sections), one of
    ``twinbus.amqp.message.message``'s AmqpValue, AmqpSequence and DataSections, or None for no
    body. What was received is bytes, one of the three, or None; a body whose decoding would hold
    its receiver up (thousands of map keys that are numbers or UUIDs) is an UndecodedBody. One of
    thousands of elements is decoded when somebody looks at it."""

    message_id: str | int | bytes | UUID | None = field(default_factory=lambda: str(uuid4()))
    """What duplicate detection compares; a text of its own unless given."""
    session_id: str | None = None
    """Messages of one session are received in order, by one receiver at a time."""
    correlation_id: str | int | bytes | UUID | None = None
    subject: str | None = None
    """What the message is about; called label in older libraries."""
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    partition_key: str | None = None
    """Keeps messages of a partitioned entity together; equals the session id if both are set."""
    priority: int | None = None
    """Handed on to the receiver, and without effect on the order."""
    time_to_live: timedelta | None = None
    """How long the message may wait for a receiver; None for as long as the entity allows."""
    scheduled_enqueue_time_utc: datetime | None = None
    """When the message becomes visible; None for at once."""
    properties: dict[str, Any] = field(default_factory=dict)
    """The application's own: text, numbers, booleans, bytes, UUIDs, aware datetimes, and the
    classes of ``twinbus.amqp.codec.types`` where the exact AMQP type matters."""

    sequence_number: int | None = None
    """From here on: what the service says about a message that was received."""
    enqueued_sequence_number: int | None = None
    enqueued_time_utc: datetime | None = None
    locked_until_utc: datetime | None = None
    delivery_count: int = 0
    """Earlier deliveries: 0 the first time."""
    lock_token: UUID | None = None
    dead_letter_source: str | None = None
    """The entity that the message was moved from, in a dead-letter queue."""
    held: Any = field(default=None, init=False, repr=False, compare=False)
    """What its receiver keeps to settle it; None for a message that was not received."""
    unread: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)
    """Body or properties of a received message that take long to decode: how, by field."""

    def __post_init__(self) -> None:
        self.check()

    @property
    def dead_letter_reason(self) -> str | None:
        """Why it is in a dead-letter queue."""
        reason: str | None = self.properties.get("DeadLetterReason")
        return reason

    @property
    def dead_letter_error_description(self) -> str | None:
        description: str | None = self.properties.get("DeadLetterErrorDescription")
        return description

    @property
    def expires_at_utc(self) -> datetime | None:
        """When it would expire, for a message that was received and has a time to live."""
        if self.time_to_live is None or self.enqueued_time_utc is None:
            return None
        try:
            return self.enqueued_time_utc + self.time_to_live
        except OverflowError:  # Beyond the calendar is never.
            return None

    # -- settling, of a message that was received: to be awaited if its receiver is async ------

    def complete(self) -> Any:
        """It is done: the service forgets it."""
        return self._settle("complete")

    def abandon(self) -> Any:
        """Give it back at once; its delivery count grows."""
        return self._settle("abandon")

    def defer(self) -> Any:
        """Set it aside; it is received again by its number."""
        return self._settle("defer")

    def dead_letter(self, *, reason: str = "", description: str = "") -> Any:
        """Move it to the dead-letter queue, with a reason."""
        return self._settle("dead_letter", reason=reason, description=description)

    def renew_lock(self) -> Any:
        """Lock it for as long again."""
        return self._settle("renew_lock")

    def _settle(self, verb: str, **reasons: str) -> Any:
        if self.held is None:
            raise ConfigurationError(
                "a message that was not received with a lock cannot be settled",
                hint="Receive it in peek-lock mode",
            )
        return self.held.settle(verb, self, **reasons)

    def check(self) -> None:
        """Raise InvalidMessage if no service would take it."""
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidMessage(name, f"is {_kind(value)}", hint="Use a text or None")
        for name in _KEYS:
            value = getattr(self, name)
            if isinstance(value, str | bytes) and len(value) > ID_CHARACTERS_MAX:
                raise InvalidMessage(
                    name, f"has {len(value)} characters", hint=f"Use at most {ID_CHARACTERS_MAX}"
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
                "partition_key", "differs from its session_id", hint="Leave one of them out"
            )

    def __repr__(self) -> str:
        """What is set, without the body and the properties: they are the application's own."""
        shown = [f"{len(self.body)} bytes" if isinstance(self.body, bytes) else _kind(self.body)]
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            if item.repr and value not in (None, 0) and item.name != "properties":
                shown.append(f"{item.name}={value!r}")
        return f"BrokeredMessage({', '.join(shown)})"


class PartlyRead(BrokeredMessage):
    """A received message with a part that is decoded when somebody looks at it (``unread``).

    It is a class of its own because Python reads every field more slowly of one that has a
    ``__getattr__``; once everything was read it is a BrokeredMessage like any other.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python comes here only for a slot that is still empty.
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
    """Raise InvalidMessage unless the value is a datetime that knows its zone."""
    if not isinstance(value, datetime):
        raise InvalidMessage(name, f"is {_kind(value)}", hint="Use a datetime with a time zone")
    if value.utcoffset() is None:
        raise InvalidMessage(
            name, "has no time zone", hint="Use datetime.now(UTC), or add tzinfo=UTC"
        )


def _check_time_to_live(value: Any) -> None:
    if not isinstance(value, timedelta):
        raise InvalidMessage("time_to_live", f"is {_kind(value)}", hint="Use a timedelta")
    if not timedelta(0) < value <= TTL_MAX:
        raise InvalidMessage(
            "time_to_live", f"is {value}", hint="Use more than nothing, or None for no limit"
        )


def _check_priority(value: Any) -> None:
    if not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise InvalidMessage(
            "priority", f"is {value!r:.40}", hint=f"Use a whole number from 0 to {PRIORITY_MAX}"
        )


def _kind(value: Any) -> str:
    return type(value).__name__

"""The system properties of a message by the names that expressions use (``sys.Label``).

Rule 1: names are not case-sensitive. A name that is not in these tables is refused when the rule is
        created, not when the first message arrives.
Rule 2: rules are evaluated before a subscription stores the message. What only a stored or locked
        message has is refused, too: a filter on it could never match.
Rule 3: an action may change properties that the sender has set, but nothing that the broker has
        used already, for example the time to live.
"""

from __future__ import annotations

from typing import Final

from twinbus.errors import ConfigurationError

# Name in expressions, folded -> the field of the AMQP properties section.
PROPERTY_FIELDS: Final = {
    "messageid": "message_id",
    "to": "to",
    "label": "subject",
    "subject": "subject",
    "replyto": "reply_to",
    "correlationid": "correlation_id",
    "contenttype": "content_type",
    "sessionid": "group_id",
    "replytosessionid": "reply_to_group_id",
}
_FACTS: Final = frozenset(
    {
        "deliverycount",
        "enqueuedtimeutc",
        "expiresatutc",
        "partitionkey",
        "scheduledenqueuetimeutc",
        "size",
        "timetolive",
        "viapartitionkey",
    }
)
_NOT_YET: Final = frozenset(
    {
        "deadlettersource",
        "enqueuedsequencenumber",
        "lockeduntilutc",
        "locktoken",
        "sequencenumber",
        "state",
    }
)

# Azure Service Bus's limits; a sender with a longer id is refused, too.
ID_CHARACTERS_MAX: Final = 128
LIMITED_IDS: Final = frozenset({"message_id", "group_id", "reply_to_group_id"})

RESERVED_PREFIX: Final = "x-ms-"
"""Properties with the destination of a backlog message. A rule that could change them could send
the messages of other senders anywhere."""

_WRITABLE: Final = (
    "MessageId, CorrelationId, Label, To, ReplyTo, SessionId, ReplyToSessionId or ContentType"
)
_HINT: Final = (
    "Use MessageId, CorrelationId, Label, To, ReplyTo, SessionId, ReplyToSessionId, ContentType, "
    "TimeToLive, EnqueuedTimeUtc, ExpiresAtUtc, ScheduledEnqueueTimeUtc, PartitionKey, "
    "DeliveryCount or Size"
)


def readable(name: str) -> str:
    """The folded name of a system property that an expression may read."""
    folded = name.lower()
    if folded in PROPERTY_FIELDS or folded in _FACTS:
        return folded
    if folded in _NOT_YET:
        raise ConfigurationError(
            f"A message has no sys.{name} when rules are evaluated", hint=_HINT
        )
    raise ConfigurationError(
        f"Unknown system property: {('sys.' + name)!a:.60}",
        hint=_HINT,
    )


def writable(name: str) -> str:
    """The folded name of a system property that an action may set."""
    folded = readable(name)
    if folded not in PROPERTY_FIELDS:
        raise ConfigurationError(
            f"An action cannot change sys.{name}",
            hint=f"Use {_WRITABLE}",
        )
    return folded


def removable(name: str) -> str:
    """The folded name of a system property that an action may remove."""
    folded = writable(name)
    if folded == "messageid":
        raise ConfigurationError(
            "An action cannot remove sys.MessageId", hint="Set it to another value"
        )
    return folded


def check_own_name(name: str) -> None:
    """Refuse to change the properties that the mover needs for backlog messages."""
    if name.lower().startswith(RESERVED_PREFIX):
        raise ConfigurationError(
            f"An action cannot change {name!a:.60}: names that start with {RESERVED_PREFIX} "
            "are reserved for messages in a backlog",
            hint="Choose another name",
        )

"""The options of ``.option(...)``, as one checked value for reads and one for writes.

Rule 1: an unknown option is refused, with the most similar one that exists: an ignored setting
        would be noticed too late.
Rule 2: Spark compares names without case and may pass them in lower case; errors use the
        documented spelling.
Rule 3: values contain no secret. The namespace and its credential are a reference
        (spark/connection_refs.py), which is resolved in the process that connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from fnmatch import translate
from typing import Final, Self, TypeVar

from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError
from twinbus.spark.connection_refs import NamespaceRef, RefKind, option_names

__all__ = [
    "READ_OPTIONS",
    "WRITE_OPTIONS",
    "Mode",
    "ReadOptions",
    "WriteOptions",
    "check_read_options",
]

MESSAGES_PER_TRIGGER_MAX: Final = 100_000
MESSAGES_PER_TRIGGER: Final = 10_000
# Arrow's arrays end at 2 GiB, and a task holds what it reads in memory.
BYTES_PER_TRIGGER_MAX: Final = 1 << 30
BYTES_PER_TRIGGER: Final = 64 << 20
# Half a day: services close links sooner.
WAIT_S_MAX: Final = 43_200.0
WAIT_S: Final = 900.0
RECEIVERS_PER_QUEUE_MAX: Final = 64
SEND_TIMEOUT_S_MAX: Final = 3_600.0
BATCHES_IN_FLIGHT_MAX: Final = 64
_I64_MAX: Final = (1 << 63) - 1

_SOURCE_NAMES: Final = ("queue", "queues", "queuePattern", "topic")
READ_OPTIONS: Final = {
    "queue": "the queue to read",
    "queues": "several queues, separated by commas",
    "queuePattern": "all queues whose names match, with * and ?; requires the Manage claim",
    "topic": "with subscription: the topic to read from",
    "subscription": "with topic: the subscription to read",
    "subQueue": "deadLetter reads the dead-letter queue; none is the default",
    "receiveMode": "peekLock (the default) or receiveAndDelete for a stream; peek for a batch",
    "maxMessagesPerTrigger": "maximum number of messages of one micro-batch",
    "maxBytesPerTrigger": "maximum size of one micro-batch in bytes, for example 64m",
    "maxWaitTime": "seconds of one long poll while a queue is empty",
    "receiversPerQueue": "number of tasks that read one queue at the same time",
    "driverHost": "the driver's name or address as executors reach it",
    "startingSequenceNumber": "batch: the first sequence number to read",
    "maxMessages": "batch: maximum number of messages of one queue",
}
"""Names and meanings, without those of the namespace."""
WRITE_OPTIONS: Final = {
    "queue": "the queue to write to; a column 'destination' takes precedence",
    "topic": "the topic to write to; a column 'destination' takes precedence",
    "sendTimeout": "seconds until a batch of messages must be accepted, retries included",
    "batchesInFlight": "number of unacknowledged batches for one destination; 1 keeps the order "
    "also when a batch has to be sent again",
}
# Options of a query that are for Spark itself.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))
_STREAM_ONLY: Final = (
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "maxWaitTime",
    "receiversPerQueue",
    "driverHost",
)
_BATCH_ONLY: Final = ("startingSequenceNumber", "maxMessages")


class Mode(Enum):
    """How messages are read; the values are those of the option receiveMode."""

    PEEK_LOCK = "peekLock"
    RECEIVE_AND_DELETE = "receiveAndDelete"
    PEEK = "peek"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a stream or a batch reads, and how much at the same time."""

    namespace: NamespaceRef
    paths: tuple[str, ...] = ()
    """What is read, sub-queue included; empty for a pattern."""
    queue_pattern: str | None = None
    """Its queues are listed when the query starts."""
    is_dead_letter: bool = False
    mode: Mode = Mode.PEEK_LOCK
    messages_per_trigger_max: int = MESSAGES_PER_TRIGGER
    bytes_per_trigger_max: int = BYTES_PER_TRIGGER
    wait_s: float = WAIT_S
    receivers_per_queue: int = 1
    driver_host: str | None = None
    starting_sequence_number: int = 1
    messages_max: int | None = None
    """Of one queue, in a batch; None: all messages."""

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, is_streaming: bool) -> Self:
        """Raises ConfigurationError for unknown, missing and invalid options."""
        given = _Given(options, READ_OPTIONS)
        given.refuse(
            _BATCH_ONLY if is_streaming else _STREAM_ONLY,
            "a batch only" if is_streaming else "a stream only",
        )
        is_dead_letter = given.one_of("subQueue", ("none", "deadLetter"), "none") == "deadLetter"
        chosen = given.exactly_one(_SOURCE_NAMES)
        if (chosen == "topic") != given.has("subscription"):
            raise ConfigurationError(
                "The options 'topic' and 'subscription' must be set together",
                hint="Set both, or set 'queue'",
            )
        return cls(
            namespace=NamespaceRef.from_options(options),
            paths=tuple(_with_sub_queue(given.paths(chosen), is_dead_letter)),
            queue_pattern=given.pattern() if chosen == "queuePattern" else None,
            is_dead_letter=is_dead_letter,
            mode=given.mode(is_streaming=is_streaming),
            messages_per_trigger_max=given.number(
                "maxMessagesPerTrigger", MESSAGES_PER_TRIGGER, 1, MESSAGES_PER_TRIGGER_MAX
            ),
            bytes_per_trigger_max=given.size(
                "maxBytesPerTrigger", BYTES_PER_TRIGGER, 1, BYTES_PER_TRIGGER_MAX
            ),
            wait_s=given.seconds("maxWaitTime", WAIT_S, WAIT_S_MAX),
            receivers_per_queue=given.number("receiversPerQueue", 1, 1, RECEIVERS_PER_QUEUE_MAX),
            driver_host=given.text("driverHost"),
            starting_sequence_number=given.number("startingSequenceNumber", 1, 0, _I64_MAX),
            messages_max=given.number("maxMessages", 0, 1, _I64_MAX) or None,
        )

    def paths_among(self, queues: Iterable[str]) -> tuple[str, ...]:
        """What is read when these queues exist, in the order of their names."""
        if self.queue_pattern is None:
            return self.paths
        fits = re.compile(translate(self.queue_pattern)).fullmatch
        found = sorted(queue for queue in map(str.lower, queues) if fits(queue))
        return tuple(_with_sub_queue(found, self.is_dead_letter))


def check_read_options(options: Mapping[str, str]) -> None:
    """Refuse options that neither a stream nor a batch can be read with: which of the two it will
    be is not known before it starts."""
    given = {name.lower(): str(value).strip().lower() for name, value in options.items()}
    is_batch = given.get("receivemode") == Mode.PEEK.value or any(
        name.lower() in given for name in _BATCH_ONLY
    )
    ReadOptions.from_options(options, is_streaming=not is_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows are sent, and for how long it is tried."""

    namespace: NamespaceRef
    destination: str | None = None
    """For rows that name none."""
    send_timeout_s: float = 60.0
    batches_in_flight_max: int = 4

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Raises ConfigurationError for unknown and invalid options."""
        given = _Given(options, WRITE_OPTIONS)
        chosen = [name for name in ("queue", "topic") if given.has(name)]
        if len(chosen) > 1:
            raise ConfigurationError(
                "The options 'queue' and 'topic' cannot be set together",
                hint="Set one of them, or add a column 'destination'",
            )
        return cls(
            namespace=NamespaceRef.from_options(options),
            destination=given.paths(chosen[0])[0] if chosen else None,
            send_timeout_s=given.seconds("sendTimeout", 60.0, SEND_TIMEOUT_S_MAX),
            batches_in_flight_max=given.number("batchesInFlight", 4, 1, BATCHES_IN_FLIGHT_MAX),
        )


def _with_sub_queue(paths: Iterable[str], is_dead_letter: bool) -> Iterable[str]:
    return (f"{path}/$DeadLetterQueue" for path in paths) if is_dead_letter else paths


# --- reading one mapping -----------------------------------------------------------------------

_SIZE: Final = re.compile(r"(\d{1,18})\s*([kmg]?)b?", re.ASCII | re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30}
_PATTERN: Final = re.compile(r"[A-Za-z0-9._/*?-]{1,260}", re.ASCII)
_Number = TypeVar("_Number", int, float)


def _check_no_secret(name: str, value: str) -> None:
    """Errors show the values of options: no option but the one for it may contain a secret."""
    if name.lower() != RefKind.RAW.value.lower() and "sharedaccess" in value.lower():
        raise ConfigurationError(
            f"The option {name!r:.60} contains a connection string or a part of one",
            hint="Store it in a file or an environment variable, and set connectionStringFile or "
            "connectionStringEnv",
        )


class _Given:
    """The options of one query, by their documented names."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        spelled = {name.lower(): str(name) for name in (*known, *option_names())}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            _check_no_secret(name, str(value))
            if name.lower() in spelled:
                self._values[spelled[name.lower()]] = str(value).strip()
            elif name.lower() not in _SPARKS_OWN:
                raise _unknown(name, spelled)

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def refuse(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if self.has(name):
                raise ConfigurationError(
                    f"The option {name!r} is for {where}", hint="Remove the option"
                )

    def exactly_one(self, names: tuple[str, ...]) -> str:
        found = [name for name in names if self.has(name)]
        if len(found) == 1:
            return found[0]
        fault = "No option names what to read"
        if found:
            fault = f"The options {_join(found)} cannot be set together"
        raise ConfigurationError(
            fault, hint="Set exactly one of queue, queues, queuePattern, or topic + subscription"
        )

    def paths(self, chosen: str) -> list[str]:
        value = self._values[chosen]
        if chosen == "queuePattern":
            return []
        if chosen == "topic" and self.has("subscription"):
            subscription = parse_entity_path(self._values["subscription"])
            return [f"{parse_entity_path(value)}/Subscriptions/{subscription}"]
        if chosen != "queues":
            return [parse_entity_path(value)]
        # A queue that is named twice would be read by two tasks, each waiting for messages of the
        # other.
        return list(dict.fromkeys(parse_entity_path(part.strip()) for part in value.split(",")))

    def pattern(self) -> str:
        value = self._values["queuePattern"]
        if not _PATTERN.fullmatch(value):
            raise ConfigurationError(
                "The value of the option 'queuePattern' is not a pattern of queue names",
                hint="Use letters, digits, '.', '-', '_', '/', and * and ? as wildcards",
            )
        return value.lower()

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self._values.get(name, default)
        for each in allowed:
            if value.lower() == each.lower():
                return each
        raise ConfigurationError(
            f"Invalid value for the option {name!r}: {value[:40]!r}",
            hint=f"Use {' or '.join(allowed)}",
        )

    def mode(self, *, is_streaming: bool) -> Mode:
        """A batch may be run any number of times, so it peeks and removes nothing."""
        if is_streaming:
            return Mode(self.one_of("receiveMode", ("peekLock", "receiveAndDelete"), "peekLock"))
        if self.has("receiveMode") and self._values["receiveMode"].lower() != "peek":
            raise ConfigurationError(
                "A batch read removes no messages: its receiveMode is peek",
                hint="Use readStream with trigger(availableNow=True) to receive the messages",
            )
        return Mode.PEEK

    def number(self, name: str, default: int, least: int, most: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or len(value) > 19:
            raise ConfigurationError(
                f"The value of the option {name!r} is not a whole number",
                hint=f"Use {least} to {most}",
            )
        return _within(name, int(value), least, most)

    def size(self, name: str, default: int, least: int, most: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ConfigurationError(
                f"The value of the option {name!r} is not a number of bytes",
                hint="Use for example 64m, 1g or 1048576",
            )
        return _within(name, int(found[1]) << _SHIFTS[found[2].lower()], least, most)

    def seconds(self, name: str, default: float, most: float) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        try:
            seconds = float(value)
        except ValueError:
            raise ConfigurationError(
                f"The value of the option {name!r} is not a number of seconds",
                hint=f"Use 0.1 to {most:g}; the default is {default:g}",
            ) from None
        return _within(name, seconds, 0.1, most)


def _within(name: str, value: _Number, least: _Number, most: _Number) -> _Number:
    if not least <= value <= most:
        raise ConfigurationError(
            f"The value of the option {name!r} is not from {least:,} to {most:,}"
        )
    return value


def _join(names: list[str]) -> str:
    return " and ".join(map(repr, names))


def _unknown(name: str, spelled: Mapping[str, str]) -> ConfigurationError:
    if name.lower() == "path":
        return ConfigurationError(
            "format('servicebus') does not read or write a path",
            hint="Use the option 'queue' or 'topic'",
        )
    nearest = get_close_matches(name.lower(), spelled, n=1)
    known = ", ".join(spelled.values())
    hint = f"Did you mean {spelled[nearest[0]]!r}?" if nearest else f"Use one of: {known}"
    return ConfigurationError(f"Unknown option of servicebus: {name[:60]!r}", hint=hint)

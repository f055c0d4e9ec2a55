"""Every error that twinbus raises, as one family.

    TwinbusError
    ├── ConfigurationError (also a ValueError)   the caller gave something we cannot use
    │   ├── ConnectionStringError                names the key that is wrong, never its value
    │   ├── EntityExists                         a name that a queue or topic has already
    │   ├── InvalidEntityPath                    a queue or topic name that no namespace would take
    │   ├── InvalidMessage                       a message that no service would take
    │   └── PortTaken                            a port that somebody else listens on
    ├── AccessDenied                             a token that does not open this door
    ├── FilterError                              a rule that cannot be worked out for a message
    ├── StoreCorrupt                             what is on disk is not what was acknowledged
    ├── StoreRefused                             a change that breaks the store's own rules
    ├── StoreLocked                              another process owns the data directory
    ├── StoreVersionMismatch                     written by a version we do not read
    ├── StoreFull          (transient)           nothing was stored; there may be room later
    ├── StoreFailed                              the disk failed; nobody knows what is on it
    └── ServiceError, PairingError               see service_errors.py

Rule 1: an error's text is one sentence that states the facts, then a hint that offers a way out.
Rule 2: the facts are attributes too, so that programs never parse the text.
Rule 3: no secret (key, signature, token) enters an error, neither its text nor its attributes.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "AccessDenied",
    "ConfigurationError",
    "ConnectionStringError",
    "EntityExists",
    "FilterError",
    "InvalidEntityPath",
    "InvalidMessage",
    "PortTaken",
    "StoreCorrupt",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreRefused",
    "StoreVersionMismatch",
    "TwinbusError",
]


def _as_sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def _restore(kind: type[TwinbusError], args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args  # An OSError takes them in __init__, which is not called here.
    error.__dict__.update(facts)
    return error


class TwinbusError(Exception):
    """The base of the family: ``str(error)`` reads "sentence. Hint."."""

    is_transient: bool = False
    """Whether the same call may succeed later without anybody changing anything."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        self.sentence = _as_sentence(sentence)
        self.hint = _as_sentence(hint)
        super().__init__(f"{self.sentence} {self.hint}".rstrip())

    def advise(self, hint: str) -> None:
        """Offer another way out than the one it was made with."""
        self.hint = _as_sentence(hint)
        self.args = (f"{self.sentence} {self.hint}".rstrip(),)

    def __reduce__(self) -> tuple[Any, ...]:
        # The children take keyword facts, which the default pickling of exceptions cannot
        # replay; errors do travel between processes.
        return _restore, (type(self), self.args, dict(self.__dict__))


class ConfigurationError(TwinbusError, ValueError):
    """A setting, argument or file holds something that cannot be used."""


class ConnectionStringError(ConfigurationError):
    """A connection string is wrong; ``key`` names the part, the value is never repeated."""

    def __init__(self, sentence: str, *, key: str | None = None, hint: str = "") -> None:
        self.key = key
        super().__init__(sentence, hint=hint)


class EntityExists(ConfigurationError):
    """An entity cannot be made, because one has that name."""

    def __init__(self, *, kind: str, path: str) -> None:
        self.kind, self.path = kind, path
        super().__init__(f"The {kind} {path!r} exists already", hint="Choose another name")


class PortTaken(ConfigurationError):
    """A port that somebody else listens on."""

    def __init__(self, *, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"Port {port} of {host} cannot be opened: it is in use",
            hint="Choose another port, or stop the program that uses it",
        )


class InvalidEntityPath(ConfigurationError):
    """A text that can never name an entity."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(
            sentence,
            hint=hint
            or "Use letters, digits, '.', '-' and '_', with single slashes between the parts",
        )


class InvalidMessage(ConfigurationError):
    """A message holds something that no service would take; ``name`` says where."""

    def __init__(self, name: str, fault: str, *, hint: str = "") -> None:
        self.name = name
        super().__init__(f"{name} of a message {fault}", hint=hint)


class AccessDenied(TwinbusError):
    """A token is malformed, unknown, expired, or meant for another place."""


class FilterError(TwinbusError):
    """A rule that is well formed and still has no answer for one message: a division by zero,
    a number too large. It concerns one subscription, never the publisher."""


class StoreCorrupt(TwinbusError):
    """The store does not hold what was acknowledged; it is refused rather than shortened."""

    def __init__(
        self,
        *,
        path: str | os.PathLike[str],
        detail: str,
        queue_id: int | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
    ) -> None:
        self.path, self.detail = os.fspath(path), detail
        self.queue_id, self.first_seq, self.last_seq = queue_id, first_seq, last_seq
        where = "" if queue_id is None else f" in queue {queue_id}"
        if first_seq is not None:
            where += f", sequence numbers {first_seq} to {last_seq or first_seq}"
        super().__init__(
            f"the store {self.path!r} is damaged{where}: {detail}",
            hint="Keep a copy of the data directory, then run `twinbus doctor DATA --repair` or "
            "restore a backup",
        )


class StoreRefused(TwinbusError):
    """A change that breaks the store's own rules: nothing of it was stored, the store goes on."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"the store refused a change: {detail}",
            hint="Nothing was changed. Report it together with the request",
        )


class StoreLocked(TwinbusError):
    """Another process has the data directory open."""

    def __init__(self, *, path: str | os.PathLike[str], pid: int | None = None) -> None:
        self.path, self.pid = os.fspath(path), pid
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"the data directory {self.path!r} is in use by {owner}",
            hint="Stop that process or choose another data directory",
        )


class StoreVersionMismatch(TwinbusError):
    """The store was written in a format that this version does not read."""

    def __init__(
        self, *, path: str | os.PathLike[str], found: int | str, expected: int | str
    ) -> None:
        self.path, self.found, self.expected = os.fspath(path), found, expected
        super().__init__(
            f"the store {self.path!r} has format {found} and this twinbus reads {expected}",
            hint="Open it with the twinbus version that wrote it; nothing was changed",
        )


class StoreFull(TwinbusError):
    """The disk has no room: nothing of the transaction was stored, the store goes on."""

    is_transient = True

    def __init__(self, *, path: str | os.PathLike[str], detail: str = "no space left") -> None:
        self.path, self.detail = os.fspath(path), detail
        super().__init__(
            f"the store {self.path!r} is full: {detail}",
            hint="Free some disk space; sends succeed again as soon as there is room",
        )


class StoreFailed(TwinbusError):
    """Writing failed, and after that nobody knows what is on disk: the store stops for good."""

    def __init__(self, *, path: str | os.PathLike[str], detail: str) -> None:
        self.path, self.detail = os.fspath(path), detail
        super().__init__(
            f"the store {self.path!r} failed: {detail}",
            hint="Check the disk, then start the broker again: it recovers all that was "
            "acknowledged",
        )

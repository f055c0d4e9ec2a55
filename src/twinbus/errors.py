"""Every exception of twinbus.

Every error that twinbus raises, as one family.

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
    └── ServiceError, PairingError               see errors.py

What a messaging service can answer, and what a pair of them can.

    ServiceError                  one operation on one entity did not succeed
    ├── OperationTimeout          (also a TimeoutError) no answer in time: it may or may not have
    │                             been carried out
    │   └── SendInterrupted       the entity was diverted while the send waited for the primary
    ├── CommunicationError        refused, lost or unresolvable: nobody to talk to
    ├── ServiceInternalError      the service says that something broke on its side
    ├── LinkDetached              the service took our link or the entity away by force
    ├── ServerBusy                throttled before anything was stored
    ├── AuthenticationFailed      the service does not know who we are
    ├── AccessRefused             (also a PermissionError) it does, and a claim is missing (Send,
    │                             Listen, Manage)
    ├── EntityNotFound, EntityDisabled, QuotaExceeded
    ├── MessageTooLarge           more bytes than the entity takes
    ├── MessageRefused            an argument, a property or an operation it does not take
    └── MessageLockLost, SessionLockLost, SessionCannotBeLocked, MessageNotFound
    PairingError
    ├── BacklogExhausted          every backlog queue is withdrawn: a diverted send has no way
    ├── NoBacklogQueue            pairing found and made none
    ├── ReservedProperty          (also a ValueError) a property with a name of the envelope
    ├── TooLargeForBacklog        (also MessageTooLarge) fits the primary, not a backlog queue
    ├── EnvelopeError             a backlog message that cannot be brought home
    ├── BatchPartlySent           some messages of a batch are safe, the others are not
    ├── CancelImpossible          a scheduled message that cannot be taken back, or not now
    ├── AlreadyPaired             (also a ConfigurationError)
    ├── FactoryClosed             used after close
    └── FactoryFaulted            given up because its partner closed or faulted

Rule 1: an error's text is one sentence that states the facts, then a hint that offers a way out.
Rule 2: the facts are attributes too, so that programs never parse the text.
Rule 3: no secret (key, signature, token) enters an error, neither its text nor its attributes.
Rule 4: drivers translate what their library raises into ServiceError, with the original as cause.
Rule 5: ``is_transient`` says whether a retry could help; it turns false once retries are used up.
Rule 6: ``is_ambiguous`` says that the operation may have been carried out all the same.
Rule 7: two of them are errors of the system, too, so that ``except TimeoutError`` and ``except
        PermissionError`` of an application catch them. Their ``errno`` and ``strerror`` are None:
        no system call failed. Code here that waits with a timer of its own lets a ServiceError
        pass before it asks for TimeoutError or OSError.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "AccessDenied",
    "AccessRefused",
    "AlreadyPaired",
    "AuthenticationFailed",
    "BacklogExhausted",
    "BatchPartlySent",
    "CancelImpossible",
    "CommunicationError",
    "ConfigurationError",
    "ConnectionStringError",
    "EntityDisabled",
    "EntityExists",
    "EntityNotFound",
    "EnvelopeError",
    "FactoryClosed",
    "FactoryFaulted",
    "FilterError",
    "InvalidEntityPath",
    "InvalidMessage",
    "LinkDetached",
    "MessageLockLost",
    "MessageNotFound",
    "MessageRefused",
    "MessageTooLarge",
    "NoBacklogQueue",
    "OperationTimeout",
    "PairingError",
    "PortTaken",
    "QuotaExceeded",
    "ReservedProperty",
    "SendInterrupted",
    "ServerBusy",
    "ServiceError",
    "ServiceInternalError",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "StoreCorrupt",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreRefused",
    "StoreVersionMismatch",
    "TooLargeForBacklog",
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


class ServiceError(TwinbusError):
    """One operation on one entity did not succeed."""

    is_ambiguous = False
    """Whether the service may have carried it out all the same."""
    unclear_attempts = 0
    """How many attempts of a paired send had no clear answer: as many copies may exist."""

    def __init__(
        self, sentence: str, *, path: str = "", condition: str = "", hint: str = ""
    ) -> None:
        self.path, self.condition = path, condition
        super().__init__(sentence, hint=hint)

    def used_up(self) -> ServiceError:
        """This error, once the retry policy has given up on it (P7)."""
        self.is_transient = False
        return self


class OperationTimeout(ServiceError, TimeoutError):
    is_transient = True
    is_ambiguous = True


class SendInterrupted(OperationTimeout):
    """The entity was diverted while a send waited for the primary's answer, so the send went on
    to the backlog (P22). ``was_sent`` says that the message had left by then."""

    def __init__(
        self,
        sentence: str = "the entity was diverted while a send to it waited for an answer",
        *,
        path: str = "",
        condition: str = "",
        hint: str = "",
        was_sent: bool = True,
    ) -> None:
        super().__init__(sentence, path=path, condition=condition, hint=hint)
        self.is_ambiguous = was_sent


class CommunicationError(ServiceError):
    """Nobody to talk to. ``was_sent`` says that the message had left when the line broke."""

    is_transient = True

    def __init__(
        self,
        sentence: str,
        *,
        path: str = "",
        condition: str = "",
        hint: str = "",
        was_sent: bool = True,
    ) -> None:
        super().__init__(sentence, path=path, condition=condition, hint=hint)
        self.is_ambiguous = was_sent


class ServiceInternalError(ServiceError):
    is_transient = True
    is_ambiguous = True


class LinkDetached(ServiceError):
    is_transient = True
    is_ambiguous = True


class ServerBusy(ServiceError):
    """Refused before anything was stored; wait at least ``retry_after_s`` (F2)."""

    is_transient = True
    retry_after_s = 10.0


class AuthenticationFailed(ServiceError):
    """The credential was not accepted, or the token service is broken: both look the same."""


class AccessRefused(ServiceError, PermissionError):
    """A claim is missing."""


class EntityNotFound(ServiceError):
    pass


class EntityDisabled(ServiceError):
    pass


class QuotaExceeded(ServiceError):
    pass


class MessageTooLarge(ServiceError):
    pass


class MessageRefused(ServiceError):
    """The service does not take this message or this operation, now or later."""


class MessageLockLost(ServiceError):
    pass


class SessionLockLost(ServiceError):
    pass


class SessionCannotBeLocked(ServiceError):
    is_transient = True


class MessageNotFound(ServiceError):
    pass


class PairingError(TwinbusError):
    """Something about a pair of namespaces rather than one of them."""

    is_ambiguous = False
    """Whether a message may be in one of them all the same."""
    unclear_attempts = 0
    """How many attempts of a paired send had no clear answer: as many copies may exist."""


class BacklogExhausted(PairingError):
    """Every backlog queue has been withdrawn, so a diverted send has nowhere to go."""

    is_transient = True

    def __init__(
        self, *, path: str, withdrawn: tuple[str, ...], is_ambiguous: bool = False
    ) -> None:
        self.path, self.withdrawn = path, withdrawn
        self.is_ambiguous = is_ambiguous
        """Whether an attempt that had no clear answer may have stored the message."""
        where = "may be in one place or none" if is_ambiguous else "was not sent"
        super().__init__(
            f"no backlog queue is left for {path!r}: {len(withdrawn)} withdrawn",
            hint=f"Check the secondary namespace with `twinbus preflight`; the message {where}",
        )


class NoBacklogQueue(PairingError):
    """Pairing found no backlog queue and could not make one."""


class ReservedProperty(PairingError, ValueError):
    """An application property has a name that the backlog's envelope needs (P12)."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"the application property {name!r} has a name that paired namespaces reserve",
            hint="Rename the property: it would be lost or misread on the way home",
        )


class TooLargeForBacklog(PairingError, MessageTooLarge):
    """A message that the primary takes and no backlog queue would, with its aliases (P13)."""

    def __init__(
        self,
        *,
        path: str,
        size_bytes: int,
        overhead_bytes: int,
        limit_bytes: int,
        what: str = "message",
    ) -> None:
        self.path, self.condition = path, ""
        self.size_bytes, self.overhead_bytes = size_bytes, overhead_bytes
        self.limit_bytes = limit_bytes
        TwinbusError.__init__(
            self,
            f"the {what} has {size_bytes} bytes and needs {overhead_bytes} more in a backlog "
            f"queue, which takes {limit_bytes}",
            hint="Make it smaller; paired sends refuse it in every state, outage or not",
        )


class EnvelopeError(PairingError):
    """A backlog message that can never be brought home as it is (Y4).

    ``reason`` is a stable name and ``description`` a sentence, as a dead-letter queue takes them.
    """

    def __init__(self, *, reason: str, description: str) -> None:
        self.reason, self.description = reason, description
        super().__init__(
            description, hint="Look for it in the dead-letter queue of its backlog queue"
        )


class BatchPartlySent(PairingError):
    """A batch went to the backlog in parts, and not all of them found a place (P13).

    The first ``accepted`` messages are safe and must not be sent again; the error of the others
    is the cause.
    """

    is_transient = True

    def __init__(self, *, path: str, accepted: int, total: int, is_ambiguous: bool = False) -> None:
        self.path, self.accepted, self.total = path, accepted, total
        self.is_ambiguous = is_ambiguous
        """Whether some of the others may have been stored, too."""
        super().__init__(
            f"{accepted} of {total} messages for {path!r} are in the backlog, the others in no "
            "place that answered",
            hint=f"Send the last {total - accepted} again",
        )


class CancelImpossible(PairingError):
    """A scheduled message cannot be taken back; nothing was cancelled."""

    @classmethod
    def in_backlog(cls, path: str) -> CancelImpossible:
        return cls(
            f"a message for {path!r} was scheduled while its entity was diverted, so it has no "
            "sequence number yet",
            hint="It will be scheduled when it comes home; cancel it there, by the number that a "
            "peek shows",
        )

    @classmethod
    def while_diverted(cls, path: str) -> CancelImpossible:
        error = cls(
            f"{path!r} is diverted, and a scheduled message waits at its primary",
            hint="Cancel it when the entity is restored",
        )
        error.is_transient = True
        return error


class AlreadyPaired(PairingError, ConfigurationError):
    """A factory is paired once, and a secondary serves one primary (P3)."""


class FactoryClosed(PairingError):
    """A factory, or something made by it, was used after it was closed."""


class FactoryFaulted(PairingError):
    """A factory that was given up because of what happened to its partner (L1)."""

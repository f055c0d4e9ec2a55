"""Every exception that twinbus raises, as one family.

    TwinbusError
    ├── ConfigurationError (also a ValueError)   an argument, a setting or a file is invalid
    │   ├── ConnectionStringError                names the invalid key, never its value
    │   ├── EntityExists                         a queue or topic already has the name
    │   ├── InvalidEntityPath                    not a valid name of a queue or topic
    │   ├── InvalidMessage                       a message that no service accepts
    │   └── PortTaken                            a port that another program listens on
    ├── AccessDenied                             the token is invalid, or not valid for the resource
    ├── FilterError                              a rule that cannot be evaluated for one message
    ├── StoreCorrupt                             the store does not contain what was acknowledged
    ├── StoreRefused                             a change that violates a rule of the store
    ├── StoreLocked                              another process uses the data directory
    ├── StoreVersionMismatch                     the store has a format of another version
    ├── StoreFull          (transient)           the disk is full; nothing was stored
    ├── StoreFailed                              the disk failed; its content is unknown
    ├── ServiceError                             one operation on one entity failed
    │   ├── OperationTimeout    (also a TimeoutError) no response in time: the operation may have
    │   │   │                   been carried out
    │   │   └── SendInterrupted the entity was diverted while the send waited for the primary
    │   ├── CommunicationError  connection refused or lost, or host name not found
    │   ├── ServiceInternalError  the service reported an internal error
    │   ├── LinkDetached        the service detached the link
    │   ├── ServerBusy          throttled before anything was stored
    │   ├── AuthenticationFailed  the service did not accept the credential
    │   ├── AccessRefused       (also a PermissionError) a claim is missing (Send, Listen, Manage)
    │   ├── EntityNotFound, EntityDisabled, QuotaExceeded
    │   ├── MessageTooLarge     more bytes than the entity allows
    │   ├── MessageRefused      an argument, a property or an operation that is not allowed
    │   └── MessageLockLost, SessionLockLost, SessionCannotBeLocked, MessageNotFound
    └── PairingError                             about a pair of namespaces
        ├── BacklogExhausted    every backlog queue is withdrawn: a diverted send is impossible
        ├── NoBacklogQueue      pairing found no backlog queue and could not create one
        ├── ReservedProperty    (also a ValueError) a property with a name of the envelope
        ├── TooLargeForBacklog  (also MessageTooLarge) fits the primary, not a backlog queue
        ├── EnvelopeError       a backlog message that cannot be restored
        ├── BatchPartlySent     only some messages of a batch are stored
        ├── CancelImpossible    a scheduled message that cannot be cancelled, or not now
        ├── AlreadyPaired       (also a ConfigurationError)
        ├── FactoryClosed       used after close
        └── FactoryFaulted      unusable because its partner was closed or has faulted

Rule 1: an error's text is one sentence that states the facts, then a hint with the next step.
Rule 2: the facts are attributes too, so that programs never parse the text.
Rule 3: no secret (key, signature, token) enters an error, neither its text nor its attributes.
Rule 4: drivers translate what their library raises into ServiceError, with the original as cause.
Rule 5: ``is_transient`` means that a retry can help; it becomes false when retries are exhausted.
Rule 6: ``is_ambiguous`` means that the operation may have been carried out despite the error.
Rule 7: two of them are errors of the system, too, so that ``except TimeoutError`` and ``except
        PermissionError`` of an application catch them. Their ``errno`` and ``strerror`` are None:
        no system call failed. Code here that waits with a timer of its own handles ServiceError
        before TimeoutError and OSError.
"""

from __future__ import annotations

import os
from typing import Any, Final

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


# Commands and formats keep their spelling at the beginning of a sentence.
_NAMES: Final = frozenset(("pip", "servicebus", "twinbus"))


def _as_sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    The first word stays as it is unless it has nothing but lower-case letters: what has an
    underscore, a dot, a quote, a digit or a hyphen is a name, a value or an option.
    """
    text = text.strip()
    if not text:
        return text
    first = text.split(maxsplit=1)[0].rstrip(".,")
    if first.isascii() and first.isalpha() and first.islower() and first not in _NAMES:
        text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + "."


def _restore(kind: type[TwinbusError], args: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args  # An OSError takes them in __init__, which is not called here.
    error.__dict__.update(facts)
    return error


class TwinbusError(Exception):
    """The base of the family: ``str(error)`` reads "sentence. Hint."."""

    is_transient: bool = False
    """Whether the same call may succeed later although nothing is changed."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        self.sentence = _as_sentence(sentence)
        self.hint = _as_sentence(hint)
        super().__init__(f"{self.sentence} {self.hint}".rstrip())

    def advise(self, hint: str) -> None:
        """Replace the hint."""
        self.hint = _as_sentence(hint)
        self.args = (f"{self.sentence} {self.hint}".rstrip(),)

    def __reduce__(self) -> tuple[Any, ...]:
        # The children take keyword facts, which the default pickling of exceptions cannot
        # replay; errors do travel between processes.
        return _restore, (type(self), self.args, dict(self.__dict__))


class ConfigurationError(TwinbusError, ValueError):
    """A setting, an argument or a file is invalid."""


class ConnectionStringError(ConfigurationError):
    """A connection string is invalid; ``key`` names the part, its value is never repeated."""

    def __init__(self, sentence: str, *, key: str | None = None, hint: str = "") -> None:
        self.key = key
        super().__init__(sentence, hint=hint)


class EntityExists(ConfigurationError):
    """An entity cannot be created, because another one has its name."""

    def __init__(self, *, kind: str, path: str) -> None:
        self.kind, self.path = kind, path
        super().__init__(f"{kind} {path!r} already exists", hint="Choose another name")


class PortTaken(ConfigurationError):
    """A port that another program listens on."""

    def __init__(self, *, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"Port {port} of {host} is in use",
            hint="Choose another port, or stop the program that uses it",
        )


class InvalidEntityPath(ConfigurationError):
    """A text that is not a valid name of an entity."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(
            sentence,
            hint=hint
            or "Use letters, digits, '.', '-' and '_', with single slashes between the segments",
        )


class InvalidMessage(ConfigurationError):
    """A message has a value that no service accepts; ``name`` is the field or property."""

    def __init__(self, name: str, fault: str, *, hint: str = "") -> None:
        self.name = name
        super().__init__(f"Invalid message: {name} {fault}", hint=hint)


class AccessDenied(TwinbusError):
    """A token is malformed, unknown or expired, or valid for another resource."""


class FilterError(TwinbusError):
    """A valid rule that has no result for one message, for example because of a division by
    zero. It concerns one subscription, never the sender of the message."""


class StoreCorrupt(TwinbusError):
    """The store does not contain what was acknowledged; it is not opened, and not truncated."""

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
            hint="Copy the data directory, then run `twinbus doctor DATA --repair` or "
            "restore a backup",
        )


class StoreRefused(TwinbusError):
    """A change that violates a rule of the store: nothing of it was stored, the store goes on."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"the store refused a change: {detail}",
            hint="Report this error together with the request; nothing was stored",
        )


class StoreLocked(TwinbusError):
    """Another process has the data directory open."""

    def __init__(self, *, path: str | os.PathLike[str], pid: int | None = None) -> None:
        self.path, self.pid = os.fspath(path), pid
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"the data directory {self.path!r} is in use by {owner}",
            hint="Stop that process, or choose another data directory",
        )


class StoreVersionMismatch(TwinbusError):
    """The store has a format that this version does not read."""

    def __init__(
        self, *, path: str | os.PathLike[str], found: int | str, expected: int | str
    ) -> None:
        self.path, self.found, self.expected = os.fspath(path), found, expected
        super().__init__(
            f"the store {self.path!r} has format {found}; this version of twinbus reads {expected}",
            hint="Open it with the twinbus version that wrote it; nothing was changed",
        )


class StoreFull(TwinbusError):
    """The disk is full: nothing of the transaction was stored, the store goes on."""

    is_transient = True

    def __init__(self, *, path: str | os.PathLike[str], detail: str = "no space left") -> None:
        self.path, self.detail = os.fspath(path), detail
        super().__init__(
            f"the store {self.path!r} is full: {detail}",
            hint="Free some disk space; sends succeed again when space is available",
        )


class StoreFailed(TwinbusError):
    """A write failed, so that the content of the disk is unknown: the store stops for good."""

    def __init__(self, *, path: str | os.PathLike[str], detail: str) -> None:
        self.path, self.detail = os.fspath(path), detail
        super().__init__(
            f"the store {self.path!r} failed: {detail}",
            hint="Check the disk, then start the broker again: it recovers everything that was "
            "acknowledged",
        )


class ServiceError(TwinbusError):
    """One operation on one entity failed."""

    is_ambiguous = False
    """Whether the service may have carried out the operation despite the error."""
    unclear_attempts = 0
    """How many attempts of a paired send were ambiguous: as many copies may exist."""

    def __init__(
        self, sentence: str, *, path: str = "", condition: str = "", hint: str = ""
    ) -> None:
        self.path, self.condition = path, condition
        super().__init__(sentence, hint=hint)

    def mark_final(self) -> ServiceError:
        """Mark the error as not transient, because all retries have failed (P7); returns it."""
        self.is_transient = False
        return self


class OperationTimeout(ServiceError, TimeoutError):
    is_transient = True
    is_ambiguous = True


class SendInterrupted(OperationTimeout):
    """The entity was diverted while a send waited for the primary's response, so the message was
    sent to the backlog (P22). ``was_sent``: the message had been transmitted by then."""

    def __init__(
        self,
        sentence: str = "the entity was diverted while a send to it waited for a response",
        *,
        path: str = "",
        condition: str = "",
        hint: str = "",
        was_sent: bool = True,
    ) -> None:
        super().__init__(sentence, path=path, condition=condition, hint=hint)
        self.is_ambiguous = was_sent


class CommunicationError(ServiceError):
    """No connection. ``was_sent``: the message had been transmitted when it was lost."""

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
    """The credential was not accepted, or the token service failed: the error is the same."""


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
    """The service does not accept this message or this operation, now or later."""


class MessageLockLost(ServiceError):
    pass


class SessionLockLost(ServiceError):
    pass


class SessionCannotBeLocked(ServiceError):
    is_transient = True


class MessageNotFound(ServiceError):
    pass


class PairingError(TwinbusError):
    """An error about a pair of namespaces, not about one of them."""

    is_ambiguous = False
    """Whether a message may have been stored in one of them despite the error."""
    unclear_attempts = 0
    """How many attempts of a paired send were ambiguous: as many copies may exist."""


class BacklogExhausted(PairingError):
    """Every backlog queue is withdrawn, so a diverted message cannot be sent."""

    is_transient = True

    def __init__(
        self, *, path: str, withdrawn: tuple[str, ...], is_ambiguous: bool = False
    ) -> None:
        self.path, self.withdrawn = path, withdrawn
        self.is_ambiguous = is_ambiguous
        """Whether an attempt without a response may have stored the message."""
        fact = "may have been stored" if is_ambiguous else "was not sent"
        super().__init__(
            f"no backlog queue is available for {path!r}: {len(withdrawn)} withdrawn",
            hint=f"Check the secondary namespace with `twinbus preflight`; the message {fact}",
        )


class NoBacklogQueue(PairingError):
    """Pairing found no backlog queue and could not create one."""


class ReservedProperty(PairingError, ValueError):
    """An application property has a name that the backlog's envelope needs (P12)."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"application property {name!r} has a name that is reserved for paired namespaces",
            hint="Rename the property: the backlog uses this name",
        )


class TooLargeForBacklog(PairingError, MessageTooLarge):
    """A message that fits the primary and, with the envelope, no backlog queue (P13)."""

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
            f"queue, whose limit is {limit_bytes} bytes",
            hint="Reduce its size; paired sends refuse it in normal operation, too",
        )


class EnvelopeError(PairingError):
    """A backlog message that can never be restored (Y4).

    ``reason`` is a stable name and ``description`` a sentence, for the dead-letter queue.
    """

    def __init__(self, *, reason: str, description: str) -> None:
        self.reason, self.description = reason, description
        super().__init__(description, hint="Find it in the dead-letter queue of its backlog queue")


class BatchPartlySent(PairingError):
    """A batch was sent to the backlog in parts, and not all parts were stored (P13).

    The first ``accepted`` messages are stored and must not be sent again; the error of the others
    is the cause.
    """

    is_transient = True

    def __init__(self, *, path: str, accepted: int, total: int, is_ambiguous: bool = False) -> None:
        self.path, self.accepted, self.total = path, accepted, total
        self.is_ambiguous = is_ambiguous
        """Whether some of the others may have been stored as well."""
        super().__init__(
            f"{accepted} of {total} messages for {path!r} are stored in the backlog; no backlog "
            "queue confirmed the others",
            hint=f"Send the last {total - accepted} messages again",
        )


class CancelImpossible(PairingError):
    """A scheduled message cannot be cancelled; nothing was changed."""

    @classmethod
    def in_backlog(cls, path: str) -> CancelImpossible:
        return cls(
            f"a message for {path!r} was scheduled while its entity was diverted, so it has no "
            "sequence number yet",
            hint="Wait until the syphon has moved it to the primary, then peek at it and cancel it "
            "by its sequence number",
        )

    @classmethod
    def while_diverted(cls, path: str) -> CancelImpossible:
        error = cls(
            f"{path!r} is diverted; scheduled messages on its primary cannot be cancelled now",
            hint="Repeat the call when the entity is restored",
        )
        error.is_transient = True
        return error


class AlreadyPaired(PairingError, ConfigurationError):
    """A factory is paired once, and a secondary serves one primary (P3)."""


class FactoryClosed(PairingError):
    """A factory, or an object created by it, was used after it was closed."""


class FactoryFaulted(PairingError):
    """A factory that can no longer be used, because its partner was closed or has faulted (L1)."""

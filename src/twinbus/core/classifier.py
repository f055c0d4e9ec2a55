"""Which error means what: one table for the primary, one for a backlog queue.

Rule 1: an error is looked up by its class, then by its parents, so that a user's own error
        inherits the meaning of ours unless a table says otherwise.
Rule 2: what no table knows is the caller's business: it is raised as it is and diverts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from twinbus.argument_types import check_type
from twinbus.service_errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceInternalError,
    TooLargeForBacklog,
)


class Verdict(Enum):
    """What an error of the primary means for its entity (P7)."""

    OUTAGE = auto()
    """Failover class: counts for the entity once the retries are used up."""
    THROTTLED = auto()
    """Wait and send again; never diverts (F2)."""
    CREDENTIAL = auto()
    """A configuration error, or an outage if this credential worked before in this process."""
    CALLER = auto()
    """Raised as it is."""


class BacklogVerdict(Enum):
    """What an error of a backlog queue means for the send that met it (P9)."""

    WITHDRAW = auto()
    TRY_ANOTHER = auto()
    ASK_ANOTHER = auto()
    """It is about this queue, or about the message: the answer of one other queue tells (P20)."""
    GIVE_UP = auto()
    """Another queue would answer the same: never hop with such a message (P13)."""


PRIMARY_ERRORS: Final[Mapping[type[BaseException], Verdict]] = MappingProxyType(
    {
        OperationTimeout: Verdict.OUTAGE,
        CommunicationError: Verdict.OUTAGE,
        ServiceInternalError: Verdict.OUTAGE,
        LinkDetached: Verdict.OUTAGE,
        ServerBusy: Verdict.THROTTLED,
        AuthenticationFailed: Verdict.CREDENTIAL,
        AccessRefused: Verdict.CALLER,
        EntityNotFound: Verdict.CALLER,
        EntityDisabled: Verdict.CALLER,
        QuotaExceeded: Verdict.CALLER,
        MessageTooLarge: Verdict.CALLER,
        MessageRefused: Verdict.CALLER,
    }
)

BACKLOG_ERRORS: Final[Mapping[type[BaseException], BacklogVerdict]] = MappingProxyType(
    {
        OperationTimeout: BacklogVerdict.WITHDRAW,
        CommunicationError: BacklogVerdict.WITHDRAW,
        ServiceInternalError: BacklogVerdict.WITHDRAW,
        LinkDetached: BacklogVerdict.WITHDRAW,
        AuthenticationFailed: BacklogVerdict.WITHDRAW,
        AccessRefused: BacklogVerdict.WITHDRAW,
        EntityNotFound: BacklogVerdict.WITHDRAW,
        EntityDisabled: BacklogVerdict.WITHDRAW,
        QuotaExceeded: BacklogVerdict.WITHDRAW,
        ServerBusy: BacklogVerdict.TRY_ANOTHER,
        MessageTooLarge: BacklogVerdict.ASK_ANOTHER,
        MessageRefused: BacklogVerdict.ASK_ANOTHER,
        TooLargeForBacklog: BacklogVerdict.GIVE_UP,
    }
)


@dataclass(frozen=True, slots=True)
class Classifier:
    """The two tables; give your own rows to change what counts."""

    primary: Mapping[type[BaseException], Verdict] = field(default_factory=lambda: PRIMARY_ERRORS)
    backlog: Mapping[type[BaseException], BacklogVerdict] = field(
        default_factory=lambda: BACKLOG_ERRORS
    )

    def __post_init__(self) -> None:
        for name in ("primary", "backlog"):
            check_type(name, getattr(self, name), Mapping, hint="Map classes of errors to verdicts")

    def with_primary(self, rows: Mapping[type[BaseException], Verdict]) -> Classifier:
        """This classifier with some rows of the primary's table replaced or added."""
        return Classifier({**self.primary, **rows}, self.backlog)

    def at_primary(self, error: BaseException, *, credential_worked: bool) -> Verdict:
        """OUTAGE, THROTTLED or CALLER."""
        verdict = next(
            (self.primary[kind] for kind in type(error).__mro__ if kind in self.primary),
            Verdict.CALLER,
        )
        if verdict is Verdict.CREDENTIAL:
            return Verdict.OUTAGE if credential_worked else Verdict.CALLER
        return verdict

    def at_backlog(self, error: BaseException) -> BacklogVerdict:
        return next(
            (self.backlog[kind] for kind in type(error).__mro__ if kind in self.backlog),
            BacklogVerdict.GIVE_UP,
        )

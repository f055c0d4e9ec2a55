"""Which error means what: one table for the primary, one for a backlog queue.

Rule 1: an error is looked up by its class, then by its parents, so that a user's own error
        inherits the meaning of ours unless a table has a row for it.
Rule 2: an error that is in no table is the caller's: it is raised as it is and diverts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from twinbus.common.argument_types import check_type
from twinbus.errors import (
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


class PrimaryErrorClass(Enum):
    """What an error of the primary means for its entity (P7)."""

    OUTAGE = auto()
    """Failover class: counts for the entity once the retries are used up."""
    THROTTLED = auto()
    """Wait and send again; never diverts (F2)."""
    CREDENTIAL = auto()
    """A configuration error, or an outage if this credential worked before in this process."""
    CALLER = auto()
    """Raised as it is."""


class BacklogErrorClass(Enum):
    """What an error of a backlog queue means for the send that failed (P9)."""

    WITHDRAW = auto()
    TRY_ANOTHER = auto()
    ASK_ANOTHER = auto()
    """It concerns this queue, or the message: the answer of one other queue decides (P20)."""
    GIVE_UP = auto()
    """Another queue would answer the same: such a message is not tried elsewhere (P13)."""


PRIMARY_ERRORS: Final[Mapping[type[BaseException], PrimaryErrorClass]] = MappingProxyType(
    {
        OperationTimeout: PrimaryErrorClass.OUTAGE,
        CommunicationError: PrimaryErrorClass.OUTAGE,
        ServiceInternalError: PrimaryErrorClass.OUTAGE,
        LinkDetached: PrimaryErrorClass.OUTAGE,
        ServerBusy: PrimaryErrorClass.THROTTLED,
        AuthenticationFailed: PrimaryErrorClass.CREDENTIAL,
        AccessRefused: PrimaryErrorClass.CALLER,
        EntityNotFound: PrimaryErrorClass.CALLER,
        EntityDisabled: PrimaryErrorClass.CALLER,
        QuotaExceeded: PrimaryErrorClass.CALLER,
        MessageTooLarge: PrimaryErrorClass.CALLER,
        MessageRefused: PrimaryErrorClass.CALLER,
    }
)

BACKLOG_ERRORS: Final[Mapping[type[BaseException], BacklogErrorClass]] = MappingProxyType(
    {
        OperationTimeout: BacklogErrorClass.WITHDRAW,
        CommunicationError: BacklogErrorClass.WITHDRAW,
        ServiceInternalError: BacklogErrorClass.WITHDRAW,
        LinkDetached: BacklogErrorClass.WITHDRAW,
        AuthenticationFailed: BacklogErrorClass.WITHDRAW,
        AccessRefused: BacklogErrorClass.WITHDRAW,
        EntityNotFound: BacklogErrorClass.WITHDRAW,
        EntityDisabled: BacklogErrorClass.WITHDRAW,
        QuotaExceeded: BacklogErrorClass.WITHDRAW,
        ServerBusy: BacklogErrorClass.TRY_ANOTHER,
        MessageTooLarge: BacklogErrorClass.ASK_ANOTHER,
        MessageRefused: BacklogErrorClass.ASK_ANOTHER,
        TooLargeForBacklog: BacklogErrorClass.GIVE_UP,
    }
)


@dataclass(frozen=True, slots=True)
class Classifier:
    """The two tables; pass your own rows to change the class of an error."""

    primary: Mapping[type[BaseException], PrimaryErrorClass] = field(
        default_factory=lambda: PRIMARY_ERRORS
    )
    backlog: Mapping[type[BaseException], BacklogErrorClass] = field(
        default_factory=lambda: BACKLOG_ERRORS
    )

    def __post_init__(self) -> None:
        for name in ("primary", "backlog"):
            hint = "Use a mapping from exception classes to error classes"
            check_type(name, getattr(self, name), Mapping, hint=hint)

    def with_primary(self, rows: Mapping[type[BaseException], PrimaryErrorClass]) -> Classifier:
        """This classifier with some rows of the primary's table replaced or added."""
        return Classifier({**self.primary, **rows}, self.backlog)

    def at_primary(self, error: BaseException, *, credential_worked: bool) -> PrimaryErrorClass:
        """OUTAGE, THROTTLED or CALLER."""
        error_class = next(
            (self.primary[kind] for kind in type(error).__mro__ if kind in self.primary),
            PrimaryErrorClass.CALLER,
        )
        if error_class is PrimaryErrorClass.CREDENTIAL:
            return PrimaryErrorClass.OUTAGE if credential_worked else PrimaryErrorClass.CALLER
        return error_class

    def at_backlog(self, error: BaseException) -> BacklogErrorClass:
        return next(
            (self.backlog[kind] for kind in type(error).__mro__ if kind in self.backlog),
            BacklogErrorClass.GIVE_UP,
        )

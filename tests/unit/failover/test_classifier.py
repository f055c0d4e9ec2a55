"""Which error means what, one by one."""

from __future__ import annotations

import pytest

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
    ServiceError,
    ServiceInternalError,
    TooLargeForBacklog,
)
from twinbus.failover.error_classifier import BacklogErrorClass, Classifier, PrimaryErrorClass

OUTAGES = [OperationTimeout, CommunicationError, ServiceInternalError, LinkDetached]
CALLERS = [
    AccessRefused,
    EntityNotFound,
    EntityDisabled,
    QuotaExceeded,
    MessageTooLarge,
    MessageRefused,
]


@pytest.mark.parametrize("kind", OUTAGES)
def test_an_outage_is_of_the_failover_class(kind: type[ServiceError]) -> None:
    """P7: timeouts, lost connections, internal errors and forced detaches count."""
    verdict = Classifier().at_primary(kind("gone"), credential_worked=False)
    assert verdict is PrimaryErrorClass.OUTAGE


@pytest.mark.parametrize("kind", CALLERS)
@pytest.mark.parametrize("worked", [True, False])
def test_a_callers_error_never_counts(kind: type[ServiceError], worked: bool) -> None:
    """P7: unauthorized, not found, disabled, quota, size and bad arguments do not divert."""
    assert Classifier().at_primary(kind("no"), credential_worked=worked) is PrimaryErrorClass.CALLER


def test_throttling_is_a_class_of_its_own() -> None:
    """F2: ServerBusy never diverts."""
    busy = ServerBusy("not now")
    assert Classifier().at_primary(busy, credential_worked=True) is PrimaryErrorClass.THROTTLED
    assert Classifier().at_backlog(busy) is BacklogErrorClass.TRY_ANOTHER


def test_a_credential_that_never_worked_is_the_callers_error() -> None:
    """P7: an authentication failure is a configuration error."""
    error = AuthenticationFailed("who?")
    assert Classifier().at_primary(error, credential_worked=False) is PrimaryErrorClass.CALLER


def test_a_credential_that_worked_before_makes_it_an_outage() -> None:
    """P7: a broken token service looks like a wrong key."""
    error = AuthenticationFailed("who?")
    assert Classifier().at_primary(error, credential_worked=True) is PrimaryErrorClass.OUTAGE


@pytest.mark.parametrize("error", [ValueError("argument"), KeyError("x"), ServiceError("?")])
def test_what_no_table_knows_is_raised_and_diverts_nothing(error: Exception) -> None:
    """P7: an unknown error is the caller's business."""
    assert Classifier().at_primary(error, credential_worked=True) is PrimaryErrorClass.CALLER
    assert Classifier().at_backlog(error) is BacklogErrorClass.GIVE_UP


@pytest.mark.parametrize(
    "kind", [*OUTAGES, AuthenticationFailed, AccessRefused, EntityNotFound, QuotaExceeded]
)
def test_a_backlog_queue_that_does_not_take_it_is_withdrawn(kind: type[ServiceError]) -> None:
    """P9: whatever is wrong with this queue, another one may be well."""
    assert Classifier().at_backlog(kind("no")) is BacklogErrorClass.WITHDRAW


@pytest.mark.parametrize("kind", [MessageTooLarge, MessageRefused])
def test_a_refusal_of_one_queue_is_a_question_to_another(kind: type[ServiceError]) -> None:
    """P20: it may be about this queue or about the message."""
    assert Classifier().at_backlog(kind("no")) is BacklogErrorClass.ASK_ANOTHER


def test_a_message_that_no_queue_would_take_does_not_hop() -> None:
    """P13: never hop queues with a message that no queue can take."""
    too_large = TooLargeForBacklog(path="q", size_bytes=9, overhead_bytes=2, limit_bytes=10)
    assert Classifier().at_backlog(too_large) is BacklogErrorClass.GIVE_UP


def test_an_error_inherits_the_meaning_of_its_parent() -> None:
    class Odd(MessageRefused):
        pass

    assert Classifier().at_backlog(Odd("no")) is BacklogErrorClass.ASK_ANOTHER


def test_the_user_may_change_what_counts() -> None:
    """P7: the table is replaceable, row by row."""
    # Given a classifier for which a full primary is an outage
    classifier = Classifier().with_primary({QuotaExceeded: PrimaryErrorClass.OUTAGE})

    # Then only that row has changed
    full, gone = QuotaExceeded("full"), EntityNotFound("gone")
    assert classifier.at_primary(full, credential_worked=True) is PrimaryErrorClass.OUTAGE
    assert classifier.at_primary(gone, credential_worked=True) is PrimaryErrorClass.CALLER
    assert Classifier().at_primary(full, credential_worked=True) is PrimaryErrorClass.CALLER

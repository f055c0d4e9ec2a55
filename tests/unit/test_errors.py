"""The error family: what every error promises."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from twinbus import errors
from twinbus.errors import (
    ConfigurationError,
    ConnectionStringError,
    EntityExists,
    InvalidEntityPath,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreVersionMismatch,
    TwinbusError,
)

EXAMPLES = [
    TwinbusError("it broke", hint="Mend it"),
    ConfigurationError("no such thing"),
    EntityExists(kind="queue", path="orders"),
    errors.PortTaken(host="127.0.0.1", port=5672),
    errors.FilterError("a division by zero"),
    ConnectionStringError("Endpoint is missing", key="Endpoint"),
    InvalidEntityPath("the name is empty"),
    errors.InvalidMessage("priority", "is 300"),
    errors.AccessDenied("the token has expired"),
    StoreCorrupt(path=Path("data"), detail="bad checksum", queue_id=3, first_seq=7, last_seq=9),
    StoreLocked(path="data", pid=42),
    StoreVersionMismatch(path="data", found=2, expected=1),
    StoreFull(path="data"),
    errors.StoreRefused("two entities have the path orders"),
    StoreFailed(path="data", detail="fsync failed"),
]


def test_an_error_reads_as_a_sentence_and_a_hint() -> None:
    assert str(TwinbusError("it broke", hint="mend it")) == "It broke. Mend it."
    assert str(TwinbusError("it broke.")) == "It broke."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the queue is full", "The queue is full."),
        ("broken", "Broken."),
        ("a, b and c are missing", "A, b and c are missing."),
        ("retries, for example", "Retries, for example."),
        ("Already right", "Already right."),
        ("", ""),
        ("  ", ""),
        # What is not a plain word keeps its spelling.
        ("backlog_queue_count is 0", "backlog_queue_count is 0."),
        ("open.max-frame-size is not a uint", "open.max-frame-size is not a uint."),
        ("contoso.servicebus.windows.net refused", "contoso.servicebus.windows.net refused."),
        ("localhost:5672 refused", "localhost:5672 refused."),
        ("x-ms-path is missing", "x-ms-path is missing."),
        ("--from is later than --to", "--from is later than --to."),
        ("'orders' is disabled", "'orders' is disabled."),
        ("queuePattern is empty", "queuePattern is empty."),
        ("sha256 differs", "sha256 differs."),
        ("3 messages are left", "3 messages are left."),
        ("newid() takes nothing", "newid() takes nothing."),
        ("über uns", "über uns."),
        # So do commands and formats.
        ("pip install 'twinbus[azure]'", "pip install 'twinbus[azure]'."),
        ("twinbus serve needs a port", "twinbus serve needs a port."),
        ("servicebus has no option 'que'", "servicebus has no option 'que'."),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name(
    text: str, sentence: str
) -> None:
    error = TwinbusError(text, hint=text)
    assert (error.sentence, error.hint) == (sentence, sentence)
    error.advise("another hint")
    assert error.hint == "Another hint."


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: TwinbusError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_error_has_an_example_here() -> None:
    """Those of a service and of a pair have theirs in test_service_errors.py."""
    elsewhere = (errors.ServiceError, errors.PairingError)
    here = {name for name in errors.__all__ if not issubclass(getattr(errors, name), elsewhere)}
    assert {type(error).__name__ for error in EXAMPLES} == here


def test_only_a_full_disk_may_pass_by_itself() -> None:
    assert [type(error) for error in EXAMPLES if error.is_transient] == [StoreFull]


def test_bad_configuration_is_also_a_value_error() -> None:
    assert all(
        issubclass(kind, ValueError)
        for kind in (ConfigurationError, ConnectionStringError, InvalidEntityPath)
    )


def test_corruption_names_the_queue_and_the_sequence_numbers() -> None:
    text = str(StoreCorrupt(path="d", detail="bad checksum", queue_id=3, first_seq=7, last_seq=9))
    assert "in queue 3, sequence numbers 7 to 9: bad checksum" in text


def test_a_locked_store_names_its_owner() -> None:
    assert "process 42" in str(StoreLocked(path="data", pid=42))

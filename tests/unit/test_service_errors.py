"""The errors of a service and of a pair: what kinds they are, and where they are imported from."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import twinbus
import twinbus.aio
import twinbus.sync
from twinbus import errors
from twinbus.errors import (
    AccessRefused,
    AlreadyPaired,
    BacklogExhausted,
    BatchPartlySent,
    CancelImpossible,
    CommunicationError,
    EnvelopeError,
    OperationTimeout,
    PairingError,
    ReservedProperty,
    SendInterrupted,
    ServiceError,
    TooLargeForBacklog,
    TwinbusError,
)

SERVICE = [
    kind
    for _name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ServiceError) and kind is not TooLargeForBacklog
]
EXAMPLES: list[TwinbusError] = [
    *(kind("it broke", path="orders", condition="amqp:x", hint="Mend it") for kind in SERVICE),
    TooLargeForBacklog(path="orders", size_bytes=9, overhead_bytes=2, limit_bytes=10),
    BacklogExhausted(path="orders", withdrawn=("a", "b")),
    BatchPartlySent(path="orders", accepted=1, total=3),
    ReservedProperty(name="x-ms-path"),
    EnvelopeError(reason="NoPath", description="no destination"),
    CancelImpossible.in_backlog("orders"),
    AlreadyPaired("it is paired already"),
    PairingError("it broke"),
]


def test_a_timeout_is_caught_as_python_calls_it() -> None:
    """P18: `except TimeoutError` is what an application writes."""
    with pytest.raises(TimeoutError, match="No answer"):
        raise OperationTimeout("no answer", path="orders")
    assert issubclass(SendInterrupted, TimeoutError)
    assert not issubclass(CommunicationError, TimeoutError)


def test_a_missing_claim_is_caught_as_python_calls_it() -> None:
    """P18: `except PermissionError`, with nothing in it that a system call would have said."""
    with pytest.raises(PermissionError, match="claim Send") as caught:
        raise AccessRefused("the claim Send is missing", path="orders", hint="Grant it")
    assert str(caught.value) == "The claim Send is missing. Grant it."
    assert caught.value.errno is None and caught.value.strerror is None
    assert caught.value.filename is None


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["pickle", "copy", "deepcopy"])
def test_an_error_keeps_its_words_and_facts_in_a_copy(error: TwinbusError, way: str) -> None:
    """P18: also those that are errors of the system, which keep their words elsewhere."""
    error.is_transient = True
    made = {
        "pickle": lambda: pickle.loads(pickle.dumps(error)),
        "copy": lambda: copy.copy(error),
        "deepcopy": lambda: copy.deepcopy(error),
    }[way]()
    assert type(made) is type(error) and made is not error
    assert str(made) == str(error) and repr(made) == repr(error)
    assert made.args == error.args
    assert vars(made) == vars(error)


WHAT_A_USER_MEETS = [
    *errors.__all__,
    *errors.__all__,
    *("EventRecord", "EntityHealth", "QueueBacklog", "Health"),
]


@pytest.mark.parametrize("name", sorted(WHAT_A_USER_MEETS))
def test_what_a_user_can_meet_is_imported_from_the_front_door(name: str) -> None:
    """P18: every error, and what health(), events() and backlog() return."""
    for module in (twinbus, twinbus.aio, twinbus.sync):
        assert name in module.__all__, module.__name__
        assert getattr(module, name) is getattr(twinbus.aio, name)


def test_no_public_error_is_missing_from_the_front_door() -> None:
    """P18: whatever is added to the two modules of errors."""
    public = {
        name
        for module in (errors, errors)
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, TwinbusError) and not name.startswith("_")
    }
    assert public <= set(twinbus.__all__) and public <= set(twinbus.aio.__all__)


def test_the_front_doors_have_the_same_names() -> None:
    assert set(twinbus.__all__) - {"__version__"} == set(twinbus.aio.__all__)
    assert set(twinbus.aio.__all__) == set(twinbus.sync.__all__)

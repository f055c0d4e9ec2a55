"""The names of twinbus and twinbus.aio are the same, with the same signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import twinbus
import twinbus.aio
import twinbus.sync

# What is for those who build on a factory rather than use it, and what belongs to a loop.
NOT_FOR_BLOCKERS = {
    "create_paired_sender",
    "paired_sender",
    "driver",
    "routing",
    "known_path",
    "known_paths",
    "fault",
    "mover_driver",
    "new_meter",
    "set_meter",
    "over",
    "is_inherited",
}
# What only the blocking ones have: the asyncio object behind, and how they are made of one; and
# properties that are plain attributes there.
NOT_FOR_ASYNCIO = {"to_async", "twin", "wrap"}
ATTRIBUTES = {"address", "path"}
# What Python itself calls, and how it is called where it is awaited.
SPECIAL = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
}

CLASSES = [
    "MessageReceiver",
    "MessageSender",
    "MessagingFactory",
    "NamespaceManager",
    "QueueClient",
    "SendAvailabilityPairedNamespaceOptions",
    "SubscriptionClient",
    "TopicClient",
]


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") and name not in NOT_FOR_BLOCKERS]


def blocking(kind: type) -> list[str]:
    """The members of a blocking class, as its twin calls them."""
    named = [name for name in dir(kind) if not name.startswith("_")]
    special = [twin for name, twin in SPECIAL.items() if hasattr(kind, name)]
    return [*(name for name in named if name not in NOT_FOR_ASYNCIO), *special]


MEMBERS = [(name, member) for name in CLASSES for member in public(getattr(twinbus.aio, name))]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    signature = inspect.signature(function)
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize(("kind", "member"), MEMBERS)
def test_a_sync_member_has_the_signature_of_its_twin(kind: str, member: str) -> None:
    theirs = inspect.getattr_static(getattr(twinbus.aio, kind), member)
    ours = inspect.getattr_static(getattr(twinbus, kind), member)
    if not callable(getattr(getattr(twinbus.aio, kind), member)):
        assert type(ours) is type(theirs)
        return
    assert not inspect.iscoroutinefunction(getattr(twinbus, kind).__dict__.get(member))
    sync = getattr(getattr(twinbus, kind), member)
    twin = getattr(getattr(twinbus.aio, kind), member)
    if (kind, member) == ("MessagingFactory", "pair_namespace"):
        assert [each[0] for each in parameters(sync)] == ["self", "options"]
        return
    assert parameters(sync) == parameters(twin)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_has_the_same_members_in_both_packages(kind: str) -> None:
    """Also the other way round: what a blocking class can do, its twin can do, too."""
    ours, theirs = getattr(twinbus, kind), getattr(twinbus.aio, kind)
    special = [name for name in SPECIAL.values() if hasattr(theirs, name)]
    there = {*public(theirs), *special}
    assert set(blocking(ours)) - NOT_FOR_BLOCKERS - there <= ATTRIBUTES
    assert there <= set(blocking(ours))


def test_both_packages_have_the_same_names() -> None:
    assert set(twinbus.sync.__all__) <= set(twinbus.aio.__all__)
    assert set(twinbus.__all__) - {"__version__"} == set(twinbus.sync.__all__)
    for name in twinbus.sync.__all__:
        assert getattr(twinbus, name) is getattr(twinbus.sync, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MesagingFactory'"):
        twinbus.MesagingFactory  # noqa: B018

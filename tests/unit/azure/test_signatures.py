"""The drop-in has every public member of the SDK's client and sender, with the same signature."""

from __future__ import annotations

import inspect
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest

import twinbus.azure
import twinbus.azure.aio

CONTEXT = ["__enter__", "__exit__", "__aenter__", "__aexit__"]
PAIRS = [
    (azure.servicebus.ServiceBusClient, twinbus.azure.PairedServiceBusClient),
    (azure.servicebus.ServiceBusSender, twinbus.azure.PairedServiceBusSender),
    (azure.servicebus.aio.ServiceBusClient, twinbus.azure.aio.PairedServiceBusClient),
    (azure.servicebus.aio.ServiceBusSender, twinbus.azure.aio.PairedServiceBusSender),
]


def members(stock: type) -> list[str]:
    return [name for name in dir(stock) if not name.startswith("_") or name in CONTEXT]


MEMBERS = [(stock, ours, name) for stock, ours in PAIRS for name in members(stock)]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter: how a call may be written."""
    signature = inspect.signature(function)
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize(
    ("stock", "ours", "name"),
    MEMBERS,
    ids=[
        f"{stock.__module__.split('._')[0]}.{stock.__name__}.{name}" for stock, _, name in MEMBERS
    ],
)
def test_a_member_of_the_sdk_is_there_with_its_signature(
    stock: type, ours: type, name: str
) -> None:
    theirs_found = inspect.getattr_static(stock, name)
    found = inspect.getattr_static(ours, name)
    assert isinstance(found, type(theirs_found))
    if isinstance(theirs_found, property):
        return
    theirs, our_own = getattr(stock, name), getattr(ours, name)
    assert inspect.iscoroutinefunction(our_own) == inspect.iscoroutinefunction(theirs)
    assert parameters(our_own) == parameters(theirs)


@pytest.mark.parametrize(("stock", "ours"), [PAIRS[0], PAIRS[2]])
def test_a_paired_client_is_made_like_the_sdks(stock: type, ours: type) -> None:
    assert parameters(ours.__init__) == parameters(stock.__init__)
    assert issubclass(ours, stock)


def test_instances_have_the_attributes_that_the_sdk_sets() -> None:
    stock = azure.servicebus.ServiceBusClient("example.servicebus.windows.net", object())
    sender = stock.get_queue_sender("orders")
    public = [name for name in vars(sender) if not name.startswith("_")]
    assert public == ["fully_qualified_namespace", "entity_name"]

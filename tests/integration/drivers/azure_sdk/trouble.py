"""Faults of any kind in a test's namespace, with options that ``NamespaceFixture.outage`` lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twinbus.broker.faults import Fault, Scope
from twinbus.testing.namespaces import NamespaceFixture


@contextmanager
def fault(bus: NamespaceFixture, kind: str, *, entity: str = "", **options: Any) -> Iterator[None]:
    """Broken inside the block, well again behind it."""
    board = bus._namespace.faults
    made = Fault(kind, Scope(entity=entity), **options)
    fault_id = bus._thread.run_function(lambda: board.add(made))
    try:
        yield
    finally:
        bus._thread.run(bus._clear_fault(fault_id))


async def detached(bus: NamespaceFixture) -> None:
    """Every link of the namespace is taken away, and the clients have been told."""
    board = bus._namespace.faults
    bus._thread.run_function(lambda: board.add(Fault("detach", Scope(entity=""))))
    await asyncio.sleep(0.05)

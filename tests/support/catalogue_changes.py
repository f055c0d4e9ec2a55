"""Administrative changes without a namespace: planned, written and applied in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.storage.interface import Op, Store

T = TypeVar("T")


def change(catalogue: Catalogue, store: Store, plan: Callable[[Draft], T]) -> T:
    """Make a change; what the plan returned."""
    draft = catalogue.plan()
    result = plan(draft)
    ops: list[Op] = []
    for _count in draft.write_down(ops):
        pass
    store.commit(ops)
    catalogue.apply(draft)
    return result


def create(
    catalogue: Catalogue,
    store: Store,
    description: QueueDescription,
    rules: Sequence[RuleDescription] | None = None,
) -> Queue:
    """Make an entity."""
    change(catalogue, store, lambda draft: draft.create(description, rules, 0))
    queue = catalogue.find(description.path)
    assert queue is not None
    return queue


def delete(catalogue: Catalogue, store: Store, queue: Queue) -> None:
    """Delete an entity; its machine must be told by the caller."""
    path = queue.description.path
    change(catalogue, store, lambda draft: draft.delete(queue.queue_id, path))


def add_rule(catalogue: Catalogue, store: Store, queue: Queue, rule: RuleDescription) -> None:
    change(
        catalogue, store, lambda draft: draft.add_rule(queue.queue_id, queue.description, rule, 0)
    )


def remove_rule(catalogue: Catalogue, store: Store, queue: Queue, name: str) -> None:
    change(
        catalogue, store, lambda draft: draft.remove_rule(queue.queue_id, queue.description, name)
    )


def unheard(error: Exception | None) -> None:
    """For changes of a namespace that must succeed."""
    if error is not None:
        raise error

"""Mistakes in administrative changes: what is refused has happened all the same (rule M15)."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.storage.operation_checks import KnownQueueChanges


def apply_before_written(patch: pytest.MonkeyPatch) -> None:
    """Entities come and go in memory before the disk was asked."""
    hand_over = Namespace._submit_commit

    def early(self: Namespace, transaction: Any) -> None:
        if transaction.planned is not None:
            for _step in self._apply(transaction.planned.draft, lambda: None):
                pass
        hand_over(self, transaction)

    patch.setattr(Namespace, "_submit_commit", early)


def keep_what_a_refused_plan_did(patch: pytest.MonkeyPatch) -> None:
    """A plan that is refused half-way leaves its first half in the transaction."""
    patch.setattr(Draft, "fork", lambda self: self)
    patch.setattr(Draft, "merge", lambda self, child: None)


def take_a_path_twice(patch: pytest.MonkeyPatch) -> None:
    """The stores do not look whether a path is taken."""
    put = KnownQueueChanges.put

    def unlooked(self: KnownQueueChanges, queue_id: int, path: str) -> None:
        self.ids[path] = None
        put(self, queue_id, path)

    patch.setattr(KnownQueueChanges, "put", unlooked)

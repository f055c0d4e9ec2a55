"""Bugs of the broker. More of them, which its own tests plant, are in
``tests/support/queue_simulation``."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from twinbus.broker.engine import message_transitions, outcomes, write_batch
from twinbus.broker.engine.duplicate_detection import DuplicateHistory
from twinbus.broker.engine.fan_out import Distribution
from twinbus.broker.engine.locks import LockRun, LockTable
from twinbus.broker.engine.sessions import SessionLock, Sessions
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.server import ingest


class _Lowest:
    """Not chance: the lowest number that nobody uses right now."""

    def __init__(self) -> None:
        self._numbers = count()

    def getrandbits(self, _bits: int) -> int:
        return next(self._numbers)


def reuse_lock_tokens(patch: pytest.MonkeyPatch) -> None:
    """The id of a run is given again when the run is over."""
    grant = LockTable.grant

    def thrifty(self: LockTable, *args: Any) -> LockRun:
        self._chance = _Lowest()  # type: ignore[assignment]
        return grant(self, *args)

    patch.setattr(LockTable, "grant", thrifty)


def acknowledge_what_the_disk_refused(patch: pytest.MonkeyPatch) -> None:
    """A full disk is taken for a commit."""
    committed = Namespace._on_committed

    def deaf(self: Namespace, result: None, _error: Exception | None) -> None:
        committed(self, result, None)

    patch.setattr(Namespace, "_on_committed", deaf)


def hand_out_pings(patch: pytest.MonkeyPatch) -> None:
    """A ping is a message like any other."""
    patch.setattr(ingest, "is_ping", lambda _payload, _sections: False)


def forget_a_subscription(patch: pytest.MonkeyPatch) -> None:
    """The last of several subscriptions gets no copy of what came in company."""
    give_all = Distribution.give_all

    def short(self: Distribution, messages: list[Any], everyone: list[Any], now: Any) -> None:
        last = len(everyone) if len(messages) == 1 else max(1, len(everyone) - 1)
        give_all(self, messages, everyone[:last], now)

    patch.setattr(Distribution, "give_all", short)


def ignore_the_window(patch: pytest.MonkeyPatch) -> None:
    """Duplicates are found only among what has not been written yet."""

    def short(self: DuplicateHistory, digest: bytes, _message: Any, _window_ms: int) -> bool:
        page = self._seen.get(digest)
        return page is not None and page.at_ms is None

    patch.setattr(DuplicateHistory, "_is_known", short)


def keep_ids_in_memory(patch: pytest.MonkeyPatch) -> None:
    """The ids that were seen are not written with their messages."""
    close = DuplicateHistory.close

    def forgetful(self: DuplicateHistory, queue_id: int, now_ms: int) -> None:
        close(self, queue_id, now_ms)

    patch.setattr(DuplicateHistory, "close", forgetful)


def give_no_reason(patch: pytest.MonkeyPatch) -> None:
    """A dead letter does not say why it is one."""
    patch.setattr(outcomes, "_with_reason", lambda bare, _outcome: bare)


def count_attempts_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Of a message that was given back, the delivery count is not written."""
    save = message_transitions._save_state

    def rarely(queue: Any, chunk: Any, index: int) -> None:
        chunk.unsaved = True
        if chunk.deferred >> index & 1:
            save(queue, chunk, index)

    patch.setattr(message_transitions, "_save_state", rarely)


def keep_session_states_in_memory(patch: pytest.MonkeyPatch) -> None:
    """The state of a session is acknowledged and never written."""
    freeze = write_batch.freeze

    def forgetful(queue: Any, now: Any) -> Any:
        queue.batch.session_states.clear()
        return freeze(queue, now)

    patch.setattr("twinbus.broker.engine.queue.freeze", forgetful)


def take_a_session_from_its_holder(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a session by name gets it, also when somebody holds it."""
    accept = Sessions.accept

    def bold(self: Sessions, session: str, *rest: Any) -> SessionLock | None:
        if session in self._locks:
            self.release(self._locks[session], is_failure=False)
        return accept(self, session, *rest)

    patch.setattr(Sessions, "accept", bold)

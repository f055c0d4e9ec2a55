"""What happens when a fault begins, fires at its rate, or ends; the diagnostics of a crash.

When a subsystem goes down (rule F4) its locks and links are lost, and a diagnostics file records
its state.

Rule 1: acknowledged messages stay; operations in progress are never answered.
Rule 2: the diagnostics file contains names and numbers, never a message, a key or a token.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine import locks
from twinbus.broker.faults.injection import entity_of, fault_error
from twinbus.broker.faults.network import NetworkFaults
from twinbus.broker.faults.registry import ActiveFault, FaultPhase

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.namespace.namespace import Namespace

logger = logging.getLogger("twinbus.broker")

DIAGNOSTICS: Final = "diagnostics"
# Enough for a day of tests; the oldest files are deleted first.
DIAGNOSTICS_FILES_MAX: Final = 50


def covered_queues(namespace: Namespace, active: ActiveFault) -> list[Queue]:
    """The queues, dead-letter queues included, that a fault concerns."""
    subsystems = namespace.faults.subsystems
    return [
        queue
        for queue in namespace.catalogue.machines()
        if active.covers(queue.description.path, subsystems.of(queue.description.path))
    ]


def lose_locks(namespace: Namespace, queues: list[Queue]) -> int:
    """End every message and session lock now; returns how many messages were locked."""
    lost = 0
    for queue in queues:
        lost += locks.lose_locks(queue)
        namespace.touch(queue)
    return lost


def collect_diagnostics(namespace: Namespace, active: ActiveFault) -> dict[str, Any]:
    """The state of the subsystem: counts, locks and links, by entity."""
    links: dict[str, dict[str, int]] = {}
    for peer in namespace.peers:
        for _link, end in peer.links_and_ends():
            queue = getattr(end, "queue", None)
            if queue is not None:
                seen = links.setdefault(queue.description.path, {"senders": 0, "receivers": 0})
                seen["senders" if end.claim is Claim.SEND else "receivers"] += 1
    entities = []
    for queue in covered_queues(namespace, active):
        path = queue.description.path
        entities.append(
            {
                "path": f"{path}/$deadletterqueue" if queue.is_dead_letter_queue else path,
                "active_message_count": queue.active_count,
                "deferred_message_count": queue.deferred_count,
                "scheduled_message_count": queue.scheduled_count,
                "locked_message_count": queue.locked_count,
                "size_in_bytes": queue.byte_count,
                "links": links.get(path, {"senders": 0, "receivers": 0}),
            }
        )
    return {
        "namespace": namespace.name,
        "subsystem": active.fault.scope.subsystem,
        "collected_at_ms": namespace.now().wall_ms,
        "fault": active.fault.to_json(),
        "connections": len(namespace.peers),
        "entities": entities,
    }


def diagnostics_file(namespace: Namespace, active: ActiveFault) -> Path:
    """The path of the diagnostics file: in the data directory, or in a temporary one."""
    data = namespace.options.data_directory
    base = Path(tempfile.mkdtemp(prefix="twinbus-")) if data is None else data
    # An id may contain characters that a file name must not contain.
    safe_id = "".join(each if each.isalnum() or each in "-_" else "_" for each in active.id)
    name = f"{namespace.name}-{namespace.now().wall_ms}-{safe_id}.json"
    return base / DIAGNOSTICS / name


def write_diagnostics(path: Path, values: dict[str, Any]) -> None:
    """Runs on the writer's thread. An error here must not become an error of a commit."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        for old in sorted(path.parent.glob("*.json"), key=_age)[:-DIAGNOSTICS_FILES_MAX]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("Diagnostics of a fault could not be written: %s", error)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class FaultEffects:
    """The effects of faults on one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.network = NetworkFaults(namespace)

    def changed(self, active: ActiveFault, before: FaultPhase, after: FaultPhase) -> None:
        if before is FaultPhase.WAITING and after is FaultPhase.GONE:
            return
        match active.fault.kind:
            case "cannot-contact":
                self.network.changed()
            case "crash-subsystem" if after is FaultPhase.DOWN:
                self._crash(active)
            case "cannot-send" if after is FaultPhase.ACTIVE and active.fault.how == "detach":
                self._detach(active, fault_error(active), Claim.SEND)
            case "cannot-receive" if after is FaultPhase.ACTIVE and active.fault.how != "timeout":
                self._detach(active, fault_error(active), Claim.LISTEN)
            case "detach" | "lock-loss" if after is FaultPhase.ACTIVE:
                self.tick(active)
        if after is not FaultPhase.ACTIVE:
            self._wake(active)

    def tick(self, active: ActiveFault) -> None:
        """Fire once, or again because the fault has a rate."""
        if active.fault.kind == "lock-loss":
            queues = covered_queues(self._namespace, active)
            active.hit_count += lose_locks(self._namespace, queues)
        else:
            self._detach(active, fault_error(active), None)

    def _wake(self, active: ActiveFault) -> None:
        """Serve the queues again that the fault held back."""
        for queue in covered_queues(self._namespace, active):
            self._namespace.touch(queue)

    # -- a subsystem goes down ------------------------------------------------------------

    def _crash(self, active: ActiveFault) -> None:
        namespace = self._namespace
        path = diagnostics_file(namespace, active)
        active.diagnostics_path = str(path)
        namespace.run_beside_commits(
            partial(write_diagnostics, path, collect_diagnostics(namespace, active))
        )
        lose_locks(namespace, covered_queues(namespace, active))
        if active.fault.links == "hang":
            for _peer, _link, end in self._links(active):
                if end.claim is Claim.SEND:
                    end.forget_waiting()
            return
        down = AmqpError(
            Condition.LINK_DETACH_FORCED,
            f"Subsystem {active.fault.scope.subsystem!r} is down: fault {active.id}.",
        )
        for peer, link, _end in self._links(active):
            peer.detach(link, down)
            peer.flush()

    # -- links ----------------------------------------------------------------------------

    def _detach(self, active: ActiveFault, error: AmqpError, claim: Claim | None) -> None:
        for peer, link, end in self._links(active):
            if end.claim is not None and claim in (None, end.claim) and active.fires():
                peer.detach(link, error)
                peer.flush()

    def _links(self, active: ActiveFault) -> Iterator[tuple[Any, Any, Any]]:
        """(peer, link, end) of every link to an entity that the fault concerns."""
        subsystems = self._namespace.faults.subsystems
        for peer in list(self._namespace.peers):
            for link, end in peer.links_and_ends():
                path = entity_of(end.path)
                if path and path != "$cbs" and active.covers(path, subsystems.of(path)):
                    yield peer, link, end

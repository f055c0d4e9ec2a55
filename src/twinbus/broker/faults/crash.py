"""A subsystem goes down (rule F4): what is lost with it, and the file that says how it was.

Rule 1: what was acknowledged stays; what was under way is never answered.
Rule 2: the file holds names and numbers, never a message, a key or a token.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.broker.access.claims import Claim
from twinbus.broker.entities import lock_loss
from twinbus.broker.faults.board import ActiveFault

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.namespace import Namespace

logger = logging.getLogger("twinbus.broker")

DIAGNOSTICS: Final = "diagnostics"
# Enough for a day of tests; the oldest go first.
DIAGNOSTICS_FILES_MAX: Final = 50


def covered_queues(namespace: Namespace, active: ActiveFault) -> list[Queue]:
    """The machines, dead-letter queues included, that a fault concerns."""
    subsystems = namespace.faults.subsystems
    return [
        queue
        for queue in namespace.catalogue.machines()
        if active.covers(queue.description.path, subsystems.of(queue.description.path))
    ]


def lose_locks(namespace: Namespace, queues: list[Queue]) -> int:
    """Every message and session lock ends now; how many messages were held."""
    lost = 0
    for queue in queues:
        lost += lock_loss.lose_locks(queue)
        namespace.touch(queue)
    return lost


def collect(namespace: Namespace, active: ActiveFault) -> dict[str, Any]:
    """How the subsystem was found: counts, locks and links, by entity."""
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


def file_for(namespace: Namespace, active: ActiveFault) -> Path:
    """Where the diagnostics go: beside the data, or into a directory for the occasion."""
    data = namespace.options.data_directory
    base = Path(tempfile.mkdtemp(prefix="twinbus-")) if data is None else data
    # An id is anything that people type; a file name is not.
    safe_id = "".join(each if each.isalnum() or each in "-_" else "_" for each in active.id)
    name = f"{namespace.name}-{namespace.now().wall_ms}-{safe_id}.json"
    return base / DIAGNOSTICS / name


def write(path: Path, told: dict[str, Any]) -> None:
    """Runs on the writer's thread. Trouble here must not become trouble with messages."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        for old in sorted(path.parent.glob("*.json"), key=_age)[:-DIAGNOSTICS_FILES_MAX]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("diagnostics could not be written: %s", error)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

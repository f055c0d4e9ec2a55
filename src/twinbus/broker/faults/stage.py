"""What happens at the moment when a fault begins, strikes by itself, or ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.claims import Claim
from twinbus.broker.faults import crash
from twinbus.broker.faults.attaches import entity_of
from twinbus.broker.faults.board import ActiveFault, FaultPhase
from twinbus.broker.faults.contact import NetworkFaults
from twinbus.broker.faults.sends import failure

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


class FaultEffects:
    """Acts on one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.contact = NetworkFaults(namespace)

    def changed(self, active: ActiveFault, before: FaultPhase, after: FaultPhase) -> None:
        if before is FaultPhase.WAITING and after is FaultPhase.GONE:
            return
        match active.fault.kind:
            case "cannot-contact":
                self.contact.changed()
            case "crash-subsystem" if after is FaultPhase.DOWN:
                self._crash(active)
            case "cannot-send" if after is FaultPhase.ACTIVE and active.fault.how == "detach":
                self._detach(active, failure(active), Claim.SEND)
            case "cannot-receive" if after is FaultPhase.ACTIVE and active.fault.how != "timeout":
                self._detach(active, failure(active), Claim.LISTEN)
            case "detach" | "lock-loss" if after is FaultPhase.ACTIVE:
                self.tick(active)
        if after is not FaultPhase.ACTIVE:
            self._wake(active)

    def tick(self, active: ActiveFault) -> None:
        """Once, or again because the fault has a rate."""
        if active.fault.kind == "lock-loss":
            queues = crash.covered_queues(self._namespace, active)
            active.hit_count += crash.lose_locks(self._namespace, queues)
        else:
            self._detach(active, failure(active), None)

    def _wake(self, active: ActiveFault) -> None:
        """What was held back is looked at again."""
        for queue in crash.covered_queues(self._namespace, active):
            self._namespace.touch(queue)

    # -- a subsystem goes down ------------------------------------------------------------

    def _crash(self, active: ActiveFault) -> None:
        namespace = self._namespace
        path = crash.file_for(namespace, active)
        active.diagnostics_path = str(path)
        namespace.run_beside_commits(partial(crash.write, path, crash.collect(namespace, active)))
        crash.lose_locks(namespace, crash.covered_queues(namespace, active))
        if active.fault.links == "hang":
            for _peer, _link, end in self._links(active):
                if end.claim is Claim.SEND:
                    end.forget_waiting()
            return
        down = AmqpError(
            Condition.LINK_DETACH_FORCED,
            f"The subsystem {active.fault.scope.subsystem!r} went down: fault {active.id}.",
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

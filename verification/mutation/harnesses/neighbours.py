"""Many loud clients of one key, and a quiet one of another: it is read from, stored and next.

A whole namespace runs in one thread (``tests/unit/broker/model/rig.py``), so that waiting can be
counted in turns. The disk answers only when it is told to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.unit.broker.model.rig import MemoryClient, Rig, create_queue
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.link import SenderLink
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.access.rules import Claim
from twinbus.broker.access.sas import AccessGrant
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.fairness.fair_queue import Flow
from twinbus.broker.fairness.loop_turns import TURN_S, Turns
from twinbus.broker.options import ThrottleThresholds
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.throttle import Throttle

QUEUE = QueueDescription(path="orders", max_size_mb=1_024)
EVERYTHING = Claim.MANAGE | Claim.SEND | Claim.LISTEN
PENDING_BYTES_MAX = 256_000
TURNS_ALLOWED = 4
TURNS_MAX = 200


class EvenTurns(Turns):
    """One turn in each iteration of the loop, and all as long as the others."""

    def spent(self, flow: Flow, seconds: float, own_cost_s: float) -> None:
        super().spent(flow, TURN_S / 3, own_cost_s)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Crowds of different sizes."""

    name: str = "loud neighbours"
    unit: str = "crowds"
    rounds_max: int = 40
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for number in range(self.rounds_max):
            random = Random(number)
            yield [*_pending(random), *_turns(random)]


def _rig() -> Rig:
    return Rig(MemoryStore(), lambda namespace: create_queue(namespace, QUEUE))


def _client(rig: Rig, rule: str) -> tuple[MemoryClient, SenderLink]:
    client = rig.connect()
    peer = client._wire.peer
    peer._use_key((rig.namespace.name, "", rule))
    peer.granted(AccessGrant((), EVERYTHING, 1 << 40, "", rule, "key"))
    link = client.attach_sender("orders")
    client.pump()
    return client, link


def _give(client: MemoryClient, link: SenderLink, count: int, size: int) -> int:
    """Hand the broker messages, whether it wants to read or not; the id of the last."""
    payload = Message(properties=Properties(), body=bytes(size)).encode()
    last = 0
    for number in range(count):
        last = link.send(payload, number.to_bytes(4, "big"), settled=False)
    client._wire.peer.data_received(client.connection.take_output())
    return last


def _pending(random: Random) -> list[str]:
    """The loud ones have used up the pending bytes, and the disk does not answer."""
    rig = _rig()
    rig.namespace.throttle = Throttle(ThrottleThresholds(pending_bytes_max=PENDING_BYTES_MAX))
    loud = [_client(rig, "loud") for _ in range(random.randint(2, 40))]
    quiet, link = _client(rig, "quiet")
    for _ in range(3):
        for each in loud:
            _give(*each, 40, random.randint(2_000, 8_000))
            rig.loop.turn()
    last = _give(quiet, link, 1, 1_000)
    for _ in range(TURNS_ALLOWED):
        rig.loop.turn()
    complaints = []
    if not quiet._wire.peer.pending.used:
        complaints.append("not read from: a key that is below its share of the pending bytes")
    rig.run()
    state = quiet.outcome(last)
    if state != Accepted():
        complaints.append(f"refused: a key that is below its share of the pending bytes: {state}")
    return complaints


def _turns(random: Random) -> list[str]:
    """The loud ones always have work left."""
    rig = _rig()
    rig.namespace.turns = EvenTurns(rig.loop, iteration_s=1e-9)
    loud = [_client(rig, "loud") for _ in range(random.randint(10, 40))]
    key = random.choice(("quiet", "loud"))
    quiet, link = _client(rig, key)
    for _ in range(20):
        # Enough that each of them has used up what it had in hand.
        for each in loud:
            _give(*each, 2, 100)
        rig.run()
    for each in loud:
        _give(*each, 2, 100)
    _give(quiet, link, 1, 100)
    waited = 0
    while not quiet._wire.peer.pending.used and waited < TURNS_MAX:
        rig.loop.turn()
        waited += 1
    if waited > TURNS_ALLOWED:
        whose = "another key" if key == "quiet" else "the same key"
        return [f"stalled: a quiet client waited for {waited} turns of {whose}"]
    return []

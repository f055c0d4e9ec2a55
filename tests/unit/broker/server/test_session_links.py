"""The time of a session, as a receiver sees it."""

from __future__ import annotations

from tests.unit.broker.model.rig import Rig, create_queue
from tests.unit.broker.model.station import Station, encoded
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.storage.memory_store import MemoryStore

LOCK_S = 5


def test_a_receiver_that_deletes_may_listen_for_as_long_as_the_lock_lasts() -> None:
    """M3, M10: the SDK waits that long for a last message, counted from the one before it."""
    # Given a session whose messages are deleted as they are received
    queue = QueueDescription(path="orders", requires_session=True, lock_duration_ms=LOCK_S * 1_000)
    rig = Rig(MemoryStore(), lambda namespace: create_queue(namespace, queue))
    station = Station(rig)
    station.send("orders", encoded("one", session="red"))
    granted = station.accept("orders", "red", deletes=True)
    assert granted is not None
    _name, link = granted

    # When it got the last one shortly before its time was over, and listens on
    rig.advance(LOCK_S - 0.1)
    assert [got.label for got in station.receive_on(link, 1)] == ["one"]
    rig.advance(LOCK_S - 0.1)

    # Then it is not cut off; a receiver that stays is, once
    assert not station.was_lost(link)
    rig.advance(0.2)
    assert station.was_lost(link)

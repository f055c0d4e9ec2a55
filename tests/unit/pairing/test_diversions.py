"""What a journal says of the entities that are diverted now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from twinbus.pairing.events import JournalEntry, diversions

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def entry(name: str, minute: int, **facts: Any) -> JournalEntry:
    return JournalEntry(name, NOON.replace(minute=minute), facts)


def test_an_entity_is_diverted_until_it_is_restored() -> None:
    """P16: the first diversion tells since when, the last event whether it still is."""
    entries = [
        entry("suspected", 0, path="orders"),
        entry("diverted", 1, path="orders", reason="refused"),
        entry("diverted", 1, path="bills", reason="refused"),
        entry("ping-failed", 2, path="orders"),
        entry("restored", 3, path="bills"),
        entry("diverted", 4, path="orders", reason="another process came later"),
        entry("backlog-queue-withdrawn", 5, queue="primary/x-servicebus-transfer/0"),
    ]
    [found] = diversions(entries)
    assert (found.path, found.reason, found.is_held) == ("orders", "refused", False)
    assert (found.since, found.last_event) == (NOON.replace(minute=1), NOON.replace(minute=4))


def test_an_entity_that_is_held_away_is_diverted() -> None:
    """P16: held at home it is not."""
    entries = [
        entry("entity-held", 1, path="orders", is_diverted=True, reason="an operator"),
        entry("entity-held", 2, path="bills", is_diverted=False),
    ]
    [found] = diversions(entries)
    assert (found.path, found.is_held, found.reason) == ("orders", True, "an operator")
    assert diversions([*entries, entry("restored", 3, path="orders")]) == []


def test_an_application_that_has_ended_diverts_nothing_any_more() -> None:
    """L2: what it had diverted is told with that, because its messages still wait."""
    entries = [
        entry("diverted", 1, path="orders", reason="refused"),
        entry("factory-closed", 2, side="secondary"),
        entry("factory-closed", 3, side="primary"),
    ]
    [found] = diversions(entries)
    assert found.ended == NOON.replace(minute=3)
    # Another application that writes the same journal still pings.
    [found] = diversions([*entries, entry("ping-sent", 4, path="orders")])
    assert found.ended is None

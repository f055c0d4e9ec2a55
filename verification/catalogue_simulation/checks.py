"""Memory equals disk, machines equal values, and both equal the model."""

from __future__ import annotations

from typing import Any

from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.engine.write_batch import counters_of
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.namespace.catalogue_plan import DEAD_LETTER_SUFFIX, Entry, rule_row
from twinbus.broker.storage.interface import EntityRow
from verification.catalogue_simulation.disk import Disk
from verification.catalogue_simulation.model import Known, Model, properties, told


class Broken(Exception):
    """Something is not as it must be."""


def check(catalogue: Catalogue, disk: Disk, model: Model) -> None:
    """Raise Broken at the first difference."""
    check_disk(catalogue, disk)
    for path, entry in catalogue.entries.items():
        _check_machine(catalogue, path, entry)
    for queue in catalogue.entities():
        if queue.description.path not in catalogue.entries:
            raise Broken(f"memory is not the values: {queue.description.path!r} is no entry")
    known = known_to(catalogue)
    if known != model.known:
        raise Broken(f"not what the calls said: {_difference(known, model.known)}")


def check_disk(catalogue: Catalogue, disk: Disk) -> None:
    expected, found = rows_of(catalogue), disk.entity_rows()
    if expected != found:
        raise Broken(f"memory is not the disk: {_difference(expected, found)}")
    counters = disk.counters()
    machines = {machine.queue_id: machine for machine in catalogue.machines()}
    if counters.keys() != machines.keys():
        raise Broken(f"memory is not the disk: counters of {counters.keys() ^ machines.keys()}")
    for queue_id, machine in machines.items():
        if counters_of(machine) != counters[queue_id]:
            path, kept = machine.description.path, counters[queue_id]
            raise Broken(f"memory is not the disk: {path!r} {counters_of(machine)} and {kept}")


def known_to(catalogue: Catalogue) -> dict[str, Known]:
    """What the machines say, in the words of the model."""
    known: dict[str, Known] = {}
    for queue in catalogue.entities():
        rules = queue.rules if isinstance(queue, Subscription) else []
        named = {rule.key: told(rule) for rule in rules}
        description = queue.description
        known[description.path] = (description.kind, properties(description), named)
    return known


def _check_machine(catalogue: Catalogue, path: str, entry: Entry) -> None:
    queue = catalogue.find(path)
    if queue is None:
        raise Broken(f"memory is not the values: {path!r} has no machine")
    dead_id = 0 if queue.dead_letters is None else queue.dead_letters.queue_id
    is_same = (queue.queue_id, dead_id) == (entry.queue_id, entry.dead_id)
    if not is_same or queue.description is not entry.description or queue.is_deleted:
        raise Broken(f"memory is not the values: {path!r}")
    if isinstance(queue, Subscription):
        _check_rules(queue, entry)
        if queue.topic is not catalogue.find(path.rsplit("/", 2)[0]):
            raise Broken(f"memory is not the values: {path!r} has another topic")
    if isinstance(queue, Topic):
        paths = {each.description.path for each in queue.subscriptions.values()}
        if paths != entry.subscriptions or len(queue.rule_index) != sum(entry.rule_counts):
            raise Broken(f"memory is not the values: the subscriptions of {path!r}")


def _check_rules(queue: Subscription, entry: Entry) -> None:
    ids = {key: stored.rule_id for key, stored in entry.rules.items()}
    rules = [stored.description for stored in entry.rules.values()]
    if queue.rule_ids != ids or queue.rules != rules:
        raise Broken(f"memory is not the values: the rules of {entry.description.path!r}")


def _difference(left: dict[Any, Any], right: dict[Any, Any]) -> str:
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return "; ".join(f"{key}: {left.get(key)} and {right.get(key)}" for key in keys[:2])[:600]


_ROWS: dict[int, tuple[QueueDescription, str]] = {}


def _json_of(description: QueueDescription) -> str:
    """A description never changes, and most are written down many times."""
    known = _ROWS.get(id(description))
    if known is not None and known[0] is description:
        return known[1]
    if len(_ROWS) > 1_000:
        _ROWS.clear()
    text = description.to_json()
    _ROWS[id(description)] = (description, text)
    return text


def rows_of(catalogue: Catalogue) -> dict[int, EntityRow]:
    """The rows that the disk must have, by id."""
    rows: dict[int, EntityRow] = {}
    for path, entry in catalogue.entries.items():
        kind, text = entry.description.kind, _json_of(entry.description)
        rows[entry.queue_id] = EntityRow(entry.queue_id, path, kind, text)
        if entry.dead_id:
            dead = EntityRow(entry.dead_id, path + DEAD_LETTER_SUFFIX, "dead-letter", "")
            rows[entry.dead_id] = dead
        for stored in entry.rules.values():
            rows[stored.rule_id] = rule_row(path, stored.description, stored.rule_id)
    return rows

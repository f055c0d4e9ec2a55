"""Does what ``twinbus pair plan`` and ``twinbus pair apply`` were asked for.

Rule 1: a plan says what pairing would do, by the same rules (P4); it changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from twinbus.cli.connecting import PairTarget
from twinbus.cli.showing import show_records
from twinbus.pairing.backlog_queues import backlog_paths, drift_of, owner_mark, unsafe_property
from twinbus.pairing.few_at_once import bounded_gather
from twinbus.pairing.manager import NamespaceManager
from twinbus.pairing.open_namespace import NamespaceConnection
from twinbus.pairing.provisioning import AT_ONCE_MAX, Provisioned, provision

__all__ = ["applied", "planned"]

COLUMNS = ("queue", "what", "why")


def planned(where: PairTarget, count: int, output: str) -> bool:
    """Show what would be made; whether all queues can be used then."""

    async def look(secondary: NamespaceConnection, name: str, owner: str) -> list[dict[str, Any]]:
        async def looked_at(path: str) -> dict[str, Any]:
            found = await secondary.management.get_queue(path)
            if found is None:
                return _row(path, "would be created")
            danger = unsafe_property(found)
            if danger is not None:
                return _row(path, "cannot be used", danger)
            drift = "; ".join(
                f"{d.name} is {d.found}, not {d.wanted}" for d in drift_of(found, owner)
            )
            return _row(path, "is there", drift)

        return await bounded_gather(
            backlog_paths(name, count), looked_at, concurrency_max=AT_ONCE_MAX
        )

    return _shown(asyncio.run(_with_secondary(where, look)), output)


def applied(where: PairTarget, count: int, output: str) -> bool:
    """Make what is missing; whether all queues can be used."""

    async def make(secondary: NamespaceConnection, name: str, owner: str) -> list[dict[str, Any]]:
        manager = NamespaceManager.over(secondary.management, secondary.driver.address)
        done = await provision(
            manager=manager, driver=secondary.driver, primary_name=name, count=count, owner=owner
        )
        return _rows(done)

    return _shown(asyncio.run(_with_secondary(where, make)), output)


async def _with_secondary(where: PairTarget, work: Any) -> list[dict[str, Any]]:
    name = await where.primary_name()
    async with where.opened("primary") as primary, where.opened("secondary") as secondary:
        owner = owner_mark(primary.driver.address, name)
        rows: list[dict[str, Any]] = await work(secondary, name, owner)
    return rows


def _rows(done: Provisioned) -> list[dict[str, Any]]:
    drift: dict[str, list[str]] = {}
    for each in done.drift:
        drift.setdefault(each.path, []).append(f"{each.name} is {each.found}, not {each.wanted}")
    unseen = f"its properties are not known: {done.unmanaged}" if done.unmanaged else ""
    return [
        *(_row(path, "created") for path in done.created),
        *(_row(path, "is there", "; ".join(drift.get(path, [])) or unseen) for path in done.found),
        *(_row(each.path, "cannot be used", each.reason) for each in done.missing),
    ]


def _row(queue: str, what: str, why: str = "") -> dict[str, Any]:
    return {"queue": queue, "what": what, "why": why}


def _shown(rows: list[dict[str, Any]], output: str) -> bool:
    show_records(rows, output, COLUMNS)
    return not any(each["what"] == "cannot be used" for each in rows)

"""A store of an older format becomes one of ours, in one transaction.

Rule 1: the new tables are made first and everything is looked at then; a store that is refused
        is left as it was found.
Rule 2: what an upgrade adds is empty, so it is as quick for a large store as for a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from twinbus.broker.store import schema


@contextmanager
def upgraded(connection: apsw.Connection, version: int) -> Iterator[None]:
    """The store is of our version inside, and stays so unless something is raised."""
    if version == schema.FORMAT_VERSION:
        yield
        return
    with connection:
        for step in range(version, schema.FORMAT_VERSION):
            for statement in schema.UPGRADES[step]:
                connection.execute(statement)
        connection.pragma("user_version", schema.FORMAT_VERSION)
        yield

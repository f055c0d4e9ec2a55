"""A disk that fails when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw


class FaultPlan:
    """Counts the writes and syncs of a store and fails some of them."""

    def __init__(self) -> None:
        self.operations = 0
        self.fail_from: int | None = None
        """The number of the first operation that fails."""
        self.fail_to: int | None = None
        """The number of the last one, or None: for ever."""
        self.error: type[apsw.Error] = apsw.IOError
        self.only: str | None = None
        """Fail only "write" or only "sync"."""

    def fail_next(self, error: type[apsw.Error], *, only: str | None = None) -> None:
        """Every following operation fails, until ``heal``."""
        self.fail_from, self.fail_to, self.error, self.only = self.operations + 1, None, error, only

    def heal(self) -> None:
        self.fail_from = None

    def happens(self, kind: str) -> None:
        self.operations += 1
        if self.fail_from is None or self.operations < self.fail_from:
            return
        if self.fail_to is not None and self.operations > self.fail_to:
            return
        if self.only is None or self.only == kind:
            raise self.error(f"injected: {kind} number {self.operations}")


class _FaultyFile(apsw.VFSFile):
    def __init__(
        self, plan: FaultPlan, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._plan = plan

    def xWrite(self, data: bytes, offset: int) -> None:
        self._plan.happens("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._plan.happens("write")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._plan.happens("sync")
        super().xSync(flags)


class _FaultyVFS(apsw.VFS):
    def __init__(self, name: str, plan: FaultPlan) -> None:
        self._plan = plan
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _FaultyFile:
        return _FaultyFile(self._plan, name, flags)


@contextmanager
def faulty_disk(plan: FaultPlan) -> Iterator[str]:
    """The name of a VFS that follows the plan, while the block lasts."""
    name = f"faulty-{id(plan)}"
    vfs = _FaultyVFS(name, plan)
    try:
        yield name
    finally:
        vfs.unregister()

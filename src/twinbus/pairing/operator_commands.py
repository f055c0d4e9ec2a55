"""Orders from an operator's shell to the applications of a pair: one small file that both know.

    {"orders": {"order": "failover", "is_held": false, "at": "2026-03-01T12:00:00+00:00"},
     "*":      {"order": "hold",     "is_held": true,  "at": ...}}

    failover   divert the path; a good ping brings it home, unless it is held, too
    restore    send to the primary again
    hold       keep the path where it is

Applications share nothing else with an operator's shell, so it is a file: the one that the option
``control`` names. Who may write it may divert sends.

Rule 1: the file is replaced as a whole: nobody ever reads half of one.
Rule 2: every application that runs carries an order out once. One that starts later carries out
        what is held; other orders were about their moment.
Rule 3: the file holds no secret, and whoever may see its directory may read it: applications run
        under another user than the operator's shell. A mode and a group that it has are kept.
        Only its owner may write it, and whoever its owner lets; one that everybody may write is
        not read.
Rule 4: a file that is missing or cannot be read changes nothing, and is told in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError, InvalidEntityPath
from twinbus.failover.state_machine import EntityFailover
from twinbus.pairing.routing import ALL_PATHS, SendRouter

__all__ = ["OperatorCommand", "OperatorCommandWatcher", "Verb", "read_commands", "write_command"]

_log = logging.getLogger("twinbus.pairing")

Verb: TypeAlias = Literal["failover", "restore", "hold"]

LOOK_INTERVAL_S: Final = 1.0
# Thousands of paths; whoever writes more is not one of ours.
FILE_BYTES_MAX: Final = 1 << 20
# Of a new file; of one for a group; and what an existing one may keep: never that all may write.
USUAL_MODE: Final = 0o644
GROUP_MODE: Final = 0o640
KEPT_MODES: Final = 0o664
_VERBS: Final = ("failover", "restore", "hold")


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """What somebody wants of one path, or of all of them."""

    order: Verb
    is_held: bool
    at: str
    """When it was given; the same order given again is another one."""


# -- the file -------------------------------------------------------------------------------


def read_commands(file: Path) -> dict[str, OperatorCommand]:
    """The last order of each path; raises ConfigurationError. No file: no orders."""
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & stat.S_IWOTH:
                raise _unreadable(
                    file, "everybody may write it", "Remove that permission: chmod o-w"
                )
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(file, error.strerror or type(error).__name__) from error
    if not content.strip():
        return {}  # Made beforehand, for its mode and group.
    try:
        told = json.loads(content)
        orders = {path: OperatorCommand(**each) for path, each in told.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(file, "it is not what `twinbus pair` writes") from error
    for path, each in orders.items():
        if each.order not in _VERBS or not _is_path(path):
            raise _unreadable(file, f"it has no order for {path!r:.60} that is known")
    return orders


def write_command(
    file: Path, path: str, verb: Verb, *, is_held: bool, group: str | None = None
) -> dict[str, OperatorCommand]:
    """Write an order; all that stand then. One for all paths replaces those for single ones.

    ``group`` may read the file from then on, and nobody else but its owner.
    """
    canonical = path if path == ALL_PATHS else parse_entity_path(path)
    before = {} if canonical == ALL_PATHS else read_commands(file)
    order = OperatorCommand(verb, is_held, datetime.now(UTC).isoformat())
    orders = {**before, canonical: order}
    _replace(file, orders, group)
    return orders


def _replace(file: Path, orders: Mapping[str, OperatorCommand], group: str | None) -> None:
    content = json.dumps({path: asdict(each) for path, each in orders.items()}, indent=2)
    mode, group_id = _access(file, group)
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(content + "\n")
            opened.flush()
            if group_id is not None:
                os.fchown(handle, -1, group_id)
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(name, file)
    except OSError as error:
        if name:
            with suppress(FileNotFoundError):
                os.unlink(name)
        raise ConfigurationError(
            f"the control file {str(file)!r} cannot be written: {error.strerror}",
            hint="Choose a directory that exists and may be written",
        ) from error


def _access(file: Path, group: str | None) -> tuple[int, int | None]:
    """The mode of the file to write, and its group if that is not the writer's own (rule 3)."""
    if group is not None:
        return GROUP_MODE, _group_id(group)
    try:
        before = file.stat()
    except OSError:
        return USUAL_MODE, None
    is_other = before.st_gid != os.getegid() if hasattr(os, "getegid") else False
    return stat.S_IMODE(before.st_mode) & KEPT_MODES, before.st_gid if is_other else None


def _group_id(group: str) -> int:
    try:
        import grp

        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except (ImportError, KeyError) as error:
        raise ConfigurationError(
            f"group {group[:60]!r} not found on this machine",
            hint="Use the name or the number of a group",
        ) from error


def _is_path(path: str) -> bool:
    if path == ALL_PATHS:
        return True
    try:
        return parse_entity_path(path) == path
    except InvalidEntityPath:
        return False


def _unreadable(file: Path, reason: str, hint: str | None = None) -> ConfigurationError:
    usual = "Name a file" if file.is_dir() else "Remove it, and give the orders again"
    return ConfigurationError(
        f"the control file {str(file)!r} cannot be read: {reason}", hint=hint or usual
    )


# -- the application ------------------------------------------------------------------------


class OperatorCommandWatcher:
    """Carries out what the file says, as long as the pair lives."""

    def __init__(self, file: Path, routing: SendRouter) -> None:
        self._file, self._routing = file, routing
        self._known: dict[str, OperatorCommand] = {}
        self._seen: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """What is held counts before the first send."""
        found = self._changed()
        if found is not None:
            self._known = found
            for path, order in found.items():
                if order.is_held:
                    self._carry_out(path, order)
        self._task = asyncio.create_task(self._watch(), name="twinbus-orders")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            # A file may be on a disk that hangs: sends do not wait for it.
            found = await asyncio.to_thread(self._changed)
            if found is not None:
                before, self._known = self._known, found
                for path, order in found.items():
                    if before.get(path) != order:
                        self._carry_out(path, order)

    def _changed(self) -> dict[str, OperatorCommand] | None:
        """The orders, if the file is another one than before."""
        try:
            facts = self._file.stat()
            seen = (facts.st_mtime_ns, facts.st_ino)
            if seen == self._seen:
                return None
            self._seen = seen
            return read_commands(self._file)
        except FileNotFoundError:
            return None
        except (OSError, ConfigurationError) as error:
            _log.warning("nothing was changed by the control file: %s", error)
            return None

    def _carry_out(self, path: str, order: OperatorCommand) -> None:
        match order.order:
            case "failover":
                self._routing.command(path, EntityFailover.force)
            case "restore":
                self._routing.command(path, EntityFailover.mark_healthy)
            case "hold":
                pass
        if order.is_held:
            self._routing.command(path, EntityFailover.hold)

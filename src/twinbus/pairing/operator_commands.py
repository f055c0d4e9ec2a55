"""The control file: commands of an operator to the running applications of a pair.

    {"orders": {"order": "failover", "is_held": false, "at": "2026-03-01T12:00:00+00:00"},
     "*":      {"order": "hold",     "is_held": true,  "at": ...}}

    failover   divert the path; a successful ping restores it, unless it is held as well
    restore    send to the primary again
    hold       keep the path in its current state

Applications share nothing else with the shell of an operator, so it is a file: the option
``control`` sets its path. A user that may write it may divert sends.

Rule 1: the file is replaced as a whole: no process ever reads half of one.
Rule 2: every running application executes a command once. One that starts later executes only
        commands that are held; the others have expired.
Rule 3: the file contains no secret, and every user that can read its directory can read it:
        applications run as another user than the operator. Its mode and its group are kept. Only
        its owner can write it, and users that the owner permits; a file that is writable for all
        users is not read.
Rule 4: a file that is missing or cannot be read changes nothing, and the log reports it.
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

POLL_INTERVAL_S: Final = 1.0
# Enough for thousands of paths; twinbus writes no larger file.
FILE_BYTES_MAX: Final = 1 << 20
# Of a new file; of one for a group; and what an existing one may keep: never write for all users.
USUAL_MODE: Final = 0o644
GROUP_MODE: Final = 0o640
KEPT_MODES: Final = 0o664
_VERBS: Final = ("failover", "restore", "hold")


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command for one path, or for all of them."""

    order: Verb
    is_held: bool
    at: str
    """When it was written; the same command written again is a new one."""


# -- the file -------------------------------------------------------------------------------


def read_commands(file: Path) -> dict[str, OperatorCommand]:
    """The last command for each path; raises ConfigurationError. Empty without a file."""
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & stat.S_IWOTH:
                raise _unreadable(file, "it is writable for all users", f"Run `chmod o-w {file}`")
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(file, error.strerror or type(error).__name__) from error
    if not content.strip():
        return {}  # Created beforehand, to set its mode and group.
    try:
        decoded = json.loads(content)
        commands = {path: OperatorCommand(**each) for path, each in decoded.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(file, "it was not written by `twinbus pair`") from error
    for path, each in commands.items():
        if each.order not in _VERBS or not _is_path(path):
            raise _unreadable(file, f"unknown command for {path!r:.60}")
    return commands


def write_command(
    file: Path, path: str, verb: Verb, *, is_held: bool, group: str | None = None
) -> dict[str, OperatorCommand]:
    """Write a command; returns all commands in the file. A command for all paths replaces those
    for single paths.

    From then on only the owner of the file and ``group`` can read it.
    """
    canonical = path if path == ALL_PATHS else parse_entity_path(path)
    before = {} if canonical == ALL_PATHS else read_commands(file)
    command = OperatorCommand(verb, is_held, datetime.now(UTC).isoformat())
    commands = {**before, canonical: command}
    _replace(file, commands, group)
    return commands


def _replace(file: Path, commands: Mapping[str, OperatorCommand], group: str | None) -> None:
    content = json.dumps({path: asdict(each) for path, each in commands.items()}, indent=2)
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
            f"Control file {str(file)!r} cannot be written: {error.strerror}",
            hint="Choose an existing directory that you may write",
        ) from error


def _access(file: Path, group: str | None) -> tuple[int, int | None]:
    """The mode of the new file, and its group if that is not the group of this process (rule 3)."""
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
            f"Group {group[:60]!r} not found on this machine",
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
    usual = "Choose a file" if file.is_dir() else "Delete the file, and repeat the commands"
    return ConfigurationError(
        f"Control file {str(file)!r} cannot be read: {reason}", hint=hint or usual
    )


# -- the application ------------------------------------------------------------------------


class OperatorCommandWatcher:
    """Executes the commands in the file, as long as the pair exists."""

    def __init__(self, file: Path, routing: SendRouter) -> None:
        self._file, self._routing = file, routing
        self._known: dict[str, OperatorCommand] = {}
        self._seen: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Execute held commands before the first send."""
        found = self._read_changed()
        if found is not None:
            self._known = found
            for path, command in found.items():
                if command.is_held:
                    self._execute(path, command)
        self._task = asyncio.create_task(self._watch(), name="twinbus-operator-commands")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            # The file may be on a disk that does not respond: sends do not wait for it.
            found = await asyncio.to_thread(self._read_changed)
            if found is not None:
                before, self._known = self._known, found
                for path, command in found.items():
                    if before.get(path) != command:
                        self._execute(path, command)

    def _read_changed(self) -> dict[str, OperatorCommand] | None:
        """The commands, if the file has changed since the last read."""
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
            _log.warning("Control file ignored: %s", error)
            return None

    def _execute(self, path: str, command: OperatorCommand) -> None:
        match command.order:
            case "failover":
                self._routing.command(path, EntityFailover.force)
            case "restore":
                self._routing.command(path, EntityFailover.mark_healthy)
            case "hold":
                pass
        if command.is_held:
            self._routing.command(path, EntityFailover.hold)

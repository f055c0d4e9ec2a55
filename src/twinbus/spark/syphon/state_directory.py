"""A syphon's state directory: operator commands and the status, as two small files.

    control.json   written by operators: pause, resume, another rate, stop
    status.json    written by the syphon: its state and its counts

They are files because the three processes of a query (the program, the source, the tasks) share
nothing else with an operator's shell.

Rule 1: both are replaced in one step: a reader never gets half of one.
Rule 2: one syphon at a time uses the directory. The lock is the program's, and a query at a Spark
        Connect server may outlive its program: control.json names the run that it is for.
Rule 3: a control file that cannot be read changes nothing, and is reported in the status.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.errors import SparkError

__all__ = ["Control", "StateDir", "Status"]

LOCK: Final = "lock"
CONTROL: Final = "control.json"
STATUS: Final = "status.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An operator's commands for a running syphon."""

    is_paused: bool = False
    is_stopping: bool = False
    rate_per_s: float | None = None
    """None: the rate it was started with."""
    run: str = ""
    """The run that uses the directory; empty: any."""


@dataclass(slots=True, kw_only=True)
class Status:
    """The state of a syphon, for operators."""

    doing: str = "starting"
    """starting, waiting, moving, paused, primary unreachable, stopped."""
    counts: dict[str, int] = field(default_factory=dict)
    """Receipts by outcome, of this run."""
    moved_bytes: int = 0
    deferred_now: dict[str, int] = field(default_factory=dict)
    """Messages that wait for their destination, by destination."""
    foreign: dict[str, int] = field(default_factory=dict)
    """Messages of other pairs, which are not moved, by the marks of the pairs (P21)."""
    faults: dict[str, str] = field(default_factory=dict)
    """Queues that cannot be read, each with its error."""
    refused: dict[str, str] = field(default_factory=dict)
    """Queues and destinations for which a claim is missing, each with that claim."""
    stalled: str = ""
    """The reason while messages wait and none is moved; else empty."""
    epoch: int = 0
    pid: int = 0
    updated_ms: int = 0


class StateDir:
    """The directory, created if it does not exist, for its owner only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Spark's processes may have another working directory.
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The state directory {str(self.path)!r} cannot be created: {error.strerror}",
                hint="Choose another directory with --state",
            ) from error
        self._lock: int | None = None
        self._seen: tuple[int, int] | None = None
        self._control = Control()
        self.trouble = ""
        """Why the control file is not valid; empty when it is."""

    # -- the lock -------------------------------------------------------------------------

    def take(self) -> None:
        """Lock it for one syphon, until release() or the end of the process; SparkError when
        another syphon has it."""
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise SparkError(
                f"Another syphon uses the state directory {str(self.path)!r}",
                hint="Choose another directory with --state",
            ) from None
        self._lock = handle

    @property
    def is_taken(self) -> bool:
        """Whether a syphon uses it now, in this process or in another."""
        try:
            handle = os.open(self.path / LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True  # The lock of another user.
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        """Unlock it for other syphons; may be called twice."""
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    # -- control --------------------------------------------------------------------------

    def control(self) -> Control:
        """The commands as they are now. The file is only read when it has changed, so this may be
        called often."""
        try:
            found = (self.path / CONTROL).stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen != self._seen:
                self._control = _parse_control((self.path / CONTROL).read_text("utf-8"))
                self._seen, self.trouble = seen, ""
        except FileNotFoundError:
            self._control, self._seen, self.trouble = Control(), None, ""
        except (OSError, ValueError) as error:
            self.trouble = f"{CONTROL} is not valid: {error}"
        return self._control

    def set_control(self, control: Control) -> None:
        self._replace(CONTROL, asdict(control))

    # -- status ---------------------------------------------------------------------------

    def status(self) -> Status | None:
        """The last status of the syphon; None when there is none."""
        try:
            found = json.loads((self.path / STATUS).read_text("utf-8"))
            if "set_aside" in found:  # Written before 0.1.0.
                found["deferred_now"] = found.pop("set_aside")
            return Status(**found)
        except (OSError, ValueError, TypeError):
            return None

    def set_status(self, status: Status) -> None:
        self._replace(STATUS, asdict(status))

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        handle, draft = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(draft, self.path / name)
        except OSError:
            os.unlink(draft)
            raise


def _parse_control(text: str) -> Control:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    unknown = set(found) - {"is_paused", "is_stopping", "rate_per_s", "run"}
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r:.40}")
    for name in ("is_paused", "is_stopping"):
        if not isinstance(found.get(name, False), bool):
            raise ValueError(f"{name} must be true or false")
    if not isinstance(found.get("run", ""), str):
        raise ValueError("run must be a string")
    rate = found.get("rate_per_s")
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
    ):
        raise ValueError("rate_per_s must be a number above 0")
    return Control(**found)

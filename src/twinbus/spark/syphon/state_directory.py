"""A syphon's directory: what people tell it and what it tells them, as two small files.

    control.json   people write it: pause, resume, another rate, stop
    status.json    the syphon writes it: what it does and what it has done

They are files because the three processes of a query (the program, the source, the tasks) share
nothing else with an operator's shell.

Rule 1: both are replaced as a whole: nobody ever reads half of one.
Rule 2: one syphon at a time has the directory. The lock is the program's, and a query at a Spark
        Connect server may outlive its program: control.json says which run it is meant for.
Rule 3: a control file that cannot be read changes nothing, and is told in the status.
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
    """What somebody wants of a running syphon."""

    is_paused: bool = False
    is_stopping: bool = False
    rate_per_s: float | None = None
    """None: as it was started."""
    run: str = ""
    """Who has the directory; empty: whoever looks."""


@dataclass(slots=True, kw_only=True)
class Status:
    """What a syphon does, for people."""

    doing: str = "starting"
    """starting, waiting, moving, paused, primary away, stopped."""
    counts: dict[str, int] = field(default_factory=dict)
    """Receipts by outcome, of this run."""
    moved_bytes: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    """Messages that wait for their destination, by destination."""
    foreign: dict[str, int] = field(default_factory=dict)
    """Messages of other pairs that were left alone, by the marks of the pairs (P21)."""
    faults: dict[str, str] = field(default_factory=dict)
    """Queues that cannot be read, each with a sentence."""
    refused: dict[str, str] = field(default_factory=dict)
    """Queues and destinations for which a claim is missing, each with that claim."""
    stalled: str = ""
    """A sentence while messages wait and none moves."""
    epoch: int = 0
    pid: int = 0
    updated_ms: int = 0


class StateDir:
    """The directory, made when it is missing, for its owner only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Spark's processes may have another working directory.
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the state directory {str(self.path)!r} cannot be made: {error.strerror}",
                hint="Choose one with --state",
            ) from error
        self._lock: int | None = None
        self._seen: tuple[int, int] | None = None
        self._control = Control()
        self.trouble = ""
        """Why the control file was not understood; empty when it was."""

    # -- whose it is ----------------------------------------------------------------------

    def take(self) -> None:
        """It belongs to one syphon at a time: whoever comes second is told, until release() or
        the end of the process."""
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise SparkError(
                f"another syphon uses the state directory {str(self.path)!r}",
                hint="Give each one its own with --state",
            ) from None
        self._lock = handle

    @property
    def is_taken(self) -> bool:
        """Whether a syphon has it now, of this process or of another."""
        try:
            handle = os.open(self.path / LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True  # Another user's.
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        """Let somebody else have it; may be called twice."""
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    # -- control --------------------------------------------------------------------------

    def control(self) -> Control:
        """What is wanted now; looks at the file's date, so it may be asked all the time."""
        try:
            found = (self.path / CONTROL).stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen != self._seen:
                self._control = _control_in((self.path / CONTROL).read_text("utf-8"))
                self._seen, self.trouble = seen, ""
        except FileNotFoundError:
            self._control, self._seen, self.trouble = Control(), None, ""
        except (OSError, ValueError) as error:
            self.trouble = f"{CONTROL} was not understood: {error}"
        return self._control

    def set_control(self, control: Control) -> None:
        self._replace(CONTROL, asdict(control))

    # -- status ---------------------------------------------------------------------------

    def status(self) -> Status | None:
        """What the syphon told last; None when it never did."""
        try:
            told = json.loads((self.path / STATUS).read_text("utf-8"))
            return Status(**told)
        except (OSError, ValueError, TypeError):
            return None

    def set_status(self, status: Status) -> None:
        self._replace(STATUS, asdict(status))

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        handle, made = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(made, self.path / name)
        except OSError:
            os.unlink(made)
            raise


def _control_in(text: str) -> Control:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    unknown = set(found) - {"is_paused", "is_stopping", "rate_per_s", "run"}
    if unknown:
        raise ValueError(f"it has {sorted(unknown)[0]!r:.40}, which nobody knows")
    for name in ("is_paused", "is_stopping"):
        if not isinstance(found.get(name, False), bool):
            raise ValueError(f"{name} is neither true nor false")
    if not isinstance(found.get("run", ""), str):
        raise ValueError("run is no text")
    rate = found.get("rate_per_s")
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
    ):
        raise ValueError("rate_per_s is no number above 0")
    return Control(**found)

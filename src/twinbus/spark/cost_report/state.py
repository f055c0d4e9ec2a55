"""The state of reports: sums by day, and the files that they were computed from.

    state/manifest.json                    names all valid files; others are removed
          days/2026-11-16.<id>/            sums by minute and by hour (Parquet), summary.json
          damaged/2026-11-16.<id>/         damaged lines (Parquet), by the day in their file's name
          aside.<id>/                      being written

Rule 1: new directories are written under other names and never changed; the manifest is replaced
        last, in one step. If the process is killed in between, the old state is still valid.
Rule 2: a state whose files do not match its manifest is discarded, and computed again.
Rule 3: only its owner can read it, because it contains names of queues.
Rule 4: one report at a time uses the directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from twinbus.errors import ConfigurationError
from twinbus.spark.cost_report.log_files import Fingerprint

__all__ = ["Bundle", "CostState", "Manifest", "Part", "literal_path"]

VERSION: Final = 3
MANIFEST: Final = "manifest.json"
SUMMARY: Final = "summary.json"
DAYS: Final = "days"
DAMAGED: Final = "damaged"


@dataclass(frozen=True, slots=True)
class Part:
    """A directory of the state, and the files that must be in it."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files whose names have the same day, in the state in which they were read."""

    files: dict[str, Fingerprint]
    days: tuple[str, ...]
    """The days of its lines."""
    damaged: dict[str, int]
    """Lines by reason."""
    damaged_in: Part | None


@dataclass(frozen=True, slots=True)
class Manifest:
    bundles: dict[str, Bundle] = field(default_factory=dict)
    days: dict[str, Part] = field(default_factory=dict)


class CostState:
    """One directory, locked by this process in a ``with``."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.manifest = Manifest()
        self.was_known = False
        """Whether an earlier report has written it."""

    @contextmanager
    def held(self) -> Iterator[CostState]:
        """Lock it for the block, and load the manifest."""
        try:
            for each in (self.path, self.path / DAYS, self.path / DAMAGED):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"The state directory {str(self.path)!r} cannot be created: {error.strerror}",
                hint="Choose another directory with --state",
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigurationError(
                    f"Another report uses the state directory {str(self.path)!r}",
                    hint="Wait until it has ended, or choose another directory with --state",
                ) from None
            self.manifest = self._load()
            self.was_known = bool(self.manifest.bundles)
            self._sweep()
            yield self
        finally:
            os.close(lock)

    # -- reading --------------------------------------------------------------------------

    def day_path(self, day: str) -> Path:
        return self.path / DAYS / self.manifest.days[day].name

    def summary(self, day: str) -> dict[str, Any]:
        """The summary that was stored when a day was computed."""
        found: dict[str, Any] = json.loads((self.day_path(day) / SUMMARY).read_text("utf-8"))
        return found

    def size_of(self, day: str, kind: str) -> int:
        """The size of the sums of a day, in bytes."""
        sizes = self.manifest.days[day].sizes
        return sum(size for name, size in sizes.items() if name.startswith(f"{kind}-"))

    def damaged_paths(self) -> list[Path]:
        """Directories with damaged lines, as Parquet."""
        parts = (bundle.damaged_in for bundle in self.manifest.bundles.values())
        return [self.path / DAMAGED / part.name for part in parts if part is not None]

    def _load(self) -> Manifest:
        try:
            manifest = _parse_manifest(json.loads((self.path / MANIFEST).read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return Manifest()
        return manifest if self._is_whole(manifest) else Manifest()

    def _is_whole(self, manifest: Manifest) -> bool:
        parts = [(DAYS, part) for part in manifest.days.values()]
        parts += [
            (DAMAGED, bundle.damaged_in)
            for bundle in manifest.bundles.values()
            if bundle.damaged_in is not None
        ]
        try:
            return all(_sizes(self.path / kind / part.name) == part.sizes for kind, part in parts)
        except OSError:
            return False

    # -- writing --------------------------------------------------------------------------

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """A new directory for files that are not valid yet."""
        path = self.path / f"aside.{uuid4().hex}"
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def adopt_day(
        self, new: Mapping[str, Iterable[Path]], day: str, summary: Mapping[str, Any]
    ) -> Part:
        """Move files of sums into the state, by kind; nothing refers to them until replace()."""
        return self._adopt(new, DAYS, day, {SUMMARY: json.dumps(summary)})

    def adopt_damaged(self, new: Mapping[str, Iterable[Path]], bundle: str) -> Part:
        return self._adopt(new, DAMAGED, bundle or "undated", {})

    def _adopt(
        self,
        new: Mapping[str, Iterable[Path]],
        where: str,
        name: str,
        texts: Mapping[str, str],
    ) -> Part:
        target = self.path / where / f"{name}.{uuid4().hex[:12]}"
        target.mkdir(mode=0o700)
        for kind, files in new.items():
            for number, file in enumerate(files):
                file.rename(target / f"{kind}-{number:05}.parquet")
        for each, text in texts.items():
            (target / each).write_text(text, "utf-8")
        return Part(target.name, _sizes(target))

    def replace(self, manifest: Manifest) -> None:
        """Make this manifest the valid one."""
        draft = self.path / f"aside.{uuid4().hex}"
        with draft.open("x", encoding="utf-8") as file:
            json.dump({"version": VERSION, **asdict(manifest)}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / MANIFEST)
        self.manifest = manifest
        self._sweep()

    def forget(self) -> None:
        """Discard everything; it is computed again."""
        self.replace(Manifest())

    def _sweep(self) -> None:
        """Remove what the manifest does not name."""
        manifest = self.manifest
        named = {part.name for part in manifest.days.values()}
        named |= {b.damaged_in.name for b in manifest.bundles.values() if b.damaged_in is not None}
        unnamed = [*self.path.glob("aside.*")]
        for kind in (DAYS, DAMAGED):
            unnamed += [path for path in (self.path / kind).iterdir() if path.name not in named]
        for path in unnamed:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def literal_path(path: Path) -> str:
    """A path that Spark does not take for a pattern."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in str(path))


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}


def _parse_manifest(found: Any) -> Manifest:
    if found["version"] != VERSION:
        return Manifest()
    return Manifest(
        bundles={name: _parse_bundle(each) for name, each in found["bundles"].items()},
        days={day: Part(**part) for day, part in found["days"].items()},
    )


def _parse_bundle(found: Any) -> Bundle:
    return Bundle(
        files={path: Fingerprint(*each) for path, each in found["files"].items()},
        days=tuple(found["days"]),
        damaged=dict(found["damaged"]),
        damaged_in=None if found["damaged_in"] is None else Part(**found["damaged_in"]),
    )

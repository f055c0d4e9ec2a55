"""Examine a data directory, and write a new one with everything that can be read from it.

    <data>/keys.json                   the access rules of all namespaces
    <data>/tls/                        the certificate authority
    <data>/namespace-<name>/store.db   each namespace, examined by ``storage.repair``

The directory of one namespace can be examined alone; the new one is then of the same kind.

Rule 1: the examined directory is not changed, and no broker can open it meanwhile.
Rule 2: a new directory appears whole or not at all: it is built under another name beside it.
Rule 3: what is not damaged is copied as it is, also keys and certificates.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.namespace.catalogue_repair import check_catalogue, read_chunk
from twinbus.broker.storage.data_directory import FILE_NAME as KEYS_NAME
from twinbus.broker.storage.data_directory import parse_keys, reserve
from twinbus.broker.storage.repair.findings import Finding, FindingKind, LostRange, Severity, Totals
from twinbus.broker.storage.repair.store_repair import Doctor, Progress, StoreReport
from twinbus.broker.storage.store_files import Disk
from twinbus.errors import ConfigurationError

STORE_NAME: Final = "store.db"
NAMESPACE_PREFIX: Final = "namespace-"
_LOCK_NAME: Final = "lock"
_PRIVATE_DIRECTORY: Final = 0o700
_BLOCK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class NamespaceReport:
    """What was found in one namespace."""

    name: str
    store: StoreReport

    @property
    def findings(self) -> list[Finding]:
        return [each.placed(self.name, self.store.paths) for each in self.store.findings]

    def lost(self) -> Iterator[tuple[str, LostRange]]:
        """The sequence numbers that are lost, with the path of their entity."""
        for each in self.store.lost:
            yield self.store.paths.get(each.queue_id, f"entity {each.queue_id}"), each


@dataclass(slots=True)
class DataReport:
    """What was found in a data directory."""

    data: Path
    findings: list[Finding] = field(default_factory=list)
    """What is wrong outside the stores."""
    namespaces: list[NamespaceReport] = field(default_factory=list)
    repaired: Path | None = None
    """The new data directory."""

    def all_findings(self) -> list[Finding]:
        return [*self.findings, *(one for each in self.namespaces for one in each.findings)]

    @property
    def is_healthy(self) -> bool:
        return not any(each.severity is Severity.ERROR for each in self.all_findings())

    @property
    def can_repair(self) -> bool:
        return all(each.store.can_repair for each in self.namespaces)

    @property
    def totals(self) -> Totals:
        totals = Totals()
        for each in self.namespaces:
            totals.add(each.store.totals)
        return totals


def examine_data(
    data: Path,
    into: Path | None = None,
    *,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Examine a data directory; with ``into``, write a new one with all that can be read.

    ``scratch`` is a directory for temporary copies, which need as much space as the largest store.
    """
    stores = _stores_in(data)
    if into is not None:
        _check_target(data, into)
    with ExitStack() as stack:
        stack.enter_context(reserve(data))
        if STORE_NAME in {path.name for path in stores.values() if path.parent == data}:
            # The lock of a single namespace is the one of the directory that it is in.
            stack.enter_context(reserve(data.parent))
        report = DataReport(data)
        report.findings += _check_keys(data / KEYS_NAME)
        if into is None:
            _examine(report, stores, None, _scratch(scratch), progress)
            return report
        draft = into.with_name(f".{into.name}.{secrets.token_hex(8)}")
        draft.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)
        try:
            _examine(report, stores, draft, scratch or draft, progress)
            if report.can_repair:
                _copy_rest(report, data, draft)
                os.rename(draft, into)
                Disk().sync_directory(into.parent)
                report.repaired = into
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return report


def _stores_in(data: Path) -> dict[str, Path]:
    """Namespace -> its store file."""
    if not data.is_dir():
        raise ConfigurationError(
            f"{os.fspath(data)!r} is not a directory", hint="Name the data directory of a broker"
        )
    try:
        inside = sorted(data.iterdir())
        found = {
            each.name.removeprefix(NAMESPACE_PREFIX): each / STORE_NAME
            for each in inside
            if each.name.startswith(NAMESPACE_PREFIX) and each.is_dir()
        }
    except OSError as error:
        raise ConfigurationError(
            f"Directory {os.fspath(data)!r} cannot be read: {error.strerror}",
            hint="Run the command as the user that runs the broker",
        ) from error
    if not found and any(each.name.startswith(STORE_NAME) for each in inside):
        found = {data.resolve().name.removeprefix(NAMESPACE_PREFIX): data / STORE_NAME}
    if not found:
        raise ConfigurationError(
            f"No store found in {os.fspath(data)!r}",
            hint="Name the directory of `twinbus serve --data`, or that of one namespace in it",
        )
    for path in found.values():
        if path.exists() and not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"Store {os.fspath(path)!r} cannot be read",
                hint="Run the command as the user that runs the broker",
            )
    return found


def _check_target(data: Path, into: Path) -> None:
    if into.exists() or into.is_symlink():
        raise ConfigurationError(
            f"{os.fspath(into)!r} already exists",
            hint="Choose a directory that does not exist with --into",
        )
    if into.resolve().is_relative_to(data.resolve()):
        raise ConfigurationError(
            f"{os.fspath(into)!r} is inside the examined directory {os.fspath(data)!r}",
            hint="Choose a directory outside it with --into",
        )


def _scratch(chosen: Path | None) -> Path:
    return Path(tempfile.gettempdir()) if chosen is None else chosen


def _examine(
    report: DataReport,
    stores: dict[str, Path],
    into: Path | None,
    scratch: Path,
    progress: Progress | None,
) -> None:
    doctor = Doctor(
        scratch,
        catalogue=check_catalogue,
        read_messages=read_chunk,
        build_entities=lambda recovered: Catalogue(recovered, Random(0)),
        progress=progress,
    )
    for name, path in stores.items():
        target = None
        if into is not None:
            directory = into if path.parent == report.data else into / path.parent.name
            directory.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
            target = directory / STORE_NAME
        store = doctor.examine(path, target)
        report.namespaces.append(NamespaceReport(name, store))


def _check_keys(path: Path) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode & 0o777
        parse_keys(path.read_bytes(), path)
    except FileNotFoundError:
        return
    except (ConfigurationError, OSError):
        yield Finding(
            kind=FindingKind.KEYS_UNREADABLE,
            sentence=f"Key file {path.name!r} cannot be read.",
            repair="The file is left out: the broker generates new keys, which all clients need. "
            "Restore the file from a backup if there is one.",
        )
        return
    if mode & 0o077:
        yield Finding(
            kind=FindingKind.KEYS_EXPOSED,
            sentence=f"Key file {path.name!r} is readable by other users (mode {mode:o}), so the "
            "broker rejects it.",
            repair="The copy is readable by its owner only. Generate new keys if another user may "
            "have read them.",
        )


def _copy_rest(report: DataReport, data: Path, into: Path) -> None:
    """Everything that is not a store: keys, certificates, logs.

    What cannot be read becomes a finding and is left out: a finished repair is worth more than a
    log file.
    """
    leave_out = {data / _LOCK_NAME}
    if any(each.kind is FindingKind.KEYS_UNREADABLE for each in report.findings):
        leave_out.add(data / KEYS_NAME)
    _copy_inside(report, data, into, leave_out)
    for directory in (into, *into.glob(f"{NAMESPACE_PREFIX}*/")):
        os.chmod(directory, _PRIVATE_DIRECTORY)
    if (into / KEYS_NAME).exists():
        os.chmod(into / KEYS_NAME, 0o600)


def _copy_inside(report: DataReport, source: Path, target: Path, leave_out: set[Path]) -> None:
    try:
        inside = sorted(source.iterdir())
    except OSError as error:
        report.findings.append(_not_copied(report.data, source, error.strerror))
        return
    for path in inside:
        if path in leave_out or path.name.startswith((STORE_NAME, f".{STORE_NAME}")):
            continue
        copy = target / path.name
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            what = "it is a symbolic link or a special file"
            report.findings.append(_not_copied(report.data, path, what, Severity.WARNING))
        elif path.is_dir():
            copy.mkdir(exist_ok=True)
            _copy_inside(report, path, copy, leave_out)
            shutil.copystat(path, copy)
        elif (reason := _copy_file(path, copy)) is not None:
            report.findings.append(_not_copied(report.data, path, reason))


def _copy_file(source: Path, target: Path) -> str | None:
    """Copy one file; return why it cannot be read, or None. A full disk raises OSError."""
    blocks = _read_blocks(source)
    with target.open("wb") as file:
        while True:
            try:
                block = next(blocks, b"")
            except OSError as error:
                target.unlink()
                return str(error.strerror)
            if not block:
                break
            file.write(block)
    shutil.copystat(source, target)
    return None


def _read_blocks(path: Path) -> Iterator[bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while block := os.read(handle, _BLOCK_BYTES):
            yield block
    finally:
        os.close(handle)


def _not_copied(
    data: Path, path: Path, reason: str | None, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(
        kind=FindingKind.FILE_UNREADABLE,
        sentence=f"{os.fspath(path.relative_to(data))!r} cannot be copied: {reason}.",
        repair="It is left out. Copy it by hand if it is needed.",
        severity=severity,
    )

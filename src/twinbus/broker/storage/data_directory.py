"""The data directory of a broker: its lock, its files and its access rules.

    <data>/lock                        locked by the process that serves it; contains its process id
    <data>/keys.json                   the access rules of all namespaces
    <data>/namespace-<name>/store.db   one namespace (its log and mark beside it)

A namespace starts with one access rule, RootManageSharedAccessKey, as in Azure. SAS needs the
keys themselves, so they are stored in plain text: protect the data directory like a password.

Rule 1: one process at a time. The kernel holds the lock, so it ends with the process however
        that ends; the process id in the file is only for error messages.
Rule 2: no file name comes from an entity name. Namespace names are checked here again and get
        a prefix, so that none is a device, a hidden file or a path out of the directory.
Rule 3: the directory is accessible to its owner only (0700), and so are its files (0600).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.storage.store_files import PRIVATE_FILE, Disk
from twinbus.errors import ConfigurationError, StoreLocked

_NAMESPACE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]", re.ASCII)
_NAMESPACE_PREFIX: Final = "namespace-"
STORE_FILE: Final = "store.db"
_PRIVATE_DIRECTORY: Final = 0o700
# For parent directories: the umask of the process decides.
_USUAL_DIRECTORY: Final = 0o777


class DataDirectory:
    """A locked data directory; use it as a context manager or call ``close``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock_file: int | None = None
        try:
            _make_private_directory(self.path)
            self._lock_file = _lock(self.path / "lock", self.path)
        except OSError as error:
            raise _unusable(self.path, error.strerror) from error

    def namespace_store_path(self, name: str) -> Path:
        """The path of a namespace's store; its directory exists afterwards."""
        if _NAMESPACE_NAME.fullmatch(name) is None:
            raise ConfigurationError(
                f"Invalid namespace name: {name!r}",
                hint="Use 2 to 50 letters, digits and hyphens; start with a letter and do not end "
                "with a hyphen",
            )
        directory = self.path / f"{_NAMESPACE_PREFIX}{name.lower()}"
        _make_private_directory(directory)
        return directory / STORE_FILE

    def close(self) -> None:
        """Release the lock, so that another process can use the directory."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def list_namespaces(path: Path) -> list[str]:
    """The namespaces that have a store in a data directory; creates and locks nothing."""
    stores = path.glob(f"{_NAMESPACE_PREFIX}*/{STORE_FILE}")
    return sorted(each.parent.name.removeprefix(_NAMESPACE_PREFIX) for each in stores)


@contextmanager
def reserve(directory: Path) -> Iterator[None]:
    """Lock a data directory against other processes, without changing anything in it.

    Raises StoreLocked when another process uses it.
    """
    handle = _open_lock(directory)
    try:
        if handle is not None:
            _acquire_lock(handle, directory)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _open_lock(directory: Path) -> int | None:
    try:
        return os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # Never served, or not readable by this user: there is no lock to take.
        return None


def write_private(path: str | Path, content: bytes) -> None:
    """Replace a file with secrets: atomically, durably, readable by its owner only."""
    path = Path(path)
    # Another user cannot guess the random name and put a symbolic link in its place.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    Disk().sync_directory(path.parent)


def read_private(path: str | Path) -> bytes | None:
    """The content, or None when the file does not exist; refused when other users can read it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & 0o077:
            raise ConfigurationError(
                f"File {os.fspath(path)!r} contains secrets and is accessible to other users "
                f"(mode {mode:o})",
                hint="Run `chmod 600` on the file; create new keys if another user may have read "
                "it",
            )
        return file.read()


def _make_private_directory(path: Path) -> None:
    """Create the directory durably, or remove other users' access to an existing one.

    The parent of each created directory is synced: otherwise a power failure could lose the entry
    of one of them, and with it everything below.
    """
    try:
        _make_durable(path.absolute(), _PRIVATE_DIRECTORY)
    except FileExistsError:
        if not path.is_dir():
            raise _unusable(path, "not a directory") from None
    os.chmod(path, _PRIVATE_DIRECTORY)


def _make_durable(path: Path, mode: int) -> None:
    if not path.parent.exists():
        with suppress(FileExistsError):  # Another process was faster.
            _make_durable(path.parent, _USUAL_DIRECTORY)
    path.mkdir(mode)
    Disk().sync_directory(path.parent)


def _unusable(path: Path, reason: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"Directory {os.fspath(path)!r} cannot be used: {reason}",
        hint="Choose a directory that this user can write to",
    )


def _lock(lock_path: Path, directory: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(lock_path, flags, PRIVATE_FILE)
    try:
        _acquire_lock(handle, directory)
    except StoreLocked:
        os.close(handle)
        raise
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def _acquire_lock(handle: int, directory: Path) -> None:
    """Lock the open lock file; raise StoreLocked when another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).strip()
        pid = int(holder) if holder.isdigit() else None
        raise StoreLocked(path=directory, pid=pid) from None


ROOT_RULE = "RootManageSharedAccessKey"
FILE_NAME = "keys.json"


class KeyRing:
    """The access rules of every namespace; without a directory they end with the process."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / FILE_NAME
        self._rules: dict[str, RuleSet] = {}
        if self._path is not None:
            content = read_private(self._path)
            if content is not None:
                self._rules = parse_keys(content, self._path)

    def rules_of(self, namespace: str) -> RuleSet:
        """The access rules of a namespace; a new one gets the root rule with new keys."""
        known = self._rules.get(namespace)
        if known is not None:
            return known
        root = AuthorizationRule.generate(ROOT_RULE, Claim.all(), secrets.token_bytes)
        self.replace(namespace, RuleSet((root,)))
        return self._rules[namespace]

    def replace(self, namespace: str, rules: RuleSet) -> None:
        """Store changed rules; they are durable when this returns."""
        changed = {**self._rules, namespace: rules}
        if self._path is not None:
            write_private(self._path, _format(changed))
        self._rules = changed


def _format(rules: dict[str, RuleSet]) -> bytes:
    stored: dict[str, Any] = {
        name: [
            {
                "name": rule.name,
                "claims": rule.claims.names(),
                "primary_key": rule.primary_key,
                "secondary_key": rule.secondary_key,
            }
            for rule in rule_set
        ]
        for name, rule_set in rules.items()
    }
    return json.dumps({"version": 1, "namespaces": stored}, indent=1).encode()


def parse_keys(content: bytes, path: Path) -> dict[str, RuleSet]:
    """The access rules in a key file; raises ConfigurationError if it is damaged."""
    try:
        namespaces = json.loads(content)["namespaces"]
        return {
            name: RuleSet(
                tuple(
                    AuthorizationRule(
                        rule["name"],
                        Claim.from_names(rule["claims"]),
                        rule["primary_key"],
                        rule["secondary_key"],
                    )
                    for rule in rules
                )
            )
            for name, rules in namespaces.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # No "from": the original error may quote a key.
        raise ConfigurationError(
            f"Key file {path.name!r} is damaged",
            hint="Restore it from a backup, or delete it to create new keys",
        ) from None
